"""Fits a hardware profile to measured rows, and says how far to trust it (design 4.3, 4.4).

All tensor-parallel degrees are fitted together: shared physics, and a multiplicative deviation per degree and term with
a stated standard deviation (`coefficients.py`). Several starts are searched (`row_fit.py`) and the cheapest end kept;
then every concurrency, every shape and every degree is left out once, fitted without, and predicted. A degree left out
is predicted from the shared values alone, as a degree nobody measured would be.
Equal rows and seed give equal profiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardware_profiles.model import ModelCard, precision_name
from hardware_profiles.node import Node
from hardware_profiles.profile import Covariance, ErrorFigures, MeasuredRange, ProfileFile, ResidualRow, profile_of
from simulator.all_reduce_curve import all_reduce_curves
from simulator.benchmark_rows import BenchmarkRow, left_out, select_rows
from simulator.closed_loop import SHORTEST, predict_rows, row_blocks
from simulator.coefficients import all_reduce_of, degree_terms, layout_for, shared_terms
from simulator.profile_writer import rounded, write_profile
from simulator.row_fit import NOISE, RowFit, sensitivities, soft_weights, solve

__all__ = ["FittedProfile", "fit_profile", "write_profile"]

Floats = NDArray[np.float64]
Progress = Callable[[str, int, int], None]

STARTS = 4
"""Searches: one from the typical values, the others from random points of the prior."""
START_SPREAD = 0.7
"""Of those random points, in prior standard deviations."""
HOPS, HOP_SPREAD = 6, 0.3
"""Further searches from near the best end, and how near, in prior standard deviations: the valley of the Llama-70B FP4
rows has a deeper hollow beside the one that four starts find (cost 536 against 551)."""
VISIBLE_WEIGHT = 0.5
"""Rows that the robust loss gives less are named with their weight."""
HARDLY_KNOWN = 0.7
"""A term whose standard deviation stays above this share of the prior's is named in the caveats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedProfile:
    """A profile and the evidence that is written beside it."""

    file: ProfileFile
    residuals: tuple[ResidualRow, ...]
    covariance: Covariance


def fit_profile(
    rows: Sequence[BenchmarkRow],
    *,
    node: Node,
    card: ModelCard,
    precision: str,
    engine: str = "vllm",
    seed: int = 1,
    leave_out: bool = True,
    progress: Progress | None = None,
    starts: int = STARTS,
) -> FittedProfile:
    """The profile of one (node, model, precision, engine) from all its plain rows among `rows`."""
    chosen = select_rows(rows, node=node, card=card, precision=precision, engine=engine)
    precision = precision_name(precision)
    degrees = tuple(sorted({row.tensor_parallel_size for row in chosen}))
    layout = layout_for(card, degrees, all_reduce_bits=min(row.all_reduce_bits for row in chosen))
    fit = RowFit(
        rows=chosen,
        blocks=tuple(row_blocks(row, node=node, card=card, precision=precision) for row in chosen),
        layout=layout,
        node=node,
        card=card,
        precision=precision,
        curves=all_reduce_curves(node, degrees),
        seed=seed,
    )
    folds = _folds(chosen) if leave_out else {}
    tell = progress or (lambda stage, done, total: None)
    z = _best(fit, starts, seed, tell)
    errors = {}
    done, total = 0, sum(len(set(keys)) for keys in folds.values())
    for name, keys in folds.items():
        predicted = np.full((len(chosen), 2), np.nan)
        for key in dict.fromkeys(keys):
            tell(f"held-out errors, {name} {key}", done, total)
            inside = np.array([other != key for other in keys])
            if inside.any():
                held = _without(fit, z, inside, shared_only=name == DEGREE_OUT)
                predicted[~inside] = fit.log_metrics(held, ~inside)[~inside]
            done += 1
        errors[name] = _figures(np.exp(predicted), fit)
    spread, weights = _spread(fit, z)
    covariance, hardly = _covariance(fit, z, spread, weights)
    draft = _file(fit, z, rows, engine=engine, seed=seed, hardly=hardly)
    predicted_now = predict_rows(profile_of(draft, Path()), chosen, node=node, card=card, seed=seed)
    in_sample = _figures(predicted_now, fit)
    downs = {} if bool((fit.weights == 1).all()) else {"in sample, all rows": _figures(predicted_now, fit, least=0.0)}
    file = draft.model_copy(
        update={
            "residual_sd": rounded(spread, 3),
            "errors": {"in sample": in_sample, **downs, **errors},
            "kv_sensitivity": _kv_sensitivity(fit, draft, predicted_now, seed),
        }
    )
    return FittedProfile(file=file, residuals=_residuals(fit, predicted_now, weights), covariance=covariance)


