"""How long one engine step takes: a hardware profile and an engine's flags, turned into arrays the kernel reads.

    step_s = max(host_s, gpu_s) + sync_s
    gpu_s  = floor + smooth_max(weight bytes / HBM rate, matrix FLOP / matrix rate)    by tokens: `decode_s`, `mixed_s`
             + (2 layers + 1) all-reduces of n x hidden x 2 bytes                      (in the same arrays)
             + sequence_s x sampled + kv_s x K + window_kv_s x K_w                     decode attention reads the cache
             + attention_s x A + window_attention_s x A_w                              prefill attention

K is the number of cached tokens that the decoding sequences read (K_w cut to the sliding window, or to what sparse
attention picks), A the (query, key) pairs of the prompt chunks. What of a token, a sequence or a weight a rank holds is
the card's to say (`ModelCard.kv_share`, `state_bytes`): linear-attention layers read and write a state per sequence and
step. A mixture-of-experts step reads the experts its tokens touch. Routers have favourites: when
the popularity of experts follows a gamma law of shape s, n tokens touch E (1 - (1 + k n / (E s))^-s) of E experts (s to
infinity: all alike; the probes of DeepSeek-R1's routers in AMD-AGI/Infera, deepseek_v3.yaml, follow s = 3 within about
2 %). Every efficiency is fitted (`calibration.py`). Source of the form: design 4.3, which has one effective-expert
factor in place of s; a factor rises too late and saturates too soon (gpt-oss-120b: worst row 6 % against 3 %). Left
out: CUDA graph padding (its steps are within the fitted terms), pipeline parallelism, expert parallelism, the
arithmetic of decoding (with latent attention and all heads on few ranks it can outlast the reading).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hardware_profiles.memory import kv_bytes_per_element
from hardware_profiles.model import ModelCard
from hardware_profiles.node import Node
from hardware_profiles.profile import AllReduce, HardwareProfile, SharedTerms, TensorParallelTerms

__all__ = ["StepTimeModel", "all_reduce_s", "build_step_time", "experts_touched", "step_time_model"]

Floats = NDArray[np.float64]

ACTIVATION_BYTES = 2
"""Activations are exchanged in BF16."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTimeModel:
    """Seconds of one engine step of one replica."""

    decode_s: Floats
    """(n_max + 1,) GPU seconds of a step of n decoding sequences, KV reads and sampling apart."""
    mixed_s: Floats
    """(n_max + 1,) the same for n tokens of which some are prompt chunks."""
    sequence_s: float
    """Per sequence that gives a token."""
    kv_s: float
    """Per cached token read by full-attention layers."""
    window_kv_s: float
    """Per cached token read by sliding-window layers."""
    attention_s: float
    """Per (query, key) pair of a prompt chunk in full-attention layers."""
    window_attention_s: float
    """Per pair in sliding-window layers."""
    prefill_request_s: float
    """Per prompt chunk in the step."""
    host_s: float
    """Per step, hidden behind the GPU."""
    host_sequence_s: float
    """Per sequence in the step, hidden behind the GPU."""
    sync_s: float
    """Per step, hidden by nothing."""
    request_overhead_s: float
    """Front end: from arrival to the engine's queue."""
    window_tokens: int
    """Sliding window; 0 = none."""

    def coefficients(self) -> Floats:
        """The scalar terms in the order of `tables`; a closed loop releases after the front end's delay."""
        return np.array(
            [
                self.sequence_s,
                self.kv_s,
                self.window_kv_s,
                self.attention_s,
                self.window_attention_s,
                self.prefill_request_s,
                self.host_s,
                self.host_sequence_s,
                self.sync_s,
                self.request_overhead_s,
            ]
        )

    def step_s(
        self,
        *,
        decodes: int,
        decode_tokens: int,
        prefill_tokens: int,
        prefills: int,
        sampled: int,
        context: int,
        window_context: int,
        pairs: float,
        window_pairs: float,
    ) -> float:
        """Seconds of a step with these counts. The kernels compute the same sum, term by term in the same order.

        `decodes` sequences read their cache and compute `decode_tokens`: one each, and their drafts. What a drafter
        itself computes is left out: nothing for n-grams, a layer or two for EAGLE and MTP.
        """
        base = self.mixed_s[decode_tokens + prefill_tokens] if prefills else self.decode_s[decode_tokens]
        gpu_s = (
            float(base)
            + self.sequence_s * sampled
            + self.kv_s * context
            + self.window_kv_s * window_context
            + self.attention_s * pairs
            + self.window_attention_s * window_pairs
            + self.prefill_request_s * prefills
        )
        return max(self.host_s + self.host_sequence_s * (decodes + prefills), gpu_s) + self.sync_s

    def not_overlapped(self) -> StepTimeModel:
        """The same without asynchronous scheduling: the host's work comes on top of the GPU's (design 4.3).

        Sequences cost the host something in decode and mixed steps alike, so its terms move into those of the GPU.
        """
        return replace(
            self,
            sync_s=self.sync_s + self.host_s,
            sequence_s=self.sequence_s + self.host_sequence_s,
            host_s=0.0,
            host_sequence_s=0.0,
        )

    def scaled(self, factor: float) -> StepTimeModel:
        """Every step `factor` times as long."""
        return replace(
            self,
            decode_s=self.decode_s * factor,
            mixed_s=self.mixed_s * factor,
            sequence_s=self.sequence_s * factor,
            kv_s=self.kv_s * factor,
            window_kv_s=self.window_kv_s * factor,
            attention_s=self.attention_s * factor,
            window_attention_s=self.window_attention_s * factor,
            prefill_request_s=self.prefill_request_s * factor,
            host_s=self.host_s * factor,
            host_sequence_s=self.host_sequence_s * factor,
            sync_s=self.sync_s * factor,
        )


