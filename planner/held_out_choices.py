"""What a profile's predictions of rows left out are worth to a planner: choices made by them, judged by measurement.

Every measured point of one shape (tensor-parallel degree x load) is a candidate, predicted by a fit that did not see
its group; `simulator.choice_quality` chooses the cheapest within each round limit on TPOT. A limit between two measured
points that lie close together is broken by the smallest error, so violations of more than 5 % are counted apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hardware_profiles.fit_evidence import HeldOutRow, load_held_out
from hardware_profiles.profile import HardwareProfile
from simulator.choice_quality import ChoiceQuality, choice_quality, limit_grid

__all__ = ["CHOICE_COLUMNS", "choice_rows", "held_out_choices"]

LEAST_WEIGHT = 0.5
"""Rows of less weight judge nothing: their TPOT and throughput are of different runs, or of another kernel."""
CLEAR_VIOLATION = 0.05
CHOICE_COLUMNS = (
    "profile",
    "left out",
    "choices",
    "violations",
    "of more than 5 %",
    "worst violation",
    "median regret",
    "worst regret",
    "limits called impossible that a point meets",
)


def held_out_choices(profile: HardwareProfile) -> Mapping[str, ChoiceQuality]:
    """By evaluation (`leave one … out`), the choices among all rows that were left out in turn."""
    points: dict[str, dict[tuple[int, int, int, str, int], dict[str, HeldOutRow]]] = {}
    seen: Counter[tuple[str, int, int, int, str, str]] = Counter()
    for row in load_held_out(profile):
        if row.weight >= LEAST_WEIGHT:
            place = (row.tensor_parallel_size, row.isl, row.osl, row.load)
            seen[row.evaluation, *place, row.metric] += 1  # runs of one point in several sessions
            point = (*place, seen[row.evaluation, *place, row.metric])
            points.setdefault(row.evaluation, {}).setdefault(point, {})[row.metric] = row
    return {
        evaluation: _choices([point for point in places.values() if {"tpot", "throughput"} <= point.keys()])
        for evaluation, places in points.items()
    }


def _choices(points: Sequence[Mapping[str, HeldOutRow]]) -> ChoiceQuality:
    tpot, throughput = ([point[metric] for point in points] for metric in ("tpot", "throughput"))
    degrees = [row.tensor_parallel_size for row in tpot]
    return choice_quality(
        measured_tpot_s=[row.measured for row in tpot],
        measured_tokens_per_s_per_gpu=[row.measured / n for row, n in zip(throughput, degrees, strict=True)],
        predicted_tpot_s=[row.predicted for row in tpot],
        predicted_tokens_per_s_per_gpu=[row.predicted / n for row, n in zip(throughput, degrees, strict=True)],
        shapes=[f"{row.isl}/{row.osl}" for row in tpot],
        limits_s=limit_grid([row.measured for row in tpot]),
    )


def choice_rows(profile: HardwareProfile) -> tuple[tuple[str, ...], ...]:
    """The cells of one profile, a row for each evaluation, in the order of `CHOICE_COLUMNS`."""
    return tuple(
        (
            profile.name,
            evaluation.removeprefix("leave one ").removesuffix(" out"),
            str(found.made),
            str(found.violations),
            str(sum((choice.excess or 0.0) > CLEAR_VIOLATION for choice in found.choices)),
            f"{found.worst_violation:.1%}",
            _share(found.median_regret),
            _share(found.worst_regret),
            str(found.missed),
        )
        for evaluation, found in held_out_choices(profile).items()
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
