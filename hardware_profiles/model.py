"""A model card is a model's shape: what decides the bytes of its weights and KV cache and the arithmetic of one token.

Weights are counted by part (`weights.py`), what a token or a sequence leaves behind by kind of attention
(`attention.py`); `model_file.py` is the card on disk. Not modelled: Mamba layers, encoders, LoRA.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from hardware_profiles.attention import KvGroup, LatentAttention, LinearAttention
from hardware_profiles.errors import InputError
from hardware_profiles.model_config_json import read_config_json
from hardware_profiles.model_file import ModelFile
from hardware_profiles.shipped import find_file, shipped_names
from hardware_profiles.source import Source
from hardware_profiles.strict_yaml import load_model, load_yaml
from hardware_profiles.weights import Parameters, WeightBytes, weight_bytes

__all__ = ["KvGroup", "ModelCard", "Parameters", "WeightBytes", "list_model_cards", "load_model_card", "precision_name"]

PRECISION_ALIASES = {"fp4": "mxfp4", "bfloat16": "bf16"}
"What benchmark rows and people also call a precision."


def precision_name(name: str) -> str:
    """The card's word for a precision: ``fp4`` is ``mxfp4``."""
    return PRECISION_ALIASES.get(name.lower(), name.lower())


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
    "Key/value heads; 1 with latent attention."
    head_dim: int
    "Width of one head."
    intermediate: int
    "Inner width of the MLP of dense layers; unused in a model whose layers are all MoE."
    vocab: int
    "Vocabulary size."
    experts: int | None
    "Routed experts per layer; None = dense."
    experts_per_token: int | None
    "Experts a token is sent to."
    expert_intermediate: int | None
    "Inner width of one expert."
    latent: LatentAttention | None
    "Latent attention (MLA); None = keys and values by head."
    linear: LinearAttention | None
    "Linear-attention layers; None = there are none."
    kv_groups: tuple[KvGroup, ...]
    "Layers grouped by their KV cache; with the linear layers they add up to ``layers``."
    sequence_bytes: int
    "Bytes a sequence keeps on every rank besides its KV cache and the states of linear attention."
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

        With latent attention (kv_rank + rope_dim) x layers x element. The number of KV heads counts, not the hidden
        size, and the KV cache's element size is its own: INT8 or MXFP4 weights leave it at 16 bits. In a sliding group
        only the last ``window`` tokens stay. Index keys come on top (`index_bytes_per_token`).
        """
        entry = 2 * self.kv_heads * self.head_dim * kv_bytes_per_element
        if self.latent is not None:
            entry = self.latent.vector_bytes(kv_bytes_per_element)
        return tuple(entry * group.layers // group.tokens_per_entry for group in self.kv_groups)

    def kv_share(self, tensor_parallel_size: int) -> float:
        """Share of those bytes on one rank: KV heads are copied once TP exceeds them, one latent vector always is."""
        return max(1, self.kv_heads // tensor_parallel_size) / self.kv_heads

    @property
    def index_bytes_per_token(self) -> int:
        """Bytes of a token's index keys, on every rank alike; a query reads those of all tokens."""
        return sum(
            group.layers * group.index.bytes // group.tokens_per_entry
            for group in self.kv_groups
            if group.index is not None
        )

    @property
    def state_bytes(self) -> int:
        """Bytes of linear attention's states of a sequence, whatever its length; ranks share them."""
        return 0 if self.linear is None else self.linear.state_bytes

    @property
    def read_window_tokens(self) -> int:
        """Longest of the limits on the context that a query reads; 0 = no layer has one."""
        return max((group.read_limit for group in self.kv_groups if group.read_limit is not None), default=0)

    @property
    def attention_flop_per_pair(self) -> int:
        """Operations of one layer for one (query, key) pair of a prompt chunk: 4 x heads x head_dim, or `latent`'s."""
        return 4 * self.heads * self.head_dim if self.latent is None else self.latent.flop_per_pair(self.heads)

    def index_flop_per_pair(self, tensor_parallel_size: int) -> int:
        """Operations of all layers' indexers on one rank for one (query, key) pair, whether it is then read or not."""
        flop = 0
        for group in self.kv_groups:
            if group.index is not None:
                heads = group.index.heads
                rank_heads = max(1, heads // tensor_parallel_size) if group.index.split else heads
                flop += group.layers * 2 * rank_heads * group.index.dim // group.tokens_per_entry
        return flop


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
        return _card(ModelFile.model_validate_json(json.dumps(read_config_json(path))))
    except ValidationError as error:
        raise InputError(error.errors()[0]["msg"].removeprefix("Value error, "), file=str(path)) from None


def _read_card(path: Path) -> ModelFile:
    return load_model(load_yaml(path), ModelFile, what="a model card")


def _card(file: ModelFile) -> ModelCard:
    parameters = file.parameters()
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
        latent=file.latent_attention(),
        linear=file.linear_attention(),
        kv_groups=tuple(group.to_group() for group in file.kv_groups),
        sequence_bytes=file.sequence_bytes,
        max_model_len=file.max_model_len,
        native_precision=file.native_precision,
        parameters=parameters,
        precisions={name: weight_bytes(parameters, bits) for name, bits in file.bits().items()},
        sources={field: entry.to_source() for field, entry in file.sources.items()},
    )
