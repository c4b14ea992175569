"""What a run was worth: goodput, attainment, percentiles, for a simulated and a measured log alike (design 5).

A request is *good* if it finished and met every per-request target that applies to it; an answer of one token has no
TPOT and is judged by the rest. Failed, rejected and unfinished requests are not good and stay in the denominator: their
latencies count as infinite in percentiles. Only requests that arrived in the window are judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite

import numpy as np
from numpy.typing import NDArray

from simulator.log import RequestLog
from simulator.slo import Metric, PercentileTarget
from simulator.traffic import Workload

__all__ = [
    "Pressure",
    "Score",
    "Targets",
    "WorkloadScore",
    "cached_fraction",
    "required_requests",
    "score",
    "targets_of",
]

Floats = NDArray[np.float64]

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What was promised for one workload, in seconds."""

    per_request_s: Mapping[Metric, float]
    """Limits that each request must meet to be good."""
    percentiles: tuple[PercentileTarget, ...]
    """Limits on the workload's percentiles."""
    attainment: float
    """Share of requests that must be good."""
    deadline_s: float | None
    """Batch work: longest time from arrival to finish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """How close one target is to breaking."""

    target: str
    """As the user wrote it, e.g. `ttft_ms` or `itl_p99_ms`."""
    value_s: float
    """The percentile that the target looks at: p99 for a per-request target at attainment 0.99."""
    limit_s: float

    @property
    def ratio(self) -> float:
        """Above 1 the target is missed."""
        return self.value_s / self.limit_s

    @property
    def sentence(self) -> str:
        """Too many that never finished give no value."""
        value = f"{self.value_s * 1e3:,.0f} ms" if isfinite(self.value_s) else "without end"
        return f"{self.target}: {value} against {self.limit_s * 1e3:,.0f} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadScore:
    """One workload's part of a run."""

    name: str
    judged: int
    """Requests that arrived in the window."""
    finished: int
    failed: int
    rejected: int
    unfinished: int
    good: int
    target_attainment: float
    percentiles_s: Mapping[Metric, tuple[float, float, float, float]]
    """p50, p90, p95 and p99 by metric; NaN where nothing applies, infinite where too many never finished."""
    means_s: Mapping[Metric, float]
    """Means over finished requests; ITL over gaps."""
    stall_p50_s: float
    """Of the longest gap of each finished request with two tokens or more; NaN without any."""
    stall_p99_s: float
    longest_stall_s: float
    """Longest gap between two tokens of any finished request."""
    output_tokens_per_s: float
    """Of all requests of the window, per second of the window."""
    goodput_tokens_per_s: float
    """Output tokens of good requests per second of the window."""
    pressures: tuple[Pressure, ...]
    """Every target, the tightest first."""
    missed_percentiles: tuple[str, ...]
    """Percentile targets that do not hold; one that applies to no request or gap of this run is not missed."""
    preemptions: int
    prompt_tokens: int
    """Of the judged requests that an engine began."""
    cached_tokens: int
    """How many of them it found in the prefix cache."""

    @property
    def attainment(self) -> float:
        """Share of judged requests that were good; NaN without any."""
        return self.good / self.judged if self.judged else float("nan")

    @property
    def meets(self) -> bool:
        """True when every target of this workload holds in this run."""
        return self.judged > 0 and self.attainment >= self.target_attainment and not self.missed_percentiles

    @property
    def required_requests(self) -> int:
        """Judged requests that a decision at this attainment takes: 10 / (1 - attainment)."""
        return required_requests(self.target_attainment)

    @property
    def decidable(self) -> bool:
        return self.judged >= self.required_requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A whole run."""

    workloads: tuple[WorkloadScore, ...]
    window_s: float
    """Length of the judged stretch."""
    offered_rps: float
    """Arrivals in the window per second."""
    in_flight_start: int
    """Requests in the system when the window opened."""
    in_flight_end: int
    """Requests in the system when it closed."""
    in_flight_mean: float
    """Time average over the window, from arrivals and finishes."""
    growth_fraction: float
    """Requests the system gained through the window, over arrivals: 0 when steady, near 1 when few are served."""
    saturated: bool
    """The queue grew through the window: offered load above capacity."""
    window_complete: bool
    prefill_fraction: float
    """Share of replica time busy with prompts; NaN for a measured run."""
    decode_fraction: float
    """Share of replica time busy with decoding; NaN for a measured run."""
    preemptions: int

    @property
    def meets(self) -> bool:
        """True when all targets of all workloads hold and the load is carried."""
        return not self.saturated and all(w.meets for w in self.workloads)

    @property
    def goodput_tokens_per_s(self) -> float:
        return sum(w.goodput_tokens_per_s for w in self.workloads)

    @property
    def output_tokens_per_s(self) -> float:
        return sum(w.output_tokens_per_s for w in self.workloads)

    @property
    def tightest(self) -> tuple[str, Pressure]:
        """The workload and the target nearest to breaking, or most broken."""
        rows = [(w.name, w.pressures[0]) for w in self.workloads if w.pressures]
        return max(rows, key=lambda row: (row[1].ratio, row[0]))

    def workload(self, name: str) -> WorkloadScore:
        return next(w for w in self.workloads if w.name == name)


def cached_fraction(rows: Sequence[WorkloadScore]) -> float | None:
    """Share of the prompt tokens of begun requests that were found in the prefix cache; None of nothing."""
    prompt_tokens = sum(row.prompt_tokens for row in rows)
    return sum(row.cached_tokens for row in rows) / prompt_tokens if prompt_tokens else None


def required_requests(attainment: float) -> int:
    """Requests needed to decide an attainment target: ten expected misses."""
    return int(np.ceil(10 / (1 - attainment) * (1 - 1e-9)))  # 1 - 0.9999 is not quite 1e-4


def targets_of(workload: Workload) -> Targets:
    """The targets of a scenario's workload; a batch adds its deadline."""
    return Targets(
        per_request_s=workload.slo.per_request_s(),
        percentiles=workload.slo.percentile_targets(),
        attainment=workload.slo.attainment,
        deadline_s=workload.batch.deadline_s if workload.batch is not None else None,
    )


