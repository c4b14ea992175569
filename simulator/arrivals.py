"""One workload's endless sequence of requests for one seed, of which any beginning can be cut.

Gaps, prompts, answers and documents come from generators of their own, named by the seed, the workload's name and their
purpose. numpy draws one value after another, so a longer cut begins with the shorter one, and no cut depends on another
workload.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from simulator.lengths import Tokens, clip_lengths, draw_lengths
from simulator.replay import TraceReplay
from simulator.rows import Rows
from simulator.shared_prefix import draw_documents
from simulator.traces import Trace
from simulator.traffic import ClosedTraffic, RateTraffic, TraceTraffic, Workload

__all__ = ["Part", "Seconds", "WorkloadSource", "offered_rps"]

Seconds: TypeAlias = npt.NDArray[np.float64]

_GAPS, _PROMPTS, _OUTPUTS, _REPLAY, _DOCUMENTS = range(5)


def offered_rps(workload: Workload, trace: Trace | None = None) -> float:
    """Mean requests per second that a workload offers at multiplier 1; a batch is spread evenly over its time."""
    if workload.batch is not None:
        return workload.batch.rate_rps
    if isinstance(workload.traffic, RateTraffic):
        return workload.traffic.rate_rps
    if isinstance(workload.traffic, TraceTraffic) and trace is not None:
        return workload.traffic.scale * trace.rate_rps
    raise ValueError("a closed loop offers no rate, and a trace workload's rate needs its trace")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """Requests of one workload, ascending, before merging."""

    arrival_s: Seconds
    prompt_tokens: Tokens
    output_tokens: Tokens
    clipped_fraction: float
    document: Tokens | None = None
    "Counted from 0 within the workload; None = its prompts share nothing."
    document_tokens: Tokens | None = None
    "Tokens of the prompt that are the document: all of it, or what a shorter prompt holds."
    session: Tokens | None = None
    "Counted from 0 within the workload; None = it has none."
    prefix_ids: Rows | None = None
    "Ids of recorded blocks, from 0 within the workload."
    prefix_block_tokens: int | None = None
    "Tokens of these blocks."


class WorkloadSource:
    """One workload and one seed; `part` cuts any number of requests from the same endless sequence."""

    def __init__(
        self, name: str, workload: Workload, trace: Trace | None, seed: np.random.SeedSequence, max_model_len: int
    ):
        digest = hashlib.sha256(name.encode()).digest()
        words = tuple(int.from_bytes(digest[start : start + 4], "little") for start in (0, 4))
        self.workload = workload
        self.max_model_len = max_model_len
        self._seed = seed
        self._key = (*seed.spawn_key, *words)
        self.replay: TraceReplay | None = None
        self.rate_rps = math.nan
        self.scale = 1.0
        if not isinstance(workload.traffic, ClosedTraffic):
            self.rate_rps = offered_rps(workload, trace)
        if isinstance(workload.traffic, TraceTraffic) and trace is not None:
            self.scale = workload.traffic.scale
            self.replay = TraceReplay(trace, self._child(_REPLAY))
            self._trace_lengths = clip_lengths(trace.prompt_tokens, trace.output_tokens, max_model_len=max_model_len)
            self._ids = None if trace.prefix_ids is None else _counted_ids(trace.prefix_ids)

    def _child(self, purpose: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self._seed.entropy, spawn_key=(*self._key, purpose))

    def units(self, count: int) -> Seconds:
        """Arrival times of the first ``count`` requests at rate 1."""
        generator = np.random.default_rng(self._child(_GAPS))
        if not isinstance(self.workload.traffic, RateTraffic):
            return np.arange(count, dtype=np.float64) + generator.random()  # a batch: even spacing from a random start
        shape = self.workload.traffic.gamma_shape
        gaps = generator.standard_exponential(count) if shape == 1 else generator.standard_gamma(shape, count) / shape
        units: Seconds = np.cumsum(gaps)
        return units

    def units_until(self, limit: float) -> Seconds:
        """Arrival times at rate 1 that are at most ``limit``."""
        shape = self.workload.traffic.gamma_shape if isinstance(self.workload.traffic, RateTraffic) else 1.0
        count = math.ceil(limit + 6 * math.sqrt((limit + 1) / min(shape, 1.0)) + 20)
        while True:
            units = self.units(count)
            if units[-1] > limit:
                return units[: int(np.searchsorted(units, limit, side="right"))]
            count *= 2

    def part(self, arrival_s: Seconds) -> Part:
        """The first ``len(arrival_s)`` requests, arriving then."""
        isl, osl = self.workload.isl, self.workload.osl
        assert isl is not None and osl is not None  # checked by Workload
        prompt, output, clipped = clip_lengths(
            draw_lengths(isl, len(arrival_s), np.random.default_rng(self._child(_PROMPTS))),
            draw_lengths(osl, len(arrival_s), np.random.default_rng(self._child(_OUTPUTS))),
            max_model_len=self.max_model_len,
        )
        part = Part(arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output, clipped_fraction=_share(clipped))
        prefix = self.workload.prefix
        if prefix is None:
            return part
        return replace(
            part,
            document=draw_documents(prefix, len(arrival_s), np.random.default_rng(self._child(_DOCUMENTS))),
            document_tokens=np.minimum(prefix.tokens, prompt),
        )

    def first(self, count: int, multiplier: float) -> Part:
        """The first ``count`` requests at ``multiplier`` x the written rate."""
        if self.replay is not None:
            return self._replayed(*self.replay.first(load=self.scale * multiplier, count=count))
        return self.part(self.units(count) / (self.rate_rps * multiplier))

    def until(self, span_s: float, multiplier: float) -> Part:
        """The requests of the first ``span_s`` seconds at ``multiplier`` x the written rate."""
        if self.replay is not None:
            return self._replayed(*self.replay.window(load=self.scale * multiplier, span_s=span_s))
        rate_rps = self.rate_rps * multiplier
        return self.part(self.units_until(rate_rps * span_s) / rate_rps)

    def _replayed(self, arrival_s: Seconds, rows: Tokens, playing: Tokens) -> Part:
        """Rows of the recording; other playings of it are other users, so their sessions and ids are others."""
        prompt, output, clipped = self._trace_lengths
        assert self.replay is not None
        trace = self.replay.trace
        session, ids = trace.session, None
        if session is not None:
            session = session[rows] + playing * (int(session.max()) + 1)
        if self._ids is not None:
            ids = self._ids.take(rows)
            ids.values[:] += np.repeat(playing, ids.count) * (int(self._ids.values.max(initial=0)) + 1)
        return Part(
            arrival_s=arrival_s,
            prompt_tokens=prompt[rows],
            output_tokens=output[rows],
            clipped_fraction=_share(clipped[rows]),
            session=session,
            prefix_ids=ids,
            prefix_block_tokens=trace.prefix_block_tokens,
        )


def _counted_ids(ids: Rows) -> Rows:
    """The same ids counted from 0, in order: further playings of recorded hashes would overflow."""
    _, counted = np.unique(ids.values, return_inverse=True)
    return Rows(values=counted.astype(np.int64), count=ids.count)


def _share(flags: npt.NDArray[np.bool_]) -> float:
    return float(np.count_nonzero(flags)) / len(flags) if len(flags) else 0.0
