"""A model card is a model's shape: what decides the bytes of its weights and KV cache and the arithmetic of one token.

Counts are exact: gpt-oss-120b comes to 116,829,156,672 parameters and Llama-3.3-70B to 70,553,706,496, as published.
A precision says how many bits a stored weight takes, by part: MXFP4 is 4 bits and one shared 8-bit scale per 32 weights
(OCP Microscaling Formats 1.0), so 4.25. Not modelled: latent attention (MLA), state-space layers, encoders, LoRA.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hardware_profiles.errors import InputError
from hardware_profiles.model_config_json import read_config_json
from hardware_profiles.shipped import find_file, shipped_names
from hardware_profiles.source import Source, SourceEntry
from hardware_profiles.strict_yaml import load_model, load_yaml

__all__ = ["KvGroup", "ModelCard", "Parameters", "WeightBytes", "list_model_cards", "load_model_card", "precision_name"]

PRECISION_ALIASES = {"fp4": "mxfp4", "bfloat16": "bf16"}
"What benchmark rows and people also call a precision."


def precision_name(name: str) -> str:
    """The card's word for a precision: ``fp4`` is ``mxfp4``."""
    return PRECISION_ALIASES.get(name.lower(), name.lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGroup:
    """Layers whose KV cache behaves alike."""

    layers: int
    "Number of layers."
    window: int | None
    "Sliding window in tokens; None = full attention."


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Counts of weights by part of the model."""

    embedding: int
    "Input embedding and output head (one matrix where they are tied)."
    dense: int
    "Attention, dense MLP, router, norms and their biases: read for every step."
    expert: int
    "Matrices of all experts; a step reads those its tokens are sent to."
    expert_bias: int
    "Biases of all experts, stored at 16 bits."

    @property
    def total(self) -> int:
        return self.embedding + self.dense + self.expert + self.expert_bias


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBytes:
    """Bytes of the stored weights of the whole model, by part, in one precision."""

    dense_bytes: int
    "Attention, dense MLP, router, norms."
    expert_bytes: int
    "All experts with their biases; 0 in a dense model."
    embedding_bytes: int
    "Input embedding and output head."

    @property
    def total_bytes(self) -> int:
        return self.dense_bytes + self.expert_bytes + self.embedding_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """The shape of one decoder-only model."""

    name: str
    "Short name, as in a scenario's ``model``."
    aliases: tuple[str, ...]
    "Other names it goes by in benchmark rows and on model hubs."
    layers: int
    "Transformer layers."
    hidden: int
    "Width of the residual stream."
    heads: int
    "Query heads."
    kv_heads: int
    "Key/value heads."
    head_dim: int
    "Width of one head."
    intermediate: int
    "Inner width of the dense MLP; unused in a model whose layers are all MoE."
    vocab: int
    "Vocabulary size."
    experts: int | None
    "Routed experts per layer; None = dense."
    experts_per_token: int | None
    "Experts a token is sent to."
    expert_intermediate: int | None
    "Inner width of one expert."
    kv_groups: tuple[KvGroup, ...]
    "Layers grouped by their KV cache; the layers add up to ``layers``."
    max_model_len: int
    "Longest sequence the model was made for, in tokens."
    native_precision: str
    "The precision of the published weights."
    parameters: Parameters
    "Weight counts by part."
    precisions: Mapping[str, WeightBytes]
    "Bytes by precision this model is served in."
    sources: Mapping[str, Source]
    "Provenance: ``shape`` and one entry per precision."

    def weight_bytes(self, precision: str) -> WeightBytes:
        """Bytes in a precision given by name or alias."""
        name = precision_name(precision)
        if name not in self.precisions:
            known = ", ".join(self.precisions)
            raise InputError(f"precision {precision!r} is not on the card of {self.name}; it knows {known}")
        return self.precisions[name]

    def kv_bytes_per_token(self, kv_bytes_per_element: int = 2) -> tuple[int, ...]:
        """Bytes one token adds to the whole model's KV cache, by KV group: 2 x layers x kv_heads x head_dim x element.

        The number of KV heads counts, not the hidden size, and the KV cache's element size is its own: INT8 or MXFP4
        weights leave it at 16 bits. In a sliding group only the last ``window`` tokens stay.
        """
        per_layer = 2 * self.kv_heads * self.head_dim * kv_bytes_per_element
        return tuple(per_layer * group.layers for group in self.kv_groups)


class _KvGroupEntry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    layers: int = Field(gt=0)
    window: int | None = Field(default=None, gt=0)


class _Bits(BaseModel):
    """Stored bits per weight by part."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dense_bits: float = Field(gt=0, le=32)
    expert_bits: float | None = Field(default=None, gt=0, le=32)
    embedding_bits: float = Field(gt=0, le=32)


class _ModelFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$", examples=["llama-3.3-70b"])
    aliases: tuple[str, ...] = ()
    layers: int = Field(gt=0)
    hidden: int = Field(gt=0)
    heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    intermediate: int = Field(ge=0)
    vocab: int = Field(gt=0)
    experts: int | None = Field(default=None, gt=0)
    experts_per_token: int | None = Field(default=None, gt=0)
    expert_intermediate: int | None = Field(default=None, gt=0)
    attention_bias: bool = False
    attention_sinks: bool = False
    expert_bias: bool = False
    tied_embeddings: bool = False
    kv_groups: tuple[_KvGroupEntry, ...] = Field(min_length=1)
    max_model_len: int = Field(gt=0)
    native_precision: str
    precisions: dict[Literal["bf16", "fp8", "mxfp4"], _Bits] = Field(min_length=1)
    sources: dict[str, SourceEntry]

    @model_validator(mode="after")
    def _the_parts_agree(self) -> _ModelFile:
        moe = (self.experts, self.experts_per_token, self.expert_intermediate)
        if any(part is None for part in moe) and any(part is not None for part in moe):
            raise ValueError("experts, experts_per_token and expert_intermediate go together; give all three or none")
        if self.experts is not None and self.experts_per_token is not None and self.experts_per_token > self.experts:
            raise ValueError(f"experts_per_token {self.experts_per_token} is more than the {self.experts} experts")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        if (total := sum(group.layers for group in self.kv_groups)) != self.layers:
            raise ValueError(f"kv_groups hold {total} layers, the model has {self.layers}; they must add up")
        if self.native_precision not in self.precisions:
            raise ValueError(f"native_precision {self.native_precision!r} is not among precisions")
        for name, bits in self.precisions.items():
            if (bits.expert_bits is None) != (self.experts is None):
                raise ValueError(f"precision {name}: expert_bits belongs to a model with experts, and only there")
        if missing := {"shape", *self.precisions} - set(self.sources):
            raise ValueError(f"no source for {', '.join(sorted(missing))}; add it under `sources:`")
        return self


def list_model_cards() -> tuple[str, ...]:
    """Names of the shipped model cards."""
    return shipped_names("models")


def load_model_card(name_or_path: str | Path, *, relative_to: Path | None = None) -> ModelCard:
    """A model card by name or alias, a card file, or a model folder or its ``config.json``.

    ``openai/gpt-oss-120b`` is an alias although it has a slash: aliases are looked up first, unless the path exists.
    """
    text = str(name_or_path)
    # os.path, unlike Path, takes a name too long or odd for the file system as a name that does not exist.
    path = Path(text) if relative_to is None else relative_to / text
    if isinstance(name_or_path, Path) or os.path.isdir(path) or path.suffix in (".json", ".yaml", ".yml"):
        return _load_path(name_or_path if isinstance(name_or_path, Path) and relative_to is None else path)
    wanted = text.lower()
    for shipped in list_model_cards():
        file = _read_card(find_file(shipped, folder="models", relative_to=None, what="model"))
        if wanted == file.name or wanted in (alias.lower() for alias in file.aliases):
            return _card(file)
    if "/" in text:
        known = ", ".join(list_model_cards())
        raise InputError(f"unknown model {text!r}: neither a model folder nor an alias of a card ({known})")
    return _load_path(find_file(text, folder="models", relative_to=relative_to, what="model"))


def _load_path(path: Path) -> ModelCard:
    if os.path.isdir(path):
        path = path / "config.json"
    if path.suffix != ".json":
        return _card(_read_card(path))
    try:
        return _card(_ModelFile.model_validate_json(json.dumps(read_config_json(path))))
    except ValidationError as error:
        raise InputError(error.errors()[0]["msg"].removeprefix("Value error, "), file=str(path)) from None


def _read_card(path: Path) -> _ModelFile:
    return load_model(load_yaml(path), _ModelFile, what="a model card")


def _card(file: _ModelFile) -> ModelCard:
    parameters = _parameters(file)
    return ModelCard(
        name=file.name,
        aliases=file.aliases,
        layers=file.layers,
        hidden=file.hidden,
        heads=file.heads,
        kv_heads=file.kv_heads,
        head_dim=file.head_dim,
        intermediate=file.intermediate,
        vocab=file.vocab,
        experts=file.experts,
        experts_per_token=file.experts_per_token,
        expert_intermediate=file.expert_intermediate,
        kv_groups=tuple(KvGroup(layers=group.layers, window=group.window) for group in file.kv_groups),
        max_model_len=file.max_model_len,
        native_precision=file.native_precision,
        parameters=parameters,
        precisions={name: _weight_bytes(parameters, bits) for name, bits in file.precisions.items()},
        sources={field: entry.to_source() for field, entry in file.sources.items()},
    )


def _parameters(file: _ModelFile) -> Parameters:
    query, key_value = file.heads * file.head_dim, 2 * file.kv_heads * file.head_dim
    attention = file.hidden * (query + key_value) + query * file.hidden
    if file.attention_bias:
        attention += query + key_value + file.hidden
    if file.attention_sinks:
        attention += file.heads
    norms = 2 * file.hidden
    if file.experts is None or file.expert_intermediate is None:
        mlp, expert, expert_bias = 3 * file.hidden * file.intermediate, 0, 0
    else:
        mlp = file.experts * file.hidden + (file.experts if file.expert_bias else 0)  # the router
        expert = file.experts * 3 * file.hidden * file.expert_intermediate
        expert_bias = file.experts * (2 * file.expert_intermediate + file.hidden) if file.expert_bias else 0
    return Parameters(
        embedding=file.vocab * file.hidden * (1 if file.tied_embeddings else 2),
        dense=file.layers * (attention + mlp + norms) + file.hidden,
        expert=file.layers * expert,
        expert_bias=file.layers * expert_bias,
    )


def _weight_bytes(parameters: Parameters, bits: _Bits) -> WeightBytes:
    return WeightBytes(
        dense_bytes=_bytes(parameters.dense, bits.dense_bits),
        expert_bytes=_bytes(parameters.expert, bits.expert_bits or 0) + 2 * parameters.expert_bias,
        embedding_bytes=_bytes(parameters.embedding, bits.embedding_bits),
    )


def _bytes(weights: int, bits: float) -> int:
    return round(weights * Fraction(bits) / 8)