def score(log: RequestLog, targets: Mapping[str, Targets]) -> Score:
    """Judge the window of a log."""
    start_s, end_s = log.window_s
    length_s = end_s - start_s
    judged = log.phase == 1
    workloads = tuple(
        _score_workload(log, np.flatnonzero(judged & (log.workload == index)), index, targets[name], length_s)
        for index, name in enumerate(log.workload_names)
    )
    # A failed request whose end is not known was there for an unknown time: leaving it out is nearer than for ever.
    entered = (log.status != 2) & ~((log.status == 1) & np.isnan(log.finish_s))
    gone_s = np.where(np.isnan(log.finish_s), np.inf, log.finish_s)
    at_start = int((entered & (log.arrival_s < start_s) & (gone_s > start_s)).sum())
    at_end = int((entered & (log.arrival_s < end_s) & (gone_s > end_s)).sum())
    stay_s = np.clip(gone_s, start_s, end_s) - np.clip(log.arrival_s, start_s, end_s)
    arrivals = int((entered & judged).sum())
    growth = at_end - at_start
    times = log.replica_times
    replica_s = log.end_s * len(times.prefill_s) if times is not None else float("nan")
    return Score(
        workloads=workloads,
        window_s=length_s,
        offered_rps=int(judged.sum()) / length_s,
        in_flight_start=at_start,
        in_flight_end=at_end,
        in_flight_mean=float(stay_s[entered].sum()) / length_s,
        growth_fraction=growth / max(arrivals, 1),
        saturated=growth > 0.02 * arrivals and growth > 6 * np.sqrt(at_start + 25.0),
        window_complete=log.window_complete,
        prefill_fraction=float(times.prefill_s.sum()) / replica_s if times is not None else float("nan"),
        decode_fraction=float(times.decode_s.sum()) / replica_s if times is not None else float("nan"),
        preemptions=int(log.preemptions.sum()),
    )


