"""Rows left out of a fit, and how well it predicts them: the figure that decides whether a profile can be trusted.

Every concurrency, every shape and every tensor-parallel degree is left out once; the rest is fitted, the rows left out
are predicted. A degree left out is predicted from the shared values alone, as a degree nobody measured would be. Beside
each prediction stands the standard deviation that the refit states for it, from the covariance of its coefficients and
its lack of fit; how often 80 % intervals made of them cover the measurement says whether stated uncertainty is honest.
At a measured degree they come out too narrow, because rows of one version and kernel err together; at a degree left out
too wide or too narrow, as its real deviation is less or more than the assumed 10 %. So the two have a factor each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hardware_profiles.fit_evidence import HeldOutRow
from simulator.benchmark_rows import METRICS, BenchmarkRow
from simulator.fit_covariance import VISIBLE_WEIGHT, known_z, spread_of
from simulator.profile_writer import rounded
from simulator.row_fit import RowFit, sensitivities, solve

__all__ = ["HeldOut", "held_out_rows", "interval_scales", "predict_held_out"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Progress = Callable[[str, int, int], None]

SHAPE_OUT = "leave one shape out"
DEGREE_OUT = "leave one TP out"
COVERED = 0.80
NORMAL_80 = 1.2815515655446004
"""Half width of the central 80 % of a normal law, in standard deviations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Every row predicted by a fit that did not see its group."""

    name: str
    """The evaluation, `leave one … out`."""
    keys: tuple[Hashable, ...]
    """Group of each row."""
    predicted: Floats
    """(rows, 3) ln of the predictions; NaN where nothing could be fitted without the row's group."""
    sd: Floats
    """(rows, 3) their stated standard deviations in ln, `interval_scale` not applied."""


def _folds(rows: Sequence[BenchmarkRow]) -> dict[str, list[Hashable]]:
    """What is left out together, by evaluation; an evaluation with one group only is none."""
    folds: dict[str, list[Hashable]] = {
        "leave one concurrency out": [row.load for row in rows],
        SHAPE_OUT: [f"{row.isl}/{row.osl}" for row in rows],
        DEGREE_OUT: [row.tensor_parallel_size for row in rows],
    }
    return {name: keys for name, keys in folds.items() if len(set(keys)) > 1}


def predict_held_out(fit: RowFit, z: Floats, tell: Progress) -> tuple[HeldOut, ...]:
    """Each evaluation of the rows, refitted from the whole fit's z without each group in turn."""
    folds = _folds(fit.rows)
    found = []
    done, total = 0, sum(len(set(keys)) for keys in folds.values())
    everything = np.ones(len(fit.rows), dtype=np.bool_)
    for name, keys in folds.items():
        predicted = np.full((len(fit.rows), len(METRICS)), np.nan)
        sd = np.full_like(predicted, np.nan)
        for key in dict.fromkeys(keys):
            tell(f"held-out errors, {name} {key}", done, total)
            done += 1
            inside = np.array([other != key for other in keys])
            held = _without(fit, z, inside, shared_only=name == DEGREE_OUT)
            predicted[~inside] = fit.log_metrics(held, ~inside)[~inside]
            spread = spread_of(fit, held, inside)
            slopes = sensitivities(fit, held, everything)
            covariance = known_z(fit, np.where(inside[:, None, None], slopes, 0.0), spread)
            variance = np.einsum("rmi,ij,rmj->rm", slopes, covariance, slopes)
            sd[~inside] = np.sqrt(variance + spread.sd**2)[~inside]
        found.append(HeldOut(name=name, keys=tuple(keys), predicted=predicted, sd=sd))
    return tuple(found)