DEGREE_OUT = "leave one TP out"


def _folds(rows: Sequence[BenchmarkRow]) -> dict[str, list[Hashable]]:
    """What is left out together, by evaluation; an evaluation with one group only is none."""
    folds: dict[str, list[Hashable]] = {
        "leave one concurrency out": [row.concurrency for row in rows],
        "leave one shape out": [f"{row.isl}/{row.osl}" for row in rows],
        DEGREE_OUT: [row.tensor_parallel_size for row in rows],
    }
    return {name: keys for name, keys in folds.items() if len(set(keys)) > 1}


def _best(fit: RowFit, starts: int, seed: int, tell: Progress) -> Floats:
    generator = np.random.default_rng([seed, len(fit.rows)])
    everything = np.ones(len(fit.rows), dtype=np.bool_)
    shared = len(fit.layout.terms)
    ends: list[tuple[float, int, Floats]] = []
    for start in range(starts):
        tell("search, start", start, starts)
        z = np.zeros(fit.layout.size)
        if start > 0:
            z[:shared] = START_SPREAD * generator.standard_normal(shared)
        z, cost = solve(fit, z, everything)
        ends.append((cost, start, z))
    least, _, best = min(ends, key=lambda end: end[:2])
    for hop in range(HOPS if starts > 1 else 0):
        tell("search, from near the best", hop, HOPS)
        z, cost = solve(fit, best + HOP_SPREAD * generator.standard_normal(fit.layout.size), everything)
        if cost < least:
            least, best = cost, z
    return best


def _without(fit: RowFit, z: Floats, inside: NDArray[np.bool_], *, shared_only: bool) -> Floats:
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


def _figures(predicted: Floats, fit: RowFit, least: float = VISIBLE_WEIGHT) -> dict[str, ErrorFigures]:
    """Error figures by metric over the rows of at least that weight."""
    counted = (fit.weights >= least) & ~np.isnan(predicted).any(axis=1)
    error = (predicted / np.exp(fit.measured) - 1.0)[counted]
    return {
        metric: ErrorFigures(
            rows=int(counted.sum()),
            median=rounded(float(np.median(np.abs(error[:, i]))), 3),
            p95=rounded(float(np.quantile(np.abs(error[:, i]), 0.95)), 3),
            worst=rounded(float(np.abs(error[:, i]).max()), 3),
            bias=rounded(float(error[:, i].mean()), 3),
        )
        for i, metric in enumerate(("tpot", "throughput"))
    }


def _spread(fit: RowFit, z: Floats) -> tuple[float, Floats]:
    """(weighted root mean square of ln(predicted / measured), (rows, 2) weights in the robust loss)."""
    everything = np.ones(len(fit.rows), dtype=np.bool_)
    error = fit.log_metrics(z, everything) - fit.measured
    weights = fit.weights[:, None] * soft_weights(error / NOISE)
    plain = np.broadcast_to(fit.weights[:, None], error.shape)
    return float(np.sqrt(np.sum(plain * error**2) / np.sum(plain))), weights


