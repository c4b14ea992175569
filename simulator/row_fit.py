"""Finds the coefficients under which the simulator reproduces measured rows: bounded least squares around the kernel.

The residuals are ln(predicted / measured) of TPOT, throughput and TTFT over their noise, with a soft-L1 loss (by
iteratively reweighted least squares: scipy's own robust step stalls here far from the optimum), and one residual per
unknown for its prior. A prediction runs every row's whole protocol on three fixed streams; derivatives are finite
differences on the first stream alone. Raising a shared term gives the derivative for every degree's deviation as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from hardware_profiles.model import ModelCard
from hardware_profiles.node import Node
from simulator.all_reduce_curve import MeasuredCurve
from simulator.benchmark_rows import METRICS, BenchmarkRow
from simulator.closed_loop import STREAMS, ModelKey, model_key, predict
from simulator.coefficients import REACH_SD, Layout, build_model

__all__ = ["NOISE", "RowFit", "sensitivities", "soft_weights", "solve"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

NOISE = np.array([0.01, 0.01, 0.05])
"""Relative noise of TPOT, throughput and TTFT of a good row; the soft-L1 loss bends at twice that. TTFT holds queueing
and the client, so it repeats five times worse: nightly runs of one build spread 1 % in TPOT and 5 % in TTFT."""
DIFFERENCE_SD = 0.2
"""Finite-difference step in z, so 0.06-0.2 in ln(value): well above the grain of medians over few requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFit:
    """Everything a search needs beside the unknowns."""

    rows: tuple[BenchmarkRow, ...]
    blocks: tuple[int, ...]
    """KV blocks of each row's server."""
    layout: Layout
    node: Node
    card: ModelCard
    precision: str
    curves: Mapping[int, MeasuredCurve]
    seed: int

    def log_metrics(self, z: Floats, mask: Mask, *, streams: int = STREAMS, raised: int | None = None) -> Floats:
        """(rows, 3) ln of TPOT, tokens/s and TTFT of the masked rows, others NaN; `raised` lifts one term."""
        if raised is not None:
            z = z.copy()
            z[raised] += DIFFERENCE_SD
        chosen = np.flatnonzero(mask)
        rows = [self.rows[i] for i in chosen]
        keys: dict[ModelKey, int] = {}
        for row in rows:
            key = model_key(row)
            keys[key] = max(keys.get(key, 0), row.max_num_batched_tokens)
        models = {
            (degree, kv): build_model(
                self.layout.values(z, degree),
                degree,
                node=self.node,
                card=self.card,
                precision=self.precision,
                curves=self.curves,
                max_tokens=tokens,
                kv_cache_dtype=kv,
            )
            for (degree, kv), tokens in keys.items()
        }
        metrics = predict(
            rows,
            models,
            [self.blocks[i] for i in chosen],
            gap_s=self.layout.values(z, None)["client_gap_s"],
            seed=self.seed,
            streams=streams,
        )
        found = np.full((len(self.rows), len(METRICS)), np.nan)
        found[chosen] = np.log(metrics)
        return found

    @property
    def measured(self) -> Floats:
        """(rows, 3) ln of the measured TPOT, tokens/s and TTFT; NaN where a row has none."""
        return np.log([[row.tpot_s, row.tokens_per_s or np.nan, row.ttft_s or np.nan] for row in self.rows])

    @property
    def weights(self) -> Floats:
        return np.array([row.weight for row in self.rows])


def sensitivities(fit: RowFit, z: Floats, mask: Mask) -> Floats:
    """(rows, 3, len(z)) derivatives of the log metrics by z; rows outside the mask are zero."""
    layout = fit.layout
    base = fit.log_metrics(z, mask, streams=1)
    shared = np.zeros((*base.shape, len(layout.terms)))
    for j in range(len(layout.terms)):
        shared[..., j] = np.nan_to_num(fit.log_metrics(z, mask, streams=1, raised=j) - base) / DIFFERENCE_SD
    slopes = np.zeros((*base.shape, layout.size))
    slopes[..., : len(layout.terms)] = shared
    scale = np.array([layout.terms[j].deviation_sd / layout.terms[j].prior_sd for j in layout.pooled])
    for i, row in enumerate(fit.rows):
        slopes[i, :, layout.columns(row.tensor_parallel_size)] = shared[i][:, list(layout.pooled)] * scale
    return slopes


def soft_weights(errors: Floats) -> Floats:
    """Weight of errors, in units of noise, under the loss 8 (sqrt(1 + e^2 / 4) - 1): 1 near 0, 2 / |e| far out."""
    return np.asarray(1.0 / np.sqrt(1.0 + errors**2 / 4.0))


def solve(
    fit: RowFit, z: Floats, mask: Mask, *, searches: int = 6, steps: int = 12, tick: Callable[[], None] | None = None
) -> tuple[Floats, float]:
    """The best z from a start on the masked rows, and its cost (half the sum of the loss and the squared priors)."""
    scale = np.sqrt(fit.weights)[:, None] / NOISE
    measured = fit.measured
    chosen = (mask[:, None] & ~np.isnan(measured)).ravel()
    robust = np.ones_like(measured)
    cost = np.inf
    for _ in range(searches):

        def residuals(z: Floats, weights: Floats = scale * robust) -> Floats:
            error = (fit.log_metrics(z, mask) - measured) * weights
            return np.concatenate([error.ravel()[chosen], z])

        def jacobian(z: Floats, weights: Floats = scale * robust) -> Floats:
            if tick is not None:
                tick()
            slopes = sensitivities(fit, z, mask) * weights[..., None]
            return np.concatenate([slopes.reshape(-1, len(z))[chosen], np.eye(len(z))])

        found = least_squares(
            residuals, z, jac=jacobian, bounds=(-REACH_SD, REACH_SD), ftol=1e-4, xtol=1e-5, max_nfev=steps
        )
        z = np.asarray(found.x)
        error = ((fit.log_metrics(z, mask) - measured) * scale).ravel()[chosen]
        robust.ravel()[chosen] = np.sqrt(soft_weights(error))
        before, cost = cost, float(np.sum(4.0 * (np.sqrt(1.0 + error**2 / 4.0) - 1.0)) + 0.5 * z @ z)
        if before - cost < 0.1:
            break
    return z, cost
