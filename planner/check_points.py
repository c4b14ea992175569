"""Checked rows as a planner sees them: points to choose among, and sweeps to read a capacity off.

Rows that the profile cannot tell apart (one configuration, shape and load; other dates and builds) are one point, with
the median of what they measured. A sweep is one configuration on one shape at several loads. `max_num_seqs` sets a
point apart only where it is fewer than the requests in flight: a seat that is never wanted changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.profile_check import CheckedRow
from simulator.benchmark_rows import BenchmarkRow
from simulator.choice_quality import ChoiceQuality, choice_quality, limit_grid
from simulator.load_curve import CapacityError, LoadCurve, capacity_error

__all__ = ["Capacities", "Judgement", "OperatingPoint", "SweepCapacity", "judge", "operating_points"]

FLAGS = ("max_num_batched_tokens", "kv_cache_dtype", "async_scheduling", "all_reduce_bits", "tpot_statistic")
"""What sets configurations of one degree apart, with the statistic that their rows give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """One configuration at one load on one shape, measured and predicted."""

    shape: str
    tensor_parallel_size: int
    flags: tuple[tuple[str, str], ...]
    """What else sets the configuration apart, by name."""
    open_loop: bool
    load: float
    """Requests in flight; in an open loop, requests per second."""
    rows: int
    """Measured runs in it."""
    weight: float
    """Of its most trusted row; 1 = full weight."""
    measured_tpot_s: float
    predicted_tpot_s: float
    measured_tokens_per_s_per_gpu: float
    """NaN = no row holds it."""
    predicted_tokens_per_s_per_gpu: float
    measured_ttft_s: float
    """NaN = no row holds it."""
    predicted_ttft_s: float

    @property
    def sweep(self) -> tuple[str, int, bool, tuple[tuple[str, str], ...]]:
        """What it shares with the other points of its sweep."""
        return self.shape, self.tensor_parallel_size, self.open_loop, self.flags


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCapacity:
    """Predicted against measured capacity of one sweep within one limit."""

    shape: str
    tensor_parallel_size: int
    open_loop: bool
    flags: tuple[tuple[str, str], ...]
    tpot_limit_s: float
    ttft_limit_s: float | None
    error: CapacityError


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacities:
    """Every sweep within every limit that tells something."""

    sweeps: tuple[SweepCapacity, ...]

    def errors(self, *, of_load: bool) -> tuple[float, ...]:
        """Errors of the highest load, or of the highest throughput per GPU, where they are known."""
        found = [sweep.error.load_error if of_load else sweep.error.throughput_error for sweep in self.sweeps]
        return tuple(error for error in found if not np.isnan(error))

    @property
    def bounded(self) -> int:
        """Errors that an end of the sweep only bounds."""
        return sum(sweep.error.bounded for sweep in self.sweeps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What checked rows say of decisions made by their predictions."""

    points: tuple[OperatingPoint, ...]
    tpot_limits_s: tuple[float, ...]
    ttft_limit_s: float | None
    """Held beside each of them in the capacities."""
    capacities: Capacities
    choices: ChoiceQuality
    """Its places are places in `points`."""


def judge(
    rows: Sequence[CheckedRow], tpot_limits_s: Sequence[float] = (), ttft_limit_s: float | None = None
) -> Judgement:
    """Capacities and choices within these limits on TPOT; without any, within round ones over the measured range."""
    points = operating_points(rows)
    limits_s = tuple(sorted(set(tpot_limits_s))) or limit_grid([point.measured_tpot_s for point in points])
    return Judgement(
        points=points,
        tpot_limits_s=limits_s,
        ttft_limit_s=ttft_limit_s,
        capacities=_capacities(points, limits_s, ttft_limit_s),
        choices=_choices(points, limits_s),
    )


def operating_points(rows: Sequence[CheckedRow]) -> tuple[OperatingPoint, ...]:
    """The points of the rows, sweep by sweep in rising order of load."""
    groups: dict[tuple[str, int, bool, tuple[tuple[str, str], ...], float], list[CheckedRow]] = {}
    for checked in rows:
        row = checked.row
        load = row.request_rate_rps if row.concurrency is None else float(row.concurrency)
        key = (checked.shape, row.tensor_parallel_size, row.concurrency is None, _flags(row), load or 0.0)
        groups.setdefault(key, []).append(checked)
    return tuple(_point(*key, groups[key]) for key in sorted(groups, key=_shape_first))


def _shape_first(key: tuple[str, int, bool, tuple[tuple[str, str], ...], float]) -> tuple[object, ...]:
    shape, degree, open_loop, flags, load = key
    lengths = shape.split(" ")[0].split("/")
    return (*map(int, lengths), shape, degree, open_loop, flags, load)


def _flags(row: BenchmarkRow) -> tuple[tuple[str, str], ...]:
    flags = [(name, str(getattr(row, name))) for name in FLAGS]
    if row.concurrency is None or row.max_num_seqs < row.concurrency:
        flags.append(("max_num_seqs", str(row.max_num_seqs)))
    return tuple(flags)


def _point(
    shape: str,
    degree: int,
    open_loop: bool,
    flags: tuple[tuple[str, str], ...],
    load: float,
    rows: Sequence[CheckedRow],
) -> OperatingPoint:
    predicted, measured = np.array([checked.pairs() for checked in rows], dtype=np.float64).transpose(2, 1, 0)
    tpot_s, tokens_per_s, ttft_s = (_median(values) for values in measured)
    predicted_tpot_s, predicted_tokens_per_s, predicted_ttft_s = (_median(values) for values in predicted)
    return OperatingPoint(
        shape=shape,
        tensor_parallel_size=degree,
        flags=flags,
        open_loop=open_loop,
        load=load,
        rows=len(rows),
        weight=max(checked.row.weight for checked in rows),
        measured_tpot_s=tpot_s,
        predicted_tpot_s=predicted_tpot_s,
        measured_tokens_per_s_per_gpu=tokens_per_s / degree,
        predicted_tokens_per_s_per_gpu=predicted_tokens_per_s / degree,
        measured_ttft_s=ttft_s,
        predicted_ttft_s=predicted_ttft_s,
    )


def _median(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    """Of what is known; NaN where nothing is."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")


