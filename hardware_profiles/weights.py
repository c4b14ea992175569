"""A model's weights: how many there are, by part, and what they weigh in one precision.

A step reads dense weights whole and, of the experts, those its tokens are sent to; so the parts are counted apart.
A precision says how many bits a stored weight takes: MXFP4 is 4 bits and one 8-bit scale per 32 weights, MXFP8 is 8 and
the same scale (OCP Microscaling Formats 1.0), NVFP4 has a scale per 16, group-wise INT4 a 16-bit scale per 32.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

__all__ = ["Bits", "Parameters", "WeightBytes", "weight_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Counts of weights by part of the model."""

    embedding: int
    "Input embedding and output head (one matrix where they are tied)."
    dense: int
    "Attention, dense MLP, shared experts, router, norms and their biases: read for every step."
    expert: int
    "Matrices of all routed experts; a step reads those its tokens are sent to."
    expert_bias: int
    "Biases of all experts, stored at 16 bits."
    mlp: int
    "Of ``dense``: MLPs of dense layers and shared experts."
    replicated: int
    "Of ``dense``: what every rank holds whole; norms, under 0.01 %, are not counted so."

    @property
    def total(self) -> int:
        return self.embedding + self.dense + self.expert + self.expert_bias


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBytes:
    """Bytes of the stored weights of the whole model, by part, in one precision."""

    dense_bytes: int
    "Attention, dense MLP, shared experts, router, norms."
    expert_bytes: int
    "All routed experts with their biases; 0 in a model without."
    embedding_bytes: int
    "Input embedding and output head."
    replicated_bytes: int
    "Of ``dense_bytes``: what every rank holds whole."
    multiplied_in: str
    "Type the matrix units multiply most weights in: bf16, fp8 or fp4."
    block: int | None
    "Columns of a block of weights with one scale, which no two ranks can share; None = no such blocks."

    @property
    def total_bytes(self) -> int:
        return self.dense_bytes + self.expert_bytes + self.embedding_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Bits:
    """Stored bits of a weight by part, and the type it is multiplied in."""

    dense: float
    "Attention and router."
    mlp: float
    "MLPs of dense layers and shared experts."
    expert: float
    "Routed experts."
    embedding: float
    "Input embedding and output head."
    multiplied_in: str
    "As `WeightBytes.multiplied_in`."
    block: int | None
    "As `WeightBytes.block`."


def weight_bytes(parameters: Parameters, bits: Bits) -> WeightBytes:
    """What the counted weights weigh. Scales of FP8 blocks are left out: 0.02 % at one per 128 x 128."""
    if bits.mlp == bits.dense:
        dense_bytes = _bytes(parameters.dense, bits.dense)
    else:
        dense_bytes = _bytes(parameters.dense - parameters.mlp, bits.dense) + _bytes(parameters.mlp, bits.mlp)
    return WeightBytes(
        dense_bytes=dense_bytes,
        expert_bytes=_bytes(parameters.expert, bits.expert) + 2 * parameters.expert_bias,
        embedding_bytes=_bytes(parameters.embedding, bits.embedding),
        replicated_bytes=_bytes(parameters.replicated, bits.dense),
        multiplied_in=bits.multiplied_in,
        block=bits.block,
    )


def _bytes(weights: int, bits: float) -> int:
    return round(weights * Fraction(bits) / 8)
