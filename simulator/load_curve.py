"""Capacity read off measured points: how much load a replica takes before it breaks a latency limit.

A sweep of one configuration on one shape gives latency and throughput at a few loads (requests in flight, or a rate).
Between the last point within the limits and the next one, ln(load), ln(latency) and ln(throughput) are taken as
straight lines; the capacity stands where the first limit is reached. Predictions for the same points are read the same
way, so the two differ by the prediction alone, and not by which point happens to lie just beyond the limit.

Outside the sweep nothing is known: a curve that stays within the limits has at least the capacity of its last point,
one that is never within at most that of its first. Errors against such an end are at least as large as they look.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Capacity", "CapacityError", "LoadCurve", "capacity", "capacity_error"]

Floats = NDArray[np.float64]
Bound = Literal["at least", "at most"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadCurve:
    """A sweep of one configuration, in rising order of load."""

    load: Floats
    """Requests in flight, or requests per second."""
    tokens_per_s_per_gpu: Floats
    """NaN = not known, as in an open loop, where the rate decides."""
    tpot_s: Floats
    ttft_s: Floats
    """NaN = not known."""

    def __post_init__(self) -> None:
        if len(self.load) == 0 or not bool((np.diff(self.load) > 0).all()):
            raise ValueError("a load curve needs points whose load rises")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The most that a configuration carries within the limits."""

    load: float
    tokens_per_s_per_gpu: float
    """NaN = not known."""
    bound: Bound | None
    """None = it lies between two points of the sweep; else the end of the sweep bounds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityError:
    """Predicted against measured capacity of one configuration on one shape."""

    measured: Capacity
    predicted: Capacity

    @property
    def throughput_error(self) -> float:
        """NaN where throughput is not known."""
        return self.predicted.tokens_per_s_per_gpu / self.measured.tokens_per_s_per_gpu - 1.0

    @property
    def load_error(self) -> float:
        return self.predicted.load / self.measured.load - 1.0

    @property
    def bounded(self) -> bool:
        """One of the two is only known by an end of the sweep: the error is at least as large as it looks."""
        return self.measured.bound is not None or self.predicted.bound is not None


def capacity_error(
    measured: LoadCurve, predicted: LoadCurve, *, tpot_limit_s: float, ttft_limit_s: float | None = None
) -> CapacityError | None:
    """Both capacities within the limits; None where the sweep ends on the same side for both, which tells nothing."""
    here, there = (
        capacity(curve, tpot_limit_s=tpot_limit_s, ttft_limit_s=ttft_limit_s) for curve in (measured, predicted)
    )
    return (
        None if here.bound is not None and here.bound == there.bound else CapacityError(measured=here, predicted=there)
    )


def capacity(curve: LoadCurve, *, tpot_limit_s: float, ttft_limit_s: float | None = None) -> Capacity:
    """The highest load within the limits, and the highest throughput up to there.

    A point without a TTFT cannot be within a limit on it.
    """
    watched = [(curve.tpot_s, tpot_limit_s)]
    if ttft_limit_s is not None:
        watched.append((curve.ttft_s, ttft_limit_s))
    within = np.all([values <= limit for values, limit in watched], axis=0)
    if not within.any():
        return Capacity(
            load=float(curve.load[0]), tokens_per_s_per_gpu=float(curve.tokens_per_s_per_gpu[0]), bound="at most"
        )
    last = int(np.flatnonzero(within)[-1])
    most = float(np.max(curve.tokens_per_s_per_gpu[within]))
    if last + 1 == len(curve.load):
        return Capacity(load=float(curve.load[last]), tokens_per_s_per_gpu=most, bound="at least")
    way = min(_way(values[last], values[last + 1], limit) for values, limit in watched)
    return Capacity(
        load=_between(curve.load, last, way),
        tokens_per_s_per_gpu=max(most, _between(curve.tokens_per_s_per_gpu, last, way)),
        bound=None,
    )


def _way(here: float, there: float, limit: float) -> float:
    """How far from here, within the limit, to there the limit is reached, in logarithms; 1 = not before there."""
    if math.isnan(there):
        return 0.0
    return 1.0 if there <= limit else math.log(limit / here) / math.log(there / here)


def _between(values: Floats, last: int, way: float) -> float:
    return float(values[last] * (values[last + 1] / values[last]) ** way)