def _score_workload(
    log: RequestLog, rows: NDArray[np.intp], index: int, targets: Targets, length_s: float
) -> WorkloadScore:
    status = log.status[rows]
    finished = status == 0
    tokens = log.output_tokens[rows]
    arrival_s, first_s, finish_s = log.arrival_s[rows], log.first_token_s[rows], log.finish_s[rows]
    with np.errstate(invalid="ignore", divide="ignore"):
        values: dict[Metric, Floats] = {
            "ttft": np.where(finished & ~np.isnan(first_s), first_s - arrival_s, np.inf),
            "tpot": np.where(finished, (finish_s - first_s) / (tokens - 1), np.inf),
            "e2e": np.where(finished, finish_s - arrival_s, np.inf),
        }
    several = ~finished | (tokens > 1)  # a finished one-token answer has no TPOT

    good = finished.copy()
    for metric, limit_s in targets.per_request_s.items():
        met = values[metric] <= limit_s
        good &= met | ~several if metric == "tpot" else met
    if targets.deadline_s is not None:
        good &= values["e2e"] <= targets.deadline_s

    ranked = {m: np.sort(v[several] if m == "tpot" else v) for m, v in values.items()}
    percentiles = {m: _percentiles(v) for m, v in ranked.items()}
    means = {m: _mean(v[finished & several] if m == "tpot" else v[finished]) for m, v in values.items()}
    percentiles["itl"], means["itl"] = _gap_percentiles(log, index)
    pressures = _pressures(ranked, percentiles, targets)
    missed = [t for t in targets.percentiles if percentiles[t.metric][PERCENTILES.index(t.percentile)] > t.limit_s]
    began = ~np.isnan(log.scheduled_s[rows])
    stalls_s = log.itl_max_s[rows][finished]
    stall_p50_s, stall_p99_s, longest_stall_s = _stalls(stalls_s[~np.isnan(stalls_s)])
    return WorkloadScore(
        name=log.workload_names[index],
        judged=len(rows),
        finished=int(finished.sum()),
        failed=int((status == 1).sum()),
        rejected=int((status == 2).sum()),
        unfinished=int((status == 3).sum()),
        good=int(good.sum()),
        target_attainment=targets.attainment,
        percentiles_s=percentiles,
        means_s=means,
        stall_p50_s=stall_p50_s,
        stall_p99_s=stall_p99_s,
        longest_stall_s=longest_stall_s,
        output_tokens_per_s=float(tokens.sum()) / length_s,
        goodput_tokens_per_s=float(tokens[good].sum()) / length_s,
        pressures=pressures,
        missed_percentiles=tuple(f"{t.metric}_p{t.percentile}_ms" for t in missed),
        preemptions=int(log.preemptions[rows].sum()),
        prompt_tokens=int(log.prompt_tokens[rows][began].sum()),
        cached_tokens=int(log.cached_tokens[rows][began].sum()),
    )


def _quantile(sorted_s: Floats, fraction: float) -> float:
    """The smallest of the sorted values that at least this share of them does not exceed; NaN of nothing."""
    if len(sorted_s) == 0:
        return float("nan")
    return float(sorted_s[_place(fraction, len(sorted_s))])


def _stalls(stalls_s: Floats) -> tuple[float, float, float]:
    """p50, p99 and the longest; only these three places are put in order, since a search scores thousands of runs."""
    count = len(stalls_s)
    if count == 0:
        return float("nan"), float("nan"), float("nan")
    places = [_place(0.5, count), _place(0.99, count), count - 1]
    p50, p99, longest = np.partition(stalls_s, places)[places]
    return float(p50), float(p99), float(longest)


def _place(fraction: float, count: int) -> int:
    """Where the smallest of so many sorted values stands that at least this share of them does not exceed."""
    return max(0, ceil(fraction * count - 1e-9) - 1)


def _percentiles(sorted_s: Floats) -> tuple[float, float, float, float]:
    p50, p90, p95, p99 = (_quantile(sorted_s, p / 100) for p in PERCENTILES)
    return p50, p90, p95, p99


def _mean(values_s: Floats) -> float:
    return float(values_s.mean()) if len(values_s) else float("nan")


def _gap_percentiles(log: RequestLog, index: int) -> tuple[tuple[float, float, float, float], float]:
    """Percentiles and mean of the token gaps, from the histogram: the geometric middle of a bin, at most 6 % off.

    Interpolating within the bin would be closer for gaps that spread and 12 % off for equal gaps, as those of a steady
    decode batch are.
    """
    counts = log.itl_counts[index]
    total = int(counts.sum())
    if total == 0:
        nan = float("nan")
        return (nan, nan, nan, nan), nan
    edges = log.itl_edges_s
    low = np.concatenate([edges[:1] / 1.122, edges])
    high = np.concatenate([edges, edges[-1:] * 1.122])
    middle = np.sqrt(low * high)
    ends = np.cumsum(counts)
    p50, p90, p95, p99 = (float(middle[np.searchsorted(ends, p / 100 * total)]) for p in PERCENTILES)
    return (p50, p90, p95, p99), float((counts * middle).sum() / total)


def _pressures(
    ranked: Mapping[Metric, Floats],
    percentiles: Mapping[Metric, tuple[float, float, float, float]],
    targets: Targets,
) -> tuple[Pressure, ...]:
    rows = [
        Pressure(
            target=f"{metric}_ms",
            value_s=_quantile(ranked[metric], targets.attainment),
            limit_s=limit_s,
        )
        for metric, limit_s in targets.per_request_s.items()
    ]
    rows += [
        Pressure(
            target=f"{t.metric}_p{t.percentile}_ms",
            value_s=percentiles[t.metric][PERCENTILES.index(t.percentile)],
            limit_s=t.limit_s,
        )
        for t in targets.percentiles
    ]
    if targets.deadline_s is not None:
        value_s = _quantile(ranked["e2e"], targets.attainment)
        rows.append(Pressure(target="within_hours", value_s=value_s, limit_s=targets.deadline_s))
    applying: Sequence[Pressure] = [row for row in rows if not np.isnan(row.value_s)]
    return tuple(sorted(applying, key=lambda row: -row.ratio))
