"""A profile at a tensor-parallel degree that nobody measured: what a planner asks when the rows cover others.

The degree gets the profile's typical terms, the shared values that measured degrees deviate from. Its all-reduce is the
node's curve for that degree, scaled as the measured degrees scale theirs: one share of the standalone latency for all,
and the geometric mean of their shares of the link rate. How far a degree may lie from it is `deviation_sd`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hardware_profiles.model import ModelCard
from hardware_profiles.node import Node
from hardware_profiles.profile import HardwareProfile
from simulator.all_reduce_curve import all_reduce_curves, link_bytes_per_s
from simulator.coefficients import all_reduce_of, layout_for

__all__ = ["with_degree"]

PLAIN_BITS = 16.0
"""Bits per value in an all-reduce that is not quantised."""


def with_degree(profile: HardwareProfile, degree: int, *, node: Node, card: ModelCard) -> HardwareProfile | None:
    """The profile with this degree; None where it has no typical terms to take it from."""
    if degree in profile.tensor_parallel:
        return profile
    if profile.typical is None:
        return None
    all_reduce = dict(profile.all_reduce)
    if degree > 1:
        curves = all_reduce_curves(node, (degree, *profile.all_reduce))
        values = {
            term.name: term.start
            for term in layout_for(card, (degree,), all_reduce_bits=PLAIN_BITS, with_ttft=False).terms
        }
        if measured := profile.all_reduce:
            floors = [curve.floor_s / curves[tp].floor_s for tp, curve in measured.items()]
            rates = [curve.large_bytes_per_s / link_bytes_per_s(node, tp) for tp, curve in measured.items()]
            values["all_reduce_floor_share"] = _geometric_mean(floors)
            values["large_share"] = _geometric_mean(rates)
        found = all_reduce_of(values, degree, node=node, curves=curves)
        assert found is not None
        told = f"TP {degree} was not measured under load; {found.how_known}"
        all_reduce[degree] = found.model_copy(update={"how_known": told})
    return replace(
        profile,
        all_reduce=all_reduce,
        tensor_parallel={**profile.tensor_parallel, degree: profile.typical},
    )


def _geometric_mean(values: list[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))
