"""What predictions are worth to somebody who chooses by them: the configuration a planner picks, judged by measurement.

The candidates are measured points of one shape (prompt and answer length): tensor-parallel degree times load. A token
costs 1 / (tokens/s/GPU), so the planner takes the point of the highest *predicted* throughput per GPU among those whose
*predicted* TPOT is within the limit. The measurements then say whether the choice keeps the limit, and how much
throughput it gives away against the best point that does:

    excess = measured TPOT of the choice / limit - 1                     a violation where it is above 0
    regret = 1 - measured throughput of the choice / the best one's      of choices that keep the limit

A violating choice has no regret: what it gains in throughput it takes from its users. A limit that no point of a shape
misses, by measurement or by prediction, or that none meets, tells nothing and is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Choice", "ChoiceQuality", "choice_quality", "limit_grid"]

R10 = (1.0, 1.25, 1.6, 2.0, 2.5, 3.15, 4.0, 5.0, 6.3, 8.0)
"""Preferred numbers of ISO 3: ten to the decade, a quarter apart, whatever the rows are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One TPOT limit on one shape. Points are given by their place in the arrays."""

    shape: str
    limit_s: float
    chosen: int | None
    """The planner's point; None = no point is predicted within the limit."""
    best: int | None
    """The right one: most throughput per GPU within the limit by measurement; None = no point meets it."""
    excess: float | None
    """Measured TPOT of the choice / limit - 1; None without a choice."""
    regret: float | None
    """Share of the best point's throughput per GPU that is given away; None for a violation or without a choice."""

    @property
    def violates(self) -> bool:
        return self.excess is not None and self.excess > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceQuality:
    """All choices over a grid of limits, by shape."""

    choices: tuple[Choice, ...]

    @property
    def made(self) -> int:
        """Limits for which the predictions name a point."""
        return sum(choice.chosen is not None for choice in self.choices)

    @property
    def missed(self) -> int:
        """Limits that a point meets by measurement, but none by prediction: the planner says that nothing does."""
        return sum(choice.chosen is None for choice in self.choices)

    @property
    def violations(self) -> int:
        return sum(choice.violates for choice in self.choices)

    @property
    def worst_violation(self) -> float:
        """Largest measured TPOT of a choice / limit - 1; 0 where none violates."""
        return max((choice.excess or 0.0 for choice in self.choices if choice.violates), default=0.0)

    @property
    def median_regret(self) -> float | None:
        """Over the choices that keep their limit; None where none does."""
        regrets = [choice.regret for choice in self.choices if choice.regret is not None]
        return float(np.median(regrets)) if regrets else None

    @property
    def worst_regret(self) -> float | None:
        return max((choice.regret for choice in self.choices if choice.regret is not None), default=None)


def choice_quality(
    *,
    measured_tpot_s: ArrayLike,
    measured_tokens_per_s_per_gpu: ArrayLike,
    predicted_tpot_s: ArrayLike,
    predicted_tokens_per_s_per_gpu: ArrayLike,
    shapes: Sequence[str],
    limits_s: Sequence[float],
) -> ChoiceQuality:
    """Choose among the points of each shape within each limit. A point of which a number is NaN is no candidate."""
    numbers = [
        np.asarray(values, dtype=np.float64)
        for values in (
            measured_tpot_s,
            measured_tokens_per_s_per_gpu,
            predicted_tpot_s,
            predicted_tokens_per_s_per_gpu,
        )
    ]
    points = np.stack(numbers, axis=1) if len(shapes) else np.empty((0, 4))
    known = np.isfinite(points).all(axis=1)
    names = np.array(shapes)
    choices: list[Choice] = []
    for shape in dict.fromkeys(shapes):
        places = np.flatnonzero(known & (names == shape))
        of_shape = (_choice(shape, limit_s, points, places) for limit_s in sorted(set(limits_s)))
        choices.extend(choice for choice in of_shape if choice is not None)
    return ChoiceQuality(choices=tuple(choices))


def _choice(shape: str, limit_s: float, points: NDArray[np.float64], places: NDArray[np.intp]) -> Choice | None:
    """The choice among these places of (n, 4) points; None where the limit tells nothing."""
    tpot_s, tokens_per_s, predicted_tpot_s, predicted_tokens_per_s = points[places].T
    meets, seems_to_meet = tpot_s <= limit_s, predicted_tpot_s <= limit_s
    either, both = meets | seems_to_meet, meets & seems_to_meet
    if not either.any() or both.all():
        return None
    best = _most(tokens_per_s, meets)
    chosen = _most(predicted_tokens_per_s, seems_to_meet)
    excess = regret = None
    if chosen is not None:
        excess = float(tpot_s[chosen] / limit_s - 1.0)
        if meets[chosen] and best is not None:
            regret = float(1.0 - tokens_per_s[chosen] / tokens_per_s[best])
    return Choice(
        shape=shape,
        limit_s=limit_s,
        chosen=None if chosen is None else int(places[chosen]),
        best=None if best is None else int(places[best]),
        excess=excess,
        regret=regret,
    )


def _most(tokens_per_s: NDArray[np.float64], allowed: NDArray[np.bool_]) -> int | None:
    """The first allowed point of the highest throughput."""
    return int(np.argmax(np.where(allowed, tokens_per_s, -np.inf))) if allowed.any() else None


def limit_grid(measured_s: ArrayLike) -> tuple[float, ...]:
    """Round limits, ten to the decade, from the smallest measured value on up to the largest: no choice of ours."""
    values = np.asarray(measured_s, dtype=np.float64)
    values = values[np.isfinite(values)]
    if not len(values):
        return ()
    low_s, high_s = float(values.min()), float(values.max())
    decades = range(math.floor(math.log10(low_s)), math.floor(math.log10(high_s)) + 1)
    grid = (float(f"{step:g}e{decade}") for decade in decades for step in R10)
    return tuple(limit_s for limit_s in grid if low_s <= limit_s < high_s)