def _without(fit: RowFit, z: Floats, inside: Mask, *, shared_only: bool) -> Floats:
    """Fit the rows inside; the deviations of a degree that has none of them stay at zero."""
    z = z.copy()
    for degree in fit.layout.degrees:
        if not any(row.tensor_parallel_size == degree for row, kept in zip(fit.rows, inside, strict=True) if kept):
            z[fit.layout.columns(degree)] = 0.0
    z, _ = solve(fit, z, inside, searches=3)
    if shared_only:
        for degree in {row.tensor_parallel_size for row, kept in zip(fit.rows, inside, strict=True) if not kept}:
            z[fit.layout.columns(degree)] = 0.0
    return z


def interval_scales(rows: Sequence[HeldOutRow]) -> tuple[float, float, dict[str, dict[str, float]]]:
    """(factor, factor of a degree left out, coverage): with them 80 % intervals cover 80 % of the rows left out.

    Each is one number for TPOT and throughput, from the predictions as they are written. The coverage of a group left
    out uses the factor that the other rows give, so no row judges itself.
    """
    trusted = [row for row in rows if row.weight >= VISIBLE_WEIGHT]
    coverage: dict[str, dict[str, float]] = {}
    scales = []
    for of_degree in (False, True):
        kind = [row for row in trusted if (row.evaluation == DEGREE_OUT) == of_degree]
        scales.append(_factor(kind))
        inside: dict[tuple[str, str], list[bool]] = {}
        for (evaluation, _), group in _groups(kind).items():
            judged = {_measurement(row) for row in group}
            factor = _factor([row for row in kind if _measurement(row) not in judged])
            for row in group:
                inside.setdefault((evaluation, row.metric), []).append(_ratio(row) <= factor)
        for (evaluation, metric), found in inside.items():
            coverage.setdefault(evaluation, {})[metric] = rounded(float(np.mean(found)), 3)
    return scales[0], scales[1], coverage


def _groups(rows: Sequence[HeldOutRow]) -> dict[tuple[str, str], list[HeldOutRow]]:
    """By evaluation, the rows that were left out together."""
    found: dict[tuple[str, str], list[HeldOutRow]] = {}
    for row in rows:
        keys = {SHAPE_OUT: f"{row.isl}/{row.osl}", DEGREE_OUT: str(row.tensor_parallel_size)}
        found.setdefault((row.evaluation, keys.get(row.evaluation, row.load)), []).append(row)
    return found


def _measurement(row: HeldOutRow) -> tuple[int, int, int, str]:
    return (row.tensor_parallel_size, row.isl, row.osl, row.load)


def _ratio(row: HeldOutRow) -> float:
    """|ln(predicted / measured)| / half width of the stated 80 % interval."""
    return abs(math.log(row.predicted / row.measured)) / (NORMAL_80 * row.stated_sd)


def _factor(rows: Sequence[HeldOutRow]) -> float:
    """The factor with which 80 % of the ratios of TPOT and throughput are at most 1; 1 without any."""
    ratios = [_ratio(row) for row in rows if row.metric != "ttft"]
    return float(np.quantile(ratios, COVERED)) if ratios else 1.0


def held_out_rows(held_out: Sequence[HeldOut], fit: RowFit) -> tuple[HeldOutRow, ...]:
    """Every prediction of a row left out, as it is written beside the profile."""
    measured = np.exp(fit.measured)
    found: list[HeldOutRow] = []
    for evaluation in held_out:
        values = np.exp(evaluation.predicted)
        for i, row in enumerate(fit.rows):
            if bool(np.isnan(values[i, 0])):
                continue
            found.extend(
                HeldOutRow(
                    evaluation=evaluation.name,
                    tensor_parallel_size=row.tensor_parallel_size,
                    isl=row.isl,
                    osl=row.osl,
                    load=row.load,
                    metric=metric,
                    measured=rounded(float(measured[i, m]), 6),
                    predicted=rounded(float(values[i, m]), 6),
                    stated_sd=rounded(float(evaluation.sd[i, m]), 4),
                    weight=row.weight,
                )
                for m, metric in enumerate(METRICS)
                if not bool(np.isnan(measured[i, m]))
            )
    return tuple(found)