def _choices(points: Sequence[OperatingPoint], limits_s: Sequence[float]) -> ChoiceQuality:
    """What a planner would choose on each shape within each limit. Places in it are places in `points`."""
    return choice_quality(
        measured_tpot_s=[point.measured_tpot_s for point in points],
        measured_tokens_per_s_per_gpu=[point.measured_tokens_per_s_per_gpu for point in points],
        predicted_tpot_s=[point.predicted_tpot_s for point in points],
        predicted_tokens_per_s_per_gpu=[point.predicted_tokens_per_s_per_gpu for point in points],
        shapes=[point.shape for point in points],
        limits_s=limits_s,
    )


def _capacities(points: Sequence[OperatingPoint], limits_s: Sequence[float], ttft_limit_s: float | None) -> Capacities:
    """Capacity of each sweep of two points or more within each limit; with a limit on TTFT, of those that hold it."""
    sweeps: dict[tuple[object, ...], list[OperatingPoint]] = {}
    for point in points:
        if ttft_limit_s is None or not np.isnan(point.measured_ttft_s):
            sweeps.setdefault(point.sweep, []).append(point)
    found = []
    for sweep in sweeps.values():
        if len(sweep) < 2:
            continue
        measured, predicted = _curve(sweep, "measured"), _curve(sweep, "predicted")
        for limit_s in limits_s:
            error = capacity_error(measured, predicted, tpot_limit_s=limit_s, ttft_limit_s=ttft_limit_s)
            if error is not None:
                found.append(
                    SweepCapacity(
                        shape=sweep[0].shape,
                        tensor_parallel_size=sweep[0].tensor_parallel_size,
                        open_loop=sweep[0].open_loop,
                        flags=sweep[0].flags,
                        tpot_limit_s=limit_s,
                        ttft_limit_s=ttft_limit_s,
                        error=error,
                    )
                )
    return Capacities(sweeps=tuple(found))


def _curve(sweep: Sequence[OperatingPoint], side: str) -> LoadCurve:
    def values(name: str) -> list[float]:
        return [getattr(point, f"{side}_{name}") for point in sweep]

    tokens = np.array(values("tokens_per_s_per_gpu"))
    unknown = np.isnan([point.measured_tokens_per_s_per_gpu for point in sweep])
    return LoadCurve(
        load=np.array([point.load for point in sweep]),
        tokens_per_s_per_gpu=np.where(unknown, np.nan, tokens),
        tpot_s=np.array(values("tpot_s")),
        ttft_s=np.array(values("ttft_s")),
    )
