"""The unknowns of a calibration: which coefficients there are, where they start, how far they may go, and their vector.

A vector z holds standard deviations from the starting point: first one number per term (the value that all
tensor-parallel degrees share), then one deviation per degree and pooled term (partial pooling: shared physics times
exp(deviation_sd x z)). A term's value is start x exp(prior_sd x z_shared + deviation_sd x z_degree), squeezed where it
has a ceiling: an efficiency e becomes e / (1 + e^6)^(1/6), which stays below 1 and keeps a slope, so that no search
gets stuck on a bound. The starting points count as one weak observation each. They are typical values, chosen with the
shipped fits and their held-out shapes in view, so held-out errors of those fits are somewhat flattered by the choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hardware_profiles.model import ModelCard
from hardware_profiles.node import Node
from hardware_profiles.profile import AllReduce, SharedTerms, TensorParallelTerms
from simulator.all_reduce_curve import MeasuredCurve, link_bytes_per_s
from simulator.steptime import StepTimeModel, build_step_time

__all__ = ["Layout", "Term", "Values", "all_reduce_of", "build_model", "degree_terms", "layout_for", "shared_terms"]

Floats = NDArray[np.float64]
Values = Mapping[str, float]
"""Value of each term, by name, for one tensor-parallel degree."""

REACH_SD = 5.0
"""Bound of z on both sides."""
FRONT_END_S = 0.010
"""Typical delay from a request's arrival to the engine's queue, and the value where no row has a TTFT: closed loops
show only its sum with the client's gap.
10 ms is what published median TTFT of gpt-oss-120b at ISL 1024 and 4 in flight leave over beyond one simulated prompt
step: 45, 31 and 28 ms at TP 1, 4 and 8 (MI350X, vLLM 0.22.0: togethercomputer/InferenceX,
together_runner/local/recipes/README.md, 2026-09-25)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One unknown of the fit."""

    name: str
    start: float
    """Typical value."""
    prior_sd: float
    """Standard deviation of ln(value / start) before any measurement."""
    deviation_sd: float = 0.0
    """Assumed standard deviation of ln(value of a degree / shared value); 0 = the same for all degrees."""
    ceiling: float = math.inf
    """The value stays below it."""
    floor: float = 0.0
    """Added to the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The terms of one calibration and the tensor-parallel degrees it covers."""

    terms: tuple[Term, ...]
    degrees: tuple[int, ...]

    @property
    def pooled(self) -> tuple[int, ...]:
        """Indices of the terms that deviate by degree."""
        return tuple(j for j, term in enumerate(self.terms) if term.deviation_sd > 0)

    @property
    def size(self) -> int:
        return len(self.terms) + len(self.degrees) * len(self.pooled)

    def columns(self, degree: int) -> slice:
        """Where the deviations of a degree stand in z."""
        first = len(self.terms) + self.degrees.index(degree) * len(self.pooled)
        return slice(first, first + len(self.pooled))

    def values(self, z: Floats, degree: int | None) -> dict[str, float]:
        """Values of all terms for a degree; None = the shared values, the best guess for a degree never measured."""
        logs = np.array([term.prior_sd * value for term, value in zip(self.terms, z, strict=False)])
        if degree is not None:
            spread = np.array([self.terms[j].deviation_sd for j in self.pooled])
            logs[list(self.pooled)] += spread * z[self.columns(degree)]
        return {term.name: _value(term, float(log)) for term, log in zip(self.terms, logs, strict=True)}


def _value(term: Term, log: float) -> float:
    raw = term.start * math.exp(log)
    if math.isfinite(term.ceiling):
        raw = raw / (1.0 + (raw / term.ceiling) ** 6) ** (1 / 6)
    return term.floor + raw


def layout_for(card: ModelCard, degrees: tuple[int, ...], *, all_reduce_bits: float, with_ttft: bool) -> Layout:
    """The terms that rows of these degrees can tell: thirteen for a mixture of experts on several GPUs with TTFT."""
    multiplying = 0.5 if card.experts is None else 0.3  # grouped products of many experts fill the units less
    terms = [
        Term(name="smooth_exponent", start=0.5, prior_sd=0.7, floor=1.0),
        Term(name="client_gap_s", start=0.05, prior_sd=1.0),
        Term(name="step_floor_s", start=75e-6 * card.layers, prior_sd=0.3, deviation_sd=0.1),
        Term(name="prefill_floor_s", start=200e-6 * card.layers, prior_sd=0.7, deviation_sd=0.1),
        Term(name="sequence_s", start=10e-6, prior_sd=1.0, deviation_sd=0.1),
        Term(name="weight_efficiency", start=0.8, prior_sd=0.3, deviation_sd=0.1, ceiling=1.0),
        Term(name="flop_efficiency", start=multiplying, prior_sd=0.5, deviation_sd=0.1, ceiling=1.0),
        Term(name="kv_efficiency", start=0.5, prior_sd=0.7, deviation_sd=0.1, ceiling=1.0),
        Term(name="attention_efficiency", start=0.4, prior_sd=0.5, deviation_sd=0.1, ceiling=1.0),
    ]
    if with_ttft:
        terms.append(Term(name="request_overhead_s", start=FRONT_END_S, prior_sd=1.0))
    if card.experts is not None:
        terms.append(Term(name="expert_popularity_shape", start=2.5, prior_sd=0.7))
    if any(degree > 1 for degree in degrees):
        ceiling = 16.0 / all_reduce_bits
        terms.append(Term(name="all_reduce_floor_share", start=0.7, prior_sd=0.3, ceiling=1.0))
        terms.append(Term(name="large_share", start=0.75, prior_sd=0.6, deviation_sd=0.3, ceiling=ceiling))
    return Layout(terms=tuple(terms), degrees=degrees)


def shared_terms(values: Values) -> SharedTerms:
    """The terms that all degrees share, as a profile holds them."""
    return SharedTerms(
        smooth_exponent=values["smooth_exponent"],
        expert_popularity_shape=values.get("expert_popularity_shape"),
        host_s=0.0,
        host_sequence_s=0.0,
        sync_s=0.0,
        request_overhead_s=values.get("request_overhead_s", FRONT_END_S),
        client_gap_s=values["client_gap_s"],
    )


def degree_terms(values: Values) -> TensorParallelTerms:
    """The terms of one degree, as a profile holds them."""
    return TensorParallelTerms(**{name: values[name] for name in TensorParallelTerms.model_fields})


def all_reduce_of(values: Values, degree: int, *, node: Node, curves: Mapping[int, MeasuredCurve]) -> AllReduce | None:
    """The all-reduce of one degree: the measured curve, its latency cut to what remains inside a captured graph."""
    if degree == 1:
        return None
    curve = curves[degree]
    return AllReduce(
        floor_s=curve.floor_s * values["all_reduce_floor_share"],
        bytes_per_s=curve.bytes_per_s,
        to_bytes=curve.to_bytes,
        large_bytes_per_s=link_bytes_per_s(node, degree) * values["large_share"],
        large_from_bytes=curve.large_from_bytes,
        how_known=curve.how_known,
    )


def build_model(
    values: Values,
    degree: int,
    *,
    node: Node,
    card: ModelCard,
    precision: str,
    curves: Mapping[int, MeasuredCurve],
    max_tokens: int,
    kv_cache_dtype: str,
) -> StepTimeModel:
    """Step times of one degree from the values of its terms."""
    return build_step_time(
        node=node,
        card=card,
        precision=precision,
        tensor_parallel_size=degree,
        shared=shared_terms(values),
        terms=degree_terms(values),
        all_reduce=all_reduce_of(values, degree, node=node, curves=curves),
        max_tokens=max_tokens,
        kv_cache_dtype=kv_cache_dtype,
    )
