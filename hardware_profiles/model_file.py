"""A model card on disk: the numbers of a config.json, the bits of each precision, and where both come from.

Parameter counts are exact where a total of the same tensors is published: gpt-oss-120b 116,829,156,672, Llama-3.3-70B
70,553,706,496, DeepSeek-R1 671,026,419,200 (without its multi-token-prediction layer). Not counted: encoders for images
and sound, multi-token-prediction layers, LoRA.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hardware_profiles.attention import IndexKeys, KvGroup, LatentAttention, LinearAttention
from hardware_profiles.source import SourceEntry
from hardware_profiles.weights import Bits, Parameters

__all__ = ["ModelFile"]

_Count = Annotated[int, Field(gt=0)]
_BitCount = Annotated[float, Field(gt=0, le=32)]
_MULTIPLIED_IN = {"bf16": "bf16", "fp8": "fp8", "mxfp4": "fp4", "nvfp4": "fp4", "int4": "bf16"}


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _IndexEntry(_Entry):
    heads: _Count
    dim: _Count
    bytes: _Count
    split: bool = False


class _KvGroupEntry(_Entry):
    layers: _Count
    window: _Count | None = None
    reads: _Count | None = None
    index: _IndexEntry | None = None
    tokens_per_entry: _Count = 1
    branch: bool = False

    def to_group(self) -> KvGroup:
        index = None if self.index is None else IndexKeys(**self.index.model_dump())
        return KvGroup(
            layers=self.layers,
            window=self.window,
            reads=self.reads,
            index=index,
            tokens_per_entry=self.tokens_per_entry,
            branch=self.branch,
        )


class _LatentEntry(_Entry):
    q_rank: _Count | None = None
    kv_rank: _Count
    nope_dim: _Count
    rope_dim: _Count
    value_dim: _Count
    output_rank: _Count | None = None
    output_groups: _Count = 1
    fp8_bytes: _Count | None = None


class _LinearEntry(_Entry):
    layers: _Count
    key_heads: _Count
    value_heads: _Count
    key_dim: _Count
    value_dim: _Count
    conv_kernel: _Count


class _BitsEntry(_Entry):
    """Stored bits per weight by part."""

    dense_bits: _BitCount
    mlp_bits: _BitCount | None = None
    expert_bits: _BitCount | None = None
    embedding_bits: _BitCount
    multiplied_in: Literal["bf16", "fp8", "fp4"] | None = None
    block: _Count | None = None


class ModelFile(_Entry):
    """The contents of a card, checked."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$", examples=["llama-3.3-70b"])
    aliases: tuple[str, ...] = ()
    layers: _Count
    hidden: _Count
    heads: _Count
    kv_heads: _Count
    head_dim: _Count
    intermediate: int = Field(ge=0)
    vocab: _Count
    experts: _Count | None = None
    experts_per_token: _Count | None = None
    expert_intermediate: _Count | None = None
    dense_layers: int = Field(default=0, ge=0)
    shared_intermediate: int = Field(default=0, ge=0)
    shared_expert_gate: bool = False
    router_bias: bool = False
    latent: _LatentEntry | None = None
    linear: _LinearEntry | None = None
    attention_bias: bool = False
    attention_sinks: bool = False
    attention_output_gate: bool = False
    qk_norm: Literal["per_head", "per_layer"] | None = None
    expert_bias: bool = False
    tied_embeddings: bool = False
    extra_weights: int = Field(default=0, ge=0)
    sequence_bytes: int = Field(default=0, ge=0)
    kv_groups: tuple[_KvGroupEntry, ...] = Field(min_length=1)
    max_model_len: _Count
    native_precision: str
    precisions: dict[Literal["bf16", "fp8", "mxfp4", "nvfp4", "int4"], _BitsEntry] = Field(min_length=1)
    sources: dict[str, SourceEntry]

    @model_validator(mode="after")
    def _the_parts_agree(self) -> ModelFile:
        moe = (self.experts, self.experts_per_token, self.expert_intermediate)
        if any(part is None for part in moe) and any(part is not None for part in moe):
            raise ValueError("experts, experts_per_token and expert_intermediate go together; give all three or none")
        if self.experts is not None and self.experts_per_token is not None and self.experts_per_token > self.experts:
            raise ValueError(f"experts_per_token {self.experts_per_token} is more than the {self.experts} experts")
        if self.experts is None and (self.dense_layers or self.shared_intermediate):
            raise ValueError("dense_layers and shared_intermediate belong to a model with experts, and only there")
        if self.dense_layers > self.layers:
            raise ValueError(f"dense_layers {self.dense_layers} is more than the {self.layers} layers")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        if self.latent is not None and self.kv_heads != 1:
            raise ValueError(f"kv_heads {self.kv_heads}: latent attention keeps one vector for all heads; write 1")
        total = sum(group.layers for group in self.kv_groups if not group.branch)
        if any(group.branch and group.window is None for group in self.kv_groups):
            raise ValueError("a branch without a window would keep all tokens twice; give it one")
        if self.linear is None and total != self.layers:
            raise ValueError(f"kv_groups hold {total} layers, the model has {self.layers}; they must add up")
        if self.linear is not None and total + self.linear.layers != self.layers:
            held = f"kv_groups hold {total} layers and linear {self.linear.layers}"
            raise ValueError(f"{held}, the model has {self.layers}; they must add up")
        if self.native_precision not in self.precisions:
            raise ValueError(f"native_precision {self.native_precision!r} is not among precisions")
        for name, bits in self.precisions.items():
            if (bits.expert_bits is None) != (self.experts is None):
                raise ValueError(f"precision {name}: expert_bits belongs to a model with experts, and only there")
        if missing := {"shape", *self.precisions} - set(self.sources):
            raise ValueError(f"no source for {', '.join(sorted(missing))}; add it under `sources:`")
        return self

    def latent_attention(self) -> LatentAttention | None:
        return None if self.latent is None else LatentAttention(**self.latent.model_dump())

    def linear_attention(self) -> LinearAttention | None:
        return None if self.linear is None else LinearAttention(**self.linear.model_dump())

    def bits(self) -> dict[str, Bits]:
        """Bits by precision. Unless the card says otherwise, 4-bit experts multiply 16-bit activations.

        A16W4 is how gpt-oss was trained; AMD's and NVIDIA's own 4-bit checkpoints quantise activations too (W4A4).
        """
        found: dict[str, Bits] = {}
        for name, entry in self.precisions.items():
            by_name = "bf16" if name == "mxfp4" and self.experts is not None else _MULTIPLIED_IN[name]
            found[name] = Bits(
                dense=entry.dense_bits,
                mlp=entry.dense_bits if entry.mlp_bits is None else entry.mlp_bits,
                expert=entry.expert_bits or 0,
                embedding=entry.embedding_bits,
                multiplied_in=entry.multiplied_in or by_name,
                block=entry.block,
            )
        return found

    def parameters(self) -> Parameters:
        """Weights by part: ``layers`` of attention, of MLP or router and experts, and of two norms; the last norm.

        ``extra_weights`` are what no other field counts (a card says what), whole on every rank.
        """
        moe_layers = 0 if self.experts is None else self.layers - self.dense_layers
        mlp = (self.layers - moe_layers) * 3 * self.hidden * self.intermediate
        mlp += moe_layers * self.shared_intermediate * 3 * self.hidden
        dense = mlp + self._attention() + self.layers * 2 * self.hidden + self.hidden + self.extra_weights
        expert = expert_bias = 0
        if self.experts is not None and self.expert_intermediate is not None:
            router = self.experts * self.hidden + (self.experts if self.expert_bias or self.router_bias else 0)
            dense += moe_layers * (router + (self.hidden if self.shared_expert_gate else 0))
            expert = self.experts * 3 * self.hidden * self.expert_intermediate
            expert_bias = self.experts * (2 * self.expert_intermediate + self.hidden) if self.expert_bias else 0
        latent = self.latent_attention()
        replicated = 0 if latent is None else self.layers * latent.replicated_weights(self.hidden)
        return Parameters(
            embedding=self.vocab * self.hidden * (1 if self.tied_embeddings else 2),
            dense=dense,
            expert=moe_layers * expert,
            expert_bias=moe_layers * expert_bias,
            mlp=mlp,
            replicated=replicated + self.extra_weights,
        )

    def _attention(self) -> int:
        """Weights of the attention of all layers, with the norms inside it."""
        linear, latent = self.linear_attention(), self.latent_attention()
        state_layers = 0 if linear is None else linear.layers
        of_states = 0 if linear is None else state_layers * linear.weights(self.hidden)
        if latent is not None:
            return of_states + (self.layers - state_layers) * latent.weights(self.hidden, self.heads)
        query, key_value = self.heads * self.head_dim, 2 * self.kv_heads * self.head_dim
        attention = self.hidden * (query + key_value) + query * self.hidden
        if self.attention_output_gate:
            attention += self.hidden * query
        if self.attention_bias:
            attention += query + key_value + self.hidden
        if self.attention_sinks:
            attention += self.heads
        if self.qk_norm == "per_head":
            attention += 2 * self.head_dim
        if self.qk_norm == "per_layer":
            attention += query + key_value // 2
        indexes = 0
        for group in self.kv_groups:
            if group.index is not None:  # query heads, one key, and a norm each
                indexes += group.layers * (self.hidden * (group.index.heads + 1) + 2) * group.index.dim
        return of_states + (self.layers - state_layers) * attention + indexes