def all_reduce_s(curve: AllReduce, message_bytes: Floats) -> Floats:
    """Seconds of one all-reduce: the measured custom curve, a line up to the large regime, then one bandwidth."""
    small = curve.floor_s + message_bytes / curve.bytes_per_s
    large = curve.floor_s + message_bytes / curve.large_bytes_per_s
    share = np.clip((message_bytes - curve.to_bytes) / (curve.large_from_bytes - curve.to_bytes), 0.0, 1.0)
    between_low = curve.floor_s + curve.to_bytes / curve.bytes_per_s
    between_high = curve.floor_s + curve.large_from_bytes / curve.large_bytes_per_s
    between = between_low + share * (between_high - between_low)
    return np.where(message_bytes <= curve.to_bytes, small, np.where(share < 1.0, between, large))


def matrix_rate_flops(node: Node, card: ModelCard, precision: str) -> float:
    """Dense matrix rate that a precision's efficiency refers to: measured where there is one, else the vendor's.

    Which type multiplies is the card's to say: gpt-oss's MXFP4 experts multiply 16-bit activations (A16W4).
    """
    key = card.weight_bytes(precision).multiplied_in
    if key not in node.flops:  # the GPU computes in the next wider type
        key = "fp8" if key == "fp4" and "fp8" in node.flops else "bf16"
    return float(node.measured_flops.get(key, node.flops[key]))


def experts_touched(tokens_per_expert: Floats, shape: float | None) -> Floats:
    """Share of the experts that a step reads, by the mean number of tokens sent to each."""
    if shape is None:
        return 1.0 - np.exp(-tokens_per_expert)
    return 1.0 - (1.0 + tokens_per_expert / shape) ** -shape


def _smooth_max(a: Floats, b: Floats, power: float) -> Floats:
    """(a^p + b^p)^(1/p), without overflow."""
    longer = np.maximum(a, b)
    return np.asarray(longer * (1.0 + (np.minimum(a, b) / longer) ** power) ** (1.0 / power))


