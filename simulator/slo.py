"""Latency targets of one workload, as the user writes them (milliseconds) and as the score reads them (seconds).

Two kinds. A *per-request* target makes a request good or not, and `attainment` is the share of requests that must be
good. A *percentile* target is held by the whole workload: the p-th percentile of the metric must not exceed it.
TTFT counts from the intended arrival; TPOT is (finish - first token) / (output tokens - 1), so an answer of one token
has none; ITL is the distribution of single gaps between tokens, so it has no per-request form here; E2E is arrival to
finish.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Metric", "PercentileTarget", "Slo"]

Metric: TypeAlias = Literal["ttft", "tpot", "itl", "e2e"]

_METRICS: tuple[Metric, ...] = ("ttft", "tpot", "itl", "e2e")
_PERCENTILES = (50, 90, 95, 99)

_Ttft = Annotated[float | None, Field(gt=0, examples=[500])]
_Gap = Annotated[float | None, Field(gt=0, examples=[40])]
_E2e = Annotated[float | None, Field(gt=0, examples=[10000])]


@dataclass(frozen=True, slots=True, kw_only=True)
class PercentileTarget:
    """A limit on one percentile of one metric over all judged requests of a workload."""

    metric: Metric
    "Which time: ttft, tpot, itl or e2e."
    percentile: int
    "50, 90, 95 or 99."
    limit_s: float
    "The percentile must be at most this, in seconds."


class Slo(BaseModel):
    """The ``slo:`` block of a workload."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    ttft_ms: _Ttft = None
    "Time to the first token of each request, ms."
    tpot_ms: _Gap = None
    "Mean time per output token after the first, of each request, ms. One-token answers have none."
    e2e_ms: _E2e = None
    "Arrival to last token of each request, ms."
    attainment: Annotated[float, Field(gt=0, lt=1, examples=[0.99])] = 0.99
    "Share of requests that must meet all per-request targets; 0.99 is 99 %."

    ttft_p50_ms: _Ttft = None
    "Median time to first token, ms; likewise below for p90, p95 and p99."
    ttft_p90_ms: _Ttft = None
    ttft_p95_ms: _Ttft = None
    ttft_p99_ms: _Ttft = None
    tpot_p50_ms: _Gap = None
    "Median over requests of the time per output token, ms."
    tpot_p90_ms: _Gap = None
    tpot_p95_ms: _Gap = None
    tpot_p99_ms: _Gap = None
    itl_p50_ms: _Gap = None
    "Median over all single gaps between tokens, ms."
    itl_p90_ms: _Gap = None
    itl_p95_ms: _Gap = None
    itl_p99_ms: _Gap = None
    e2e_p50_ms: _E2e = None
    "Median time from arrival to last token, ms."
    e2e_p90_ms: _E2e = None
    e2e_p95_ms: _E2e = None
    e2e_p99_ms: _E2e = None

    def per_request_s(self) -> dict[Metric, float]:
        """The per-request limits that were given, in seconds."""
        given: dict[Metric, float] = {}
        for metric in _METRICS:
            limit_ms = getattr(self, f"{metric}_ms", None)
            if limit_ms is not None:
                given[metric] = limit_ms / 1e3
        return given

    def percentile_targets(self) -> tuple[PercentileTarget, ...]:
        """The percentile limits that were given, in a fixed order."""
        return tuple(
            PercentileTarget(metric=metric, percentile=percentile, limit_s=limit_ms / 1e3)
            for metric in _METRICS
            for percentile in _PERCENTILES
            if (limit_ms := getattr(self, f"{metric}_p{percentile}_ms")) is not None
        )

    def metrics(self) -> frozenset[Metric]:
        """Every metric that carries a target of either kind; empty when there is none."""
        return frozenset(self.per_request_s()) | {target.metric for target in self.percentile_targets()}

    def judges_one_token_answers(self) -> bool:
        """False when every target is on gaps between tokens, of which a one-token answer has none."""
        return bool(self.metrics() & {"ttft", "e2e"})