def _covariance(fit: RowFit, z: Floats, spread: float, weights: Floats) -> tuple[Covariance, tuple[str, ...]]:
    """Covariance of ln(value), and the terms that the rows hardly tell.

    TPOT and throughput of a row are nearly one measurement (their errors mirror each other), so they count half each.
    """
    everything = np.ones(len(fit.rows), dtype=np.bool_)
    slopes = sensitivities(fit, z, everything) * np.sqrt(weights / 2.0)[..., None] / max(spread, NOISE)
    flat = slopes.reshape(-1, len(z))
    known = np.linalg.inv(flat.T @ flat + np.eye(len(z)))
    names, logs = _named_logs(fit, z)
    step = 1e-4
    jacobian = np.empty((len(names), len(z)))
    for i in range(len(z)):
        moved = z.copy()
        moved[i] += step
        jacobian[:, i] = (_named_logs(fit, moved)[1] - logs) / step
    matrix = jacobian @ known @ jacobian.T
    shared = np.sqrt(np.diag(known))[: len(fit.layout.terms)]
    hardly = tuple(t.name for t, sd in zip(fit.layout.terms, shared, strict=True) if sd > HARDLY_KNOWN)
    rows = tuple(tuple(rounded(float(cell), 4) for cell in row) for row in matrix)
    return Covariance(terms=names, matrix=rows), hardly


def _named_logs(fit: RowFit, z: Floats) -> tuple[tuple[str, ...], Floats]:
    """ln of every fitted number of the profile, by its path in the file."""
    typical = fit.layout.values(z, None)
    found = {
        f"shared.{name}": typical[name]
        for name in ("smooth_exponent", "expert_popularity_shape", "client_gap_s")
        if name in typical
    }
    for degree in fit.layout.degrees:
        values = fit.layout.values(z, degree)
        for name, value in degree_terms(values):
            found[f"tensor_parallel.{degree}.{name}"] = value
        curve = all_reduce_of(values, degree, node=fit.node, curves=fit.curves)
        if curve is not None:
            found[f"all_reduce.{degree}.floor_s"] = curve.floor_s
            found[f"all_reduce.{degree}.large_bytes_per_s"] = curve.large_bytes_per_s
    for name, value in degree_terms(typical):
        found[f"typical.{name}"] = value
    return tuple(found), np.log(np.array(list(found.values())))


def _file(
    fit: RowFit, z: Floats, rows: Sequence[BenchmarkRow], *, engine: str, seed: int, hardly: tuple[str, ...]
) -> ProfileFile:
    """The profile without the figures that are computed from it."""
    layout, chosen = fit.layout, fit.rows
    typical = layout.values(z, None)
    files = tuple(dict.fromkeys(row.file for row in chosen))
    omitted = left_out(rows, node=fit.node, card=fit.card, precision=fit.precision, engine=engine)
    curves = {d: all_reduce_of(layout.values(z, d), d, node=fit.node, curves=fit.curves) for d in layout.degrees}
    return ProfileFile(
        name=f"{fit.node.name}/{fit.card.name}-{fit.precision}-{engine}",
        node=fit.node.name,
        model=fit.card.name,
        serves=tuple(dict.fromkeys(name for file in files for name in file.serves)),
        precision=fit.precision,
        engine=engine,
        engine_version="; ".join(dict.fromkeys(file.engine_version for file in files)),
        as_of=max(file.as_of for file in files),
        tier="pooled medians",
        command=(
            f"goodfleet profile fit {' '.join(file.path for file in files)} --node {fit.node.name} "
            f"--model {fit.card.name} --precision {fit.precision} --seed {seed}"
        ),
        sources=tuple(dict.fromkeys(source for file in files for source in file.source)),
        caveats=(*dict.fromkeys(c for file in files for c in file.caveat), *omitted, *_identifiability(chosen, hardly)),
        assumed_flags=_common_flags(chosen),
        kv_sensitivity="",
        measured=MeasuredRange(
            tensor_parallel_size=layout.degrees,
            concurrency=(min(r.concurrency for r in chosen), max(r.concurrency for r in chosen)),
            isl=(min(r.isl for r in chosen), max(r.isl for r in chosen)),
            osl=(min(r.osl for r in chosen), max(r.osl for r in chosen)),
            context=(min(int(SHORTEST * r.isl) for r in chosen), max(r.isl + r.osl for r in chosen)),
        ),
        shared=rounded(shared_terms(typical)),
        all_reduce={degree: rounded(curve) for degree, curve in curves.items() if curve is not None},
        tensor_parallel={degree: rounded(degree_terms(layout.values(z, degree))) for degree in layout.degrees},
        typical=rounded(degree_terms(typical)),
        deviation_sd={term.name: term.deviation_sd for term in layout.terms if term.deviation_sd > 0},
        residual_sd=0.0,
        errors={},
    )