def build_step_time(
    *,
    node: Node,
    card: ModelCard,
    precision: str,
    tensor_parallel_size: int,
    shared: SharedTerms,
    terms: TensorParallelTerms,
    all_reduce: AllReduce | None,
    max_tokens: int,
    kv_cache_dtype: str = "auto",
) -> StepTimeModel:
    """The arrays for one tensor-parallel degree, up to `max_tokens` tokens in a step."""
    tp = tensor_parallel_size
    weights = card.weight_bytes(precision)
    tokens = np.arange(max_tokens + 1, dtype=np.float64)
    head_bytes = (
        weights.embedding_bytes / 2 if card.parameters.embedding > card.vocab * card.hidden else weights.embedding_bytes
    )
    shared_out = (weights.dense_bytes - weights.replicated_bytes + head_bytes) / tp
    read_bytes = np.full(max_tokens + 1, shared_out + weights.replicated_bytes)
    replicated = card.parameters.replicated
    active = card.parameters.dense - replicated + card.vocab * card.hidden
    if card.experts is not None and card.experts_per_token is not None:
        share = card.experts_per_token / card.experts
        touched = experts_touched(tokens * share, shared.expert_popularity_shape)
        read_bytes = read_bytes + weights.expert_bytes / tp * touched
        active += round(card.parameters.expert * share)
    hbm = node.hbm_rate_bytes_per_s
    read_s = read_bytes / (hbm * terms.weight_efficiency)
    flop_rate = matrix_rate_flops(node, card, precision) * terms.flop_efficiency
    token_s = (2.0 * active / tp + 2.0 * replicated) / flop_rate
    power = shared.smooth_exponent
    exchange_s = np.zeros(max_tokens + 1)
    if tp > 1 and all_reduce is not None:
        exchange_s = (2 * card.layers + 1) * all_reduce_s(all_reduce, tokens * card.hidden * ACTIVATION_BYTES)
    decode_s = terms.step_floor_s + _smooth_max(read_s, token_s * tokens, power) + exchange_s
    mixed_s = decode_s + terms.prefill_floor_s
    decode_s[0] = mixed_s[0] = 0.0

    element = kv_bytes_per_element(kv_cache_dtype)
    kv_rate = hbm * terms.kv_efficiency
    per_byte_s = card.kv_share(tp) / kv_rate
    per_pair_s = card.attention_flop_per_pair / tp / (float(node.flops["bf16"]) * terms.attention_efficiency)
    index_pair_s = card.index_flop_per_pair(tp) / (float(node.flops["bf16"]) * terms.attention_efficiency)
    window = card.read_window_tokens
    full_kv, window_kv, full_layers, window_layers = 0.0, 0.0, 0.0, 0.0
    for group, kv_bytes in zip(card.kv_groups, card.kv_bytes_per_token(element), strict=True):
        layers = group.layers / group.tokens_per_entry
        if group.read_limit is None:
            full_kv, full_layers = full_kv + kv_bytes, full_layers + layers
        else:  # the kernel knows one window; a shorter one reads its share of it
            share = group.read_limit / window
            window_kv, window_layers = window_kv + kv_bytes * share, window_layers + layers * share
    return StepTimeModel(
        decode_s=decode_s,
        mixed_s=mixed_s,
        sequence_s=terms.sequence_s + 2 * card.state_bytes / tp / kv_rate,
        kv_s=full_kv * per_byte_s + card.index_bytes_per_token / kv_rate,
        window_kv_s=window_kv * per_byte_s,
        attention_s=per_pair_s * full_layers + index_pair_s,
        window_attention_s=per_pair_s * window_layers,
        prefill_request_s=0.0,
        host_s=shared.host_s,
        host_sequence_s=shared.host_sequence_s,
        sync_s=shared.sync_s,
        request_overhead_s=shared.request_overhead_s,
        window_tokens=window,
    )


def step_time_model(
    profile: HardwareProfile,
    *,
    node: Node,
    card: ModelCard,
    tensor_parallel_size: int,
    max_tokens: int,
    kv_cache_dtype: str = "auto",
) -> StepTimeModel:
    """The step times of a shipped, fitted or drawn profile; the profile must hold this tensor-parallel degree."""
    model = build_step_time(
        node=node,
        card=card,
        precision=profile.precision,
        tensor_parallel_size=tensor_parallel_size,
        shared=profile.shared,
        terms=profile.tensor_parallel[tensor_parallel_size],
        all_reduce=profile.all_reduce.get(tensor_parallel_size),
        max_tokens=max_tokens,
        kv_cache_dtype=kv_cache_dtype,
    )
    return model if profile.step_factor == 1.0 else model.scaled(profile.step_factor)
