"""One kind of traffic as the user writes it: how requests arrive, how long they are, what is promised.

A workload is either online ``traffic`` (people wait for each answer) or a ``batch`` (a pile of requests with a deadline
for the pile). Rates are requests per second of the whole service, not of one server.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from simulator.lengths import Lengths
from simulator.shared_prefix import Prefix
from simulator.slo import Slo

__all__ = ["Batch", "ClosedTraffic", "RateTraffic", "TraceTraffic", "Workload"]

BATCH_STEADY_SHARE = 0.95
"Share of the time allowed that a batch is spread over; the rest is each request's own deadline."


class RateTraffic(BaseModel):
    """``{rate_rps: 40}``: independent users (Poisson), or burstier than that with ``arrivals: gamma``."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    rate_rps: Annotated[float, Field(gt=0, examples=[40])]
    "Mean requests per second in the busy hour to plan for."
    arrivals: Literal["poisson", "gamma"] = "poisson"
    "Distribution of the gaps between requests."
    burstiness: Annotated[float | None, Field(gt=0, examples=[0.5])] = None
    "Shape of the gamma gaps, as in `vllm bench serve --burstiness`: 1 is Poisson, below 1 burstier, cv = 1/sqrt(it)."

    @model_validator(mode="after")
    def _burstiness_belongs_to_gamma(self) -> Self:
        if self.arrivals == "gamma" and self.burstiness is None:
            raise ValueError("arrivals: gamma needs a burstiness, e.g. burstiness: 0.5 (1 would be Poisson)")
        if self.arrivals == "poisson" and self.burstiness is not None:
            raise ValueError(f"burstiness: {self.burstiness:g} has no effect on Poisson arrivals; add arrivals: gamma")
        return self

    @property
    def gamma_shape(self) -> float:
        """Shape of the gap distribution with mean 1; 1.0 is exponential."""
        return 1.0 if self.burstiness is None else self.burstiness


class TraceTraffic(BaseModel):
    """``{trace: calls.csv, scale: 2.0}``: requests as they were recorded, with their lengths."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    trace: Annotated[str, Field(min_length=1, examples=["calls.csv"])]
    "The trace file; a relative path starts at the scenario's folder."
    format: Literal["azure", "burstgpt", "csv", "mooncake", "bailian", "vllm_timed"] | None = None
    "A CSV's header tells azure, burstgpt and csv (arrival_s,prompt_tokens,output_tokens); JSON lines must be named."
    time_unit: Literal["s", "ms"] | None = None
    "What a timestamp of JSON lines counts. mooncake (ms) and bailian (s) say it themselves, vllm_timed does not."
    block_tokens: Annotated[int | None, Field(ge=1, le=1_000_000, examples=[512])] = None
    "Tokens of a block of hash_ids. mooncake (512) and bailian (16) say it themselves, vllm_timed does not."
    scale: Annotated[float, Field(gt=0, examples=[2.0])] = 1.0
    "Times the recorded traffic: below 1 requests are left out at random, above 1 shifted copies are laid over it."


class ClosedTraffic(BaseModel):
    """``{concurrency: 64}``: so many users who each send the next request when the last is answered.

    Benchmarks load a server like this. A fleet is not planned on it: slow answers slow the load down, so no latency
    target can fail it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    concurrency: Annotated[int, Field(ge=1, le=1_000_000, examples=[64])]
    "Requests in flight at any time, over the whole fleet."


def _of_one_kind(traffic: object) -> object:
    kinds = [key for key in ("rate_rps", "trace", "concurrency") if isinstance(traffic, dict) and key in traffic]
    if len(kinds) > 1:
        raise ValueError(f"{' and '.join(kinds)} exclude each other; keep one")
    return traffic


class Batch(BaseModel):
    """``{requests: 2_000_000, within_hours: 8}``: work that must be done by a time, in any order."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    requests: Annotated[int, Field(ge=1, le=1_000_000_000_000, examples=[2_000_000])]
    "How many requests the batch has."
    within_hours: Annotated[float, Field(gt=0, examples=[8])]
    "Hours from the start to the finish of the last request."

    @property
    def rate_rps(self) -> float:
        """The constant rate that starts all requests in the first 95 % of the time."""
        return self.requests / (BATCH_STEADY_SHARE * self.within_hours * 3600)

    @property
    def deadline_s(self) -> float:
        """Seconds from arrival to finish allowed for each request: the last 5 %, so that the last one is in time."""
        return (1 - BATCH_STEADY_SHARE) * self.within_hours * 3600


class Workload(BaseModel):
    """One entry under ``workloads:``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    traffic: Annotated[RateTraffic | TraceTraffic | ClosedTraffic | None, BeforeValidator(_of_one_kind)] = None
    "How online requests arrive: {rate_rps}, {trace} or {concurrency}."
    batch: Batch | None = None
    "A pile of requests with a deadline, instead of traffic."
    isl: Annotated[Lengths | None, Field(examples=[256])] = None
    "Tokens of the whole prompt: a number, {mean, cv} (lognormal) or {uniform: [a, b]}. A trace brings its own."
    osl: Annotated[Lengths | None, Field(examples=[256])] = None
    "Tokens of the answer, written like isl."
    prefix: Prefix | None = None
    "What prompts share: {documents, tokens, popularity}. It helps where enable_prefix_caching is on."
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000, examples=[10])] = 0
    "Lower is served first where scheduling_policy is priority."
    slo: Slo = Slo()
    "The latency targets. A batch needs none: its deadline is one."

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        if (self.traffic is None) == (self.batch is None):
            found = "neither traffic nor batch" if self.batch is None else "both traffic and batch"
            raise ValueError(f"{found} given; give one of them, e.g. traffic: {{rate_rps: 40}}")
        if isinstance(self.traffic, TraceTraffic):
            if self.prefix is not None:
                raise ValueError(
                    "prefix is given, but prompts of a trace share what was recorded; remove prefix, or the trace"
                )
            if self.isl is not None or self.osl is not None:
                given = "isl" if self.isl is not None else "osl"
                raise ValueError(f"{given} is given, but the trace brings the lengths; remove {given}, or the trace")
        elif self.isl is None or self.osl is None:
            absent = "isl" if self.isl is None else "osl"
            example = f"{absent}: 256 or {absent}: {{mean: 256, cv: 0.6}}"
            raise ValueError(f"{absent} is missing; give its tokens, e.g. {example}")
        self._check_targets()
        return self

    def _check_targets(self) -> None:
        metrics = self.slo.metrics()
        if not metrics and isinstance(self.traffic, RateTraffic | TraceTraffic):
            raise ValueError("no latency target; online traffic needs one, e.g. slo: {ttft_ms: 500, tpot_ms: 40}")
        if metrics and self.osl_is_one_token and not self.slo.judges_one_token_answers():
            names = " and ".join(sorted(metrics))
            raise ValueError(
                f"{names} is the only target, but answers of one token (osl: 1) have no gaps between tokens; "
                "give a target that applies, e.g. ttft_ms: 500"
            )

    @property
    def osl_is_one_token(self) -> bool:
        """True when every answer is known to have one token (a trace's answers are not known here)."""
        if isinstance(self.osl, int):
            return self.osl == 1
        return self.osl is not None and getattr(self.osl, "uniform", None) == (1, 1)