def _common_flags(rows: Sequence[BenchmarkRow]) -> dict[str, int | float | str | bool]:
    """Server flags of the rows; a flag that differs is described."""
    names = ("max_num_batched_tokens", "max_num_seqs", "gpu_memory_utilization", "block_size", "kv_cache_dtype")
    flags: dict[str, int | float | str | bool] = {"async_scheduling": True, "enable_prefix_caching": False}
    for name in names:
        values = sorted({getattr(row, name) for row in rows})
        varies = all(getattr(row, name) == row.concurrency for row in rows)
        flags[name] = values[0] if len(values) == 1 else "= concurrency" if varies else ", ".join(map(str, values))
    return flags


def _identifiability(rows: Sequence[BenchmarkRow], hardly: tuple[str, ...]) -> list[str]:
    ratios = [row.isl / row.osl for row in rows if row.weight >= VISIBLE_WEIGHT]
    found = []
    if not any(ratio >= 4 for ratio in ratios):
        found.append("No prefill-heavy shape (ISL at least 4 x OSL): the prefill terms rest on their typical values.")
    if not any(ratio <= 0.25 for ratio in ratios):
        found.append("No decode-heavy shape (OSL at least 4 x ISL): the KV term rests on its typical value.")
    if len({row.tensor_parallel_size for row in rows}) == 1:
        found.append("One tensor-parallel degree only: other degrees are a guess.")
    if hardly:
        found.append(f"Hardly told by these rows, so close to their typical values: {', '.join(hardly)}.")
    return found


def _kv_sensitivity(fit: RowFit, file: ProfileFile, base: Floats, seed: int) -> str:
    changes, peak = [], 0.0
    for factor in (0.9, 1.1):
        blocks = [math.floor(count * factor) for count in fit.blocks]
        moved = predict_rows(profile_of(file, Path()), fit.rows, node=fit.node, card=fit.card, seed=seed, blocks=blocks)
        changes.append(float(np.abs(moved / base - 1.0).max()))
    for row, count in zip(fit.rows, fit.blocks, strict=True):
        peak = max(peak, row.concurrency * (row.isl + row.osl) / (count * row.block_size))
    return (
        f"With 10 % fewer KV blocks the largest change of any prediction is {changes[0]:.2%}, with 10 % more "
        f"{changes[1]:.2%}; the fullest row can hold at most {peak:.0%} of its KV cache."
    )


def _residuals(fit: RowFit, predicted: Floats, weights: Floats) -> tuple[ResidualRow, ...]:
    rows = []
    for row, metrics, pair in zip(fit.rows, predicted, weights, strict=True):
        robust = float(pair.mean())
        weight, notes = row.weight, [row.note] if row.note else []
        if robust < VISIBLE_WEIGHT * row.weight:
            weight = rounded(robust, 2)
            notes.append(f"far from the other rows: the robust loss lowers its weight to {weight:g}")
        rows.append(
            ResidualRow(
                tensor_parallel_size=row.tensor_parallel_size,
                isl=row.isl,
                osl=row.osl,
                concurrency=row.concurrency,
                measured_tpot_s=rounded(row.tpot_s, 6),
                predicted_tpot_s=rounded(float(metrics[0]), 6),
                measured_tokens_per_s=rounded(row.tokens_per_s, 6),
                predicted_tokens_per_s=rounded(float(metrics[1]), 6),
                weight=weight,
                note="; ".join(notes),
            )
        )
    return tuple(rows)
