"""A measured run as the simulator's `RequestLog`, and the figures by which both are compared: one log, one score.

Latency counts from the intended arrival, so a client that is late makes the server look slow: its lateness is measured
and limits what counts. The client's clock has its own zero; the earliest request behind its intention sets it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from simulator.log import RequestLog
from simulator.score import Targets, score
from simulator.tables import IN_WINDOW, ITL_EDGES_S
from validator.bench_run import BenchResult

__all__ = ["Figures", "figures_of", "lateness_p99_s", "log_of", "rate_error"]

Floats = NDArray[np.float64]
NO_TARGETS = Targets(per_request_s={}, percentiles=(), attainment=0.99, deadline_s=None)
MIDDLE = (0.2, 0.8)
"""Of the finishes of a burst: before, seats fill; after, they empty."""


class Figures(BaseModel):
    """What users of a run saw."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    ttft_p50_s: float
    ttft_p99_s: float
    tpot_p50_s: float
    tpot_mean_s: float
    itl_p99_s: float
    """From the score's histogram: at most 6 % off."""
    tokens_per_s: float
    """Input and output, from the first arrival to the last token."""
    finished_rps: float | None
    """Requests finished per second in the middle of the finishes: the capacity, where requests wait all the time.

    None = they all finished at once.
    """


def figures_of(log: RequestLog) -> Figures | None:
    """The figures of a log, simulated or measured; None where too few requests finished for one of them."""
    if np.isnan(log.finish_s).all():
        return None
    (found,) = score(log, {name: NO_TARGETS for name in log.workload_names}).workloads
    finish_s = np.sort(log.finish_s[~np.isnan(log.finish_s)])
    low, high = (int(share * (len(finish_s) - 1)) for share in MIDDLE)
    length_s = float(finish_s[-1] - log.arrival_s[0])
    middle_s = float(finish_s[high] - finish_s[low])
    figures = Figures(
        ttft_p50_s=found.percentiles_s["ttft"][0],
        ttft_p99_s=found.percentiles_s["ttft"][3],
        tpot_p50_s=found.percentiles_s["tpot"][0],
        tpot_mean_s=found.means_s["tpot"],
        itl_p99_s=found.percentiles_s["itl"][3],
        tokens_per_s=float(log.prompt_tokens.sum() + log.output_tokens.sum()) / length_s,
        finished_rps=(high - low) / middle_s if middle_s > 0 else None,
    )
    return figures if all(value is None or math.isfinite(value) for _, value in figures) else None


def log_of(result: BenchResult, arrival_s: Sequence[float]) -> RequestLog:
    """The log of a replay. Requests that failed have no first token and no end."""
    arrivals = np.array(arrival_s)
    count = len(arrivals)
    sent_s = _sent_s(result, arrivals)
    gaps = [np.array(gap_s) for gap_s in result.itls]
    ttft_s, rest_s = np.array(result.ttfts), np.array([gap_s.sum() for gap_s in gaps])
    answered = np.array(result.output_lens) > 0
    first_s = np.where(answered, sent_s + ttft_s, np.nan)
    every_gap_s = np.concatenate(gaps)
    bins = np.searchsorted(ITL_EDGES_S, every_gap_s, side="right")
    finish_s = first_s + rest_s
    end_s = float(np.nanmax(finish_s)) if answered.any() else 0.0
    return RequestLog(
        workload_names=("mix",),
        workload=np.zeros(count, dtype=np.int64),
        phase=np.full(count, IN_WINDOW),
        arrival_s=arrivals,
        sent_s=sent_s,
        scheduled_s=np.full(count, np.nan),
        first_token_s=first_s,
        finish_s=finish_s,
        prompt_tokens=np.array(result.input_lens, dtype=np.int64),
        cached_tokens=np.zeros(count, dtype=np.int64),
        output_tokens=np.array(result.output_lens, dtype=np.int64),
        status=np.where(answered, 0, 1),
        replica=np.full(count, -1),
        preemptions=np.zeros(count, dtype=np.int64),
        itl_max_s=np.array([gap_s.max() if len(gap_s) else np.nan for gap_s in gaps]),
        itl_edges_s=ITL_EDGES_S,
        itl_counts=np.bincount(bins, minlength=len(ITL_EDGES_S) + 1)[None, :].astype(np.int64),
        end_s=end_s,
        window_s=(0.0, max(end_s, 1e-9)),
        window_complete=True,
    )


def lateness_p99_s(result: BenchResult, arrival_s: Sequence[float]) -> float:
    """How far behind its intention the 99th of 100 requests left."""
    arrivals = np.array(arrival_s)
    return float(np.quantile(_sent_s(result, arrivals) - arrivals, 0.99))


def rate_error(result: BenchResult, arrival_s: Sequence[float]) -> float:
    """Achieved rate of sending over the intended one, minus one: from the first request to the last."""
    intended_s, sent_s = np.ptp(np.array(arrival_s)), np.ptp(np.array(result.start_times))
    if intended_s == 0:
        return 0.0
    return float(intended_s / sent_s) - 1 if sent_s > 0 else math.inf


def _sent_s(result: BenchResult, arrivals: Floats) -> Floats:
    started = np.array(result.start_times)
    return np.asarray(started - (started - arrivals).min())
