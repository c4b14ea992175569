"""How well a fit is known: its errors, its lack of fit, and the covariance of its coefficients.

With J the slopes of ln(prediction) in the unknowns z and w the rows' weights, z is known with (JᵀWJ + 1)^-1: one for
the prior, whose standard deviations are the unit of z. Its noise is the lack of fit that was found, not what was
assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hardware_profiles.fit_evidence import Covariance
from hardware_profiles.profile import ErrorFigures
from simulator.benchmark_rows import METRICS
from simulator.coefficients import all_reduce_of, degree_terms
from simulator.profile_writer import rounded
from simulator.row_fit import NOISE, RowFit, sensitivities, soft_weights

__all__ = ["VISIBLE_WEIGHT", "Spread", "covariance_of", "figures", "known_z", "spread_of"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

VISIBLE_WEIGHT = 0.5
"""Rows that the robust loss gives less are named with their weight; rows of less weight are left out of the figures."""
HARDLY_KNOWN = 0.7
"""A term whose standard deviation stays above this share of the prior's is named in the caveats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """What a fit does not explain."""

    sd: Floats
    """(3,) weighted root mean square of ln(predicted / measured): TPOT and throughput together (twice), TTFT; NaN where
    no row has the metric."""
    weights: Floats
    """(rows, 3) weights of the robust loss; NaN where a row lacks the metric."""


def figures(predicted: Floats, fit: RowFit, least: float = VISIBLE_WEIGHT) -> dict[str, ErrorFigures]:
    """Errors by metric of ln predictions (rows, 3; NaN = not predicted), over the rows of at least that weight."""
    found = {}
    for i, metric in enumerate(METRICS):
        error = np.exp(predicted[:, i] - fit.measured[:, i]) - 1.0
        error = error[(fit.weights >= least) & ~np.isnan(error)]
        if len(error) == 0:
            continue
        found[metric] = ErrorFigures(
            rows=len(error),
            median=rounded(float(np.median(np.abs(error))), 3),
            p95=rounded(float(np.quantile(np.abs(error), 0.95)), 3),
            worst=rounded(float(np.abs(error).max()), 3),
            bias=rounded(float(error.mean()), 3),
        )
    return found


def spread_of(fit: RowFit, z: Floats, mask: Mask | None = None) -> Spread:
    """What the fit leaves unexplained in the masked rows."""
    mask = np.ones(len(fit.rows), dtype=np.bool_) if mask is None else mask
    error = fit.log_metrics(z, mask) - fit.measured
    known = ~np.isnan(error)
    plain = np.where(known, fit.weights[:, None], 0.0)
    squares = np.sum(plain * np.where(known, error, 0.0) ** 2, axis=0)
    counts = np.sum(plain, axis=0)
    step, ttft = np.sqrt(squares[:2].sum() / counts[:2].sum()), np.nan
    if counts[2] > 0:
        ttft = np.sqrt(squares[2] / counts[2])
    return Spread(sd=np.array([step, step, ttft]), weights=fit.weights[:, None] * soft_weights(error / NOISE))


def known_z(fit: RowFit, slopes: Floats, spread: Spread) -> Floats:
    """(z, z) covariance of z from the slopes (rows, 3, z) of the rows that have a weight in `spread`.

    TPOT and throughput of a row are nearly one measurement (their errors mirror each other), so they count half each.
    """
    weights = np.nan_to_num(spread.weights)
    pair = np.where((weights[:, :2] > 0).all(axis=1), 0.5, 1.0)
    weights = weights * np.column_stack([pair, pair, np.ones(len(pair))])
    noise = np.where(np.isnan(spread.sd), NOISE, np.maximum(spread.sd, NOISE))
    flat = (slopes * (np.sqrt(weights) / noise)[..., None]).reshape(-1, slopes.shape[-1])
    return np.linalg.inv(flat.T @ flat + np.eye(slopes.shape[-1]))


def covariance_of(fit: RowFit, z: Floats, spread: Spread) -> tuple[Covariance, tuple[str, ...]]:
    """Covariance of ln(value), and the terms that the rows hardly tell."""
    everything = np.ones(len(fit.rows), dtype=np.bool_)
    known = known_z(fit, sensitivities(fit, z, everything), spread)
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
        for name in ("smooth_exponent", "expert_popularity_shape", "request_overhead_s", "client_gap_s")
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
