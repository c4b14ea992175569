"""The request stream that a scenario's workloads mean: when each request arrives and how many tokens it has.

Every workload draws from generators of its own, named by the workload, so that adding, removing or reordering workloads
leaves the others' requests as they were. Random numbers are common to all loads: the i-th request of a workload keeps
its lengths, and its arrival is the same unit time divided by rate x multiplier. Two fleets, or two loads, compared on
one seed therefore differ by what they do, not by luck. Traces are the exception by design: see `replay`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from simulator.arrivals import Part, Seconds, WorkloadSource, offered_rps
from simulator.lengths import Tokens
from simulator.rows import Rows
from simulator.shared_prefix import Prefix
from simulator.traces import Trace
from simulator.traffic import ClosedTraffic, Workload

__all__ = ["RequestStream", "StreamSource", "make_stream", "offered_rps"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestStream:
    """Requests of all workloads in order of arrival, as columns of equal length N."""

    arrival_s: Seconds
    "Intended arrival, seconds from the start, ascending; NaN last: sent once an earlier request has ended."
    prompt_tokens: Tokens
    "Tokens of the prompt, at least 1."
    output_tokens: Tokens
    "Tokens of the answer, at least 1."
    workload: npt.NDArray[np.int32]
    "Index into ``workload_names``."
    workload_names: tuple[str, ...]
    "In the scenario's order."
    span_s: float
    "The time the stream stands for; NaN for a closed loop, whose duration is a result."
    clipped_fraction: tuple[float, ...]
    "Share of each workload's requests that were cut to fit max_model_len."
    concurrency: int | None = None
    "Requests kept in flight by a closed loop; None for arrivals in time."
    document: Tokens | None = None
    "Number of the document that a prompt begins with, -1 = none; None = nobody shares anything."
    document_tokens: Tokens | None = None
    "Tokens of the prompt that are this document."
    priority: Tokens | None = None
    "Lower is served first under `scheduling_policy: priority`; None = all alike."
    max_tokens: Tokens | None = None
    "Answer tokens that the engine must expect; None = it knows where each answer ends."
    accepted: Rows | None = None
    "Drafts accepted at each verification of a request; None = none."
    session: Tokens | None = None
    "Number of the session or user behind a request, -1 = none; None = nobody has one."
    session_tokens: Tokens | None = None
    "Tokens from the beginning of prompt and answer that any two requests of a session share, each as far as it goes."
    prefix_ids: Rows | None = None
    "Ids of a recorded prompt's blocks; equal ids mean that everything up to the end of the block is equal."
    prefix_block_tokens: int | None = None
    "Tokens of the blocks that `prefix_ids` names."
    after: Tokens | None = None
    "Index of the request whose end brings this one, -1 = it comes at its own time; None = all do."
    think_s: Seconds | None = None
    "Seconds from that end to this request's arrival."

    def __post_init__(self) -> None:
        count = len(self.arrival_s)
        if not count == len(self.prompt_tokens) == len(self.output_tokens) == len(self.workload):
            raise ValueError("the columns of a request stream differ in length")
        prompts = (self.document, self.document_tokens, self.prefix_ids, self.session, self.session_tokens)
        extra = (*prompts, self.priority, self.max_tokens, self.accepted, self.after, self.think_s)
        if any(column is not None and len(column) != count for column in extra):
            raise ValueError("the columns of a request stream differ in length")
        if count == 0:
            raise ValueError("a request stream has at least one request")
        if bool((np.minimum(self.prompt_tokens, self.output_tokens) < 1).any()):
            raise ValueError("prompts and answers have at least one token")
        if bool((self.arrival_s[1:] < self.arrival_s[:-1]).any()):
            raise ValueError("arrivals must ascend")
        self._check_followers()

    def _check_followers(self) -> None:
        if (self.after is None) != (self.think_s is None):
            raise ValueError("who follows whom and the time to think come together")
        if self.after is None or self.think_s is None:
            return
        if self.concurrency is not None:
            raise ValueError("in a closed loop any end brings the next request; nobody can follow a certain one")
        follows = self.after >= 0
        if bool((np.isnan(self.arrival_s) != follows).any()) or bool((self.after >= np.arange(len(self))).any()):
            raise ValueError("a request that follows another has no arrival of its own and stands behind it")
        if not bool((self.think_s[follows] >= 0).all()) or len(np.unique(self.after[follows])) < follows.sum():
            raise ValueError("think times are at least 0, and a request has at most one follower")

    def __len__(self) -> int:
        return len(self.arrival_s)


def _sources(
    workloads: Mapping[str, Workload],
    traces: Mapping[str, Trace] | None,
    seed: np.random.SeedSequence | int,
    max_model_len: int,
) -> dict[str, WorkloadSource]:
    if not workloads:
        raise ValueError("a stream needs at least one workload")
    root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    return {
        name: WorkloadSource(name, workload, (traces or {}).get(name), root, max_model_len)
        for name, workload in workloads.items()
    }


def _merged(parts: Mapping[str, Part], workloads: Mapping[str, Workload], span_s: float) -> RequestStream:
    """One stream by time; at equal times the workload listed first comes first."""
    rows = list(parts.values())
    document, document_tokens = _documents(rows, [workloads[name].prefix for name in parts])
    session = _sessions(rows)
    prefix_ids, prefix_block_tokens = _prefixes(rows)
    priority = np.array([workloads[name].priority for name in parts], dtype=np.int64)
    arrival_s = np.concatenate([part.arrival_s for part in rows])
    index = np.repeat(np.arange(len(rows), dtype=np.int32), [len(part.arrival_s) for part in rows])
    order = np.argsort(arrival_s, kind="stable")
    return RequestStream(
        arrival_s=arrival_s[order],
        prompt_tokens=np.concatenate([part.prompt_tokens for part in rows])[order],
        output_tokens=np.concatenate([part.output_tokens for part in rows])[order],
        workload=index[order],
        workload_names=tuple(parts),
        span_s=span_s,
        clipped_fraction=tuple(part.clipped_fraction for part in rows),
        document=document[order] if document is not None else None,
        document_tokens=document_tokens[order] if document_tokens is not None else None,
        priority=priority[index[order]] if priority.any() else None,
        session=session[order] if session is not None else None,
        prefix_ids=prefix_ids.take(order) if prefix_ids is not None else None,
        prefix_block_tokens=prefix_block_tokens,
    )


def _sessions(parts: Sequence[Part]) -> Tokens | None:
    """Sessions numbered through over all workloads."""
    if all(part.session is None for part in parts):
        return None
    sessions: list[Tokens] = []
    before = 0
    for part in parts:
        if part.session is None:
            sessions.append(np.full(len(part.arrival_s), -1, dtype=np.int64))
            continue
        sessions.append(part.session + before)
        before += int(part.session.max(initial=-1)) + 1
    return np.concatenate(sessions)


def _prefixes(parts: Sequence[Part]) -> tuple[Rows | None, int | None]:
    """Ids of recorded blocks over all workloads, where nothing of two workloads is equal.

    Recordings in blocks of different sizes are cut to their greatest common divisor: a block of k small ones becomes
    k ids, which says the same of its end; the ends within are shared only with requests that share the whole.
    """
    sizes = [part.prefix_block_tokens for part in parts if part.prefix_block_tokens is not None]
    if not sizes:
        return None, None
    size = math.gcd(*sizes)
    values: list[Tokens] = []
    counts: list[Tokens] = []
    before = 0
    for part in parts:
        if part.prefix_ids is None or part.prefix_block_tokens is None:
            counts.append(np.zeros(len(part.arrival_s), dtype=np.int64))
            continue
        pieces = part.prefix_block_tokens // size
        ids = np.repeat(part.prefix_ids.values * pieces, pieces)
        ids += np.tile(np.arange(pieces), len(part.prefix_ids.values)) + before
        values.append(ids)
        counts.append(part.prefix_ids.count * pieces)
        before = int(ids.max(initial=before - 1)) + 1
    return Rows(values=np.concatenate(values), count=np.concatenate(counts)), size


def _documents(parts: Sequence[Part], prefixes: Sequence[Prefix | None]) -> tuple[Tokens | None, Tokens | None]:
    """Documents numbered through over all workloads: what two workloads send is never the same."""
    if all(part.document is None for part in parts):
        return None, None
    documents: list[Tokens] = []
    tokens: list[Tokens] = []
    before = 0
    for part, prefix in zip(parts, prefixes, strict=True):
        none = np.zeros(len(part.arrival_s), dtype=np.int64)
        documents.append(part.document + before if part.document is not None else none - 1)
        tokens.append(part.document_tokens if part.document_tokens is not None else none)
        before += prefix.documents if prefix is not None else 0
    return np.concatenate(documents), np.concatenate(tokens)


def make_stream(
    workloads: Mapping[str, Workload],
    *,
    multiplier: float,
    seed: np.random.SeedSequence | int,
    max_model_len: int,
    requests: Mapping[str, int] | None = None,
    duration_s: float | None = None,
    traces: Mapping[str, Trace] | None = None,
) -> RequestStream:
    """The stream at ``multiplier`` x the written rates: exact counts per workload, or all arrivals up to a duration.

    With counts the workloads end at different times and ``span_s`` is the last arrival. A closed loop takes counts
    only, and stands alone; its first ``concurrency`` requests arrive at 0, the rest are NaN.
    """
    if (requests is None) == (duration_s is None):
        raise ValueError("give either requests or duration_s")
    if not multiplier > 0:
        raise ValueError(f"multiplier {multiplier} is not allowed; it must be greater than zero")
    if requests is not None and (missing := [name for name in workloads if requests.get(name, 0) < 1]):
        raise ValueError(f"no number of requests for {', '.join(missing)}")
    parts: dict[str, Part] = {}
    for name, source in _sources(workloads, traces, seed, max_model_len).items():
        traffic = source.workload.traffic
        if isinstance(traffic, ClosedTraffic):
            if requests is None or len(workloads) > 1 or multiplier != 1:
                raise ValueError("a closed loop stands alone, with a number of requests, at multiplier 1")
            return _closed_loop(source, name, requests[name], traffic.concurrency)
        if requests is not None:
            parts[name] = source.first(requests[name], multiplier)
        elif duration_s is not None:
            parts[name] = source.until(duration_s, multiplier)
    span_s = duration_s if duration_s is not None else max(float(part.arrival_s[-1]) for part in parts.values())
    return _merged(parts, workloads, span_s)


def _closed_loop(source: WorkloadSource, name: str, count: int, concurrency: int) -> RequestStream:
    arrival_s = np.full(count, np.nan)
    arrival_s[:concurrency] = 0.0
    part = source.part(arrival_s)
    return RequestStream(
        arrival_s=arrival_s,
        prompt_tokens=part.prompt_tokens,
        output_tokens=part.output_tokens,
        workload=np.zeros(count, dtype=np.int32),
        workload_names=(name,),
        span_s=math.nan,
        clipped_fraction=(part.clipped_fraction,),
        concurrency=concurrency,
        document=part.document,
        document_tokens=part.document_tokens,
        priority=np.full(count, source.workload.priority) if source.workload.priority else None,
    )


class StreamSource:
    """One seed's requests, drawn once, at any load: `stream` costs a division, and a merge where there are traces.

    All workloads cover the same time span, chosen so that together they have about ``requests`` requests and each at
    least ``min_requests_per_workload``: exactly for drawn arrivals; for a trace at multiplier 1, and elsewhere up to
    its own fluctuations. At multiplier m the span is ``span_s`` / m, so the number of requests does not depend on m.
    """

    def __init__(
        self,
        workloads: Mapping[str, Workload],
        *,
        seed: np.random.SeedSequence | int,
        requests: int,
        max_model_len: int,
        min_requests_per_workload: int = 0,
        traces: Mapping[str, Trace] | None = None,
    ):
        if requests < 1:
            raise ValueError(f"requests {requests} is not allowed; at least 1 is needed")
        sources = _sources(workloads, traces, seed, max_model_len)
        if any(isinstance(source.workload.traffic, ClosedTraffic) for source in sources.values()):
            raise ValueError("a closed loop has no rate to multiply; use make_stream")
        span_s = requests / sum(source.rate_rps for source in sources.values())
        if min_requests_per_workload > 0:
            least_s = [float(source.first(min_requests_per_workload, 1.0).arrival_s[-1]) for source in sources.values()]
            span_s = max(span_s, max(least_s) * (1 + 1e-9))  # so that rounding does not cut off the last one
        self.span_s = span_s
        self._sources = sources
        self._parts = {name: source.until(span_s, 1.0) for name, source in sources.items() if source.replay is None}
        self._workloads = workloads
        self._unit = _merged(self._parts, workloads, span_s) if len(self._parts) == len(sources) else None

    def stream(self, multiplier: float) -> RequestStream:
        """The mix at ``multiplier`` x the written rates. Streams share all columns but the times: do not write them."""
        if not multiplier > 0:
            raise ValueError(f"multiplier {multiplier} is not allowed; it must be greater than zero")
        span_s = self.span_s / multiplier
        if self._unit is not None:
            return replace(self._unit, arrival_s=self._unit.arrival_s / multiplier, span_s=span_s)
        parts: dict[str, Part] = {}
        for name, source in self._sources.items():
            if source.replay is not None:
                parts[name] = source.until(span_s, multiplier)
            else:
                parts[name] = replace(self._parts[name], arrival_s=self._parts[name].arrival_s / multiplier)
        return _merged(parts, self._workloads, span_s)
