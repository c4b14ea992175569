"""A model folder's ``config.json`` (Hugging Face) as the contents of a model card.

Read are decoder-only models with grouped-query attention, dense or with experts in every layer, with full or
sliding-window layers. Shapes the memory and step-time models do not know (latent attention, state-space layers, shared
experts, some dense layers) are refused by name rather than priced as something else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeAlias

from hardware_profiles.errors import InputError

__all__ = ["read_config_json"]

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_UNKNOWN_SHAPES = {
    "kv_lora_rank": "multi-head latent attention",
    "n_shared_experts": "shared experts",
    "num_shared_experts": "shared experts",
    "shared_expert_intermediate_size": "shared experts",
    "first_k_dense_replace": "dense layers among the MoE layers",
    "mlp_only_layers": "dense layers among the MoE layers",
    "mamba_d_state": "state-space layers",
    "ssm_state_size": "state-space layers",
    "linear_num_key_heads": "linear attention",
    "attention_chunk_size": "chunked local attention",
    "vision_config": "a vision encoder",
}
_PRECISION_OF_METHOD = {"mxfp4": "mxfp4", "fp8": "fp8", "fbgemm_fp8": "fp8", "modelopt": "fp8"}
_BITS = {"bf16": 16.0, "fp8": 8.0, "mxfp4": 4.25}


def read_config_json(path: Path) -> dict[str, Json]:
    """The model card (as a plain mapping) that a ``config.json`` describes."""
    config = _read(path)
    for key, what in _UNKNOWN_SHAPES.items():
        if config.get(key):
            raise InputError(f"{what} ({key}) is not modelled; use a model without it", file=str(path), key=key)
    layers = _count(config, path, "num_hidden_layers")
    hidden = _count(config, path, "hidden_size")
    heads = _count(config, path, "num_attention_heads")
    experts = _optional(config, path, "num_local_experts", "num_experts")
    native = _native_precision(config, path)
    card: dict[str, Json] = {
        "name": _name(path),
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": _optional(config, path, "num_key_value_heads") or heads,
        "head_dim": _optional(config, path, "head_dim") or hidden // heads,
        "intermediate": _count(config, path, "intermediate_size"),
        "vocab": _count(config, path, "vocab_size"),
        "attention_bias": bool(config.get("attention_bias", False)),
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "kv_groups": _kv_groups(config, path, layers),
        "max_model_len": _count(config, path, "max_position_embeddings"),
        "native_precision": native,
    }
    if experts:
        inner = _optional(config, path, "moe_intermediate_size") or card["intermediate"]
        per_token = _optional(config, path, "num_experts_per_tok", "experts_per_token") or 1
        card |= {"experts": experts, "experts_per_token": per_token, "expert_intermediate": inner}
    if config.get("model_type") == "gpt_oss":
        card |= {"attention_sinks": True, "expert_bias": True}
    keep_attention = "self_attn" in json.dumps(config.get("quantization_config"))
    precisions: dict[str, Json] = {
        name: _precision(name, moe=bool(experts), keep_attention=keep_attention and name == native)
        for name in dict.fromkeys((native, *_BITS))
    }
    source: Json = {"source": f"config.json in {path.resolve().parent.name}", "date": None, "how_known": "given"}
    return card | {"precisions": precisions, "sources": dict.fromkeys(("shape", *precisions), source)}


def _read(path: Path) -> dict[str, Json]:
    try:
        config = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError:
        raise InputError(
            "there is no readable config.json; name a model folder or its config.json", file=str(path)
        ) from None
    except UnicodeDecodeError:
        raise InputError("the file is not UTF-8", file=str(path)) from None
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON: {error.msg}", file=str(path), line=error.lineno) from None
    if not isinstance(config, dict):
        raise InputError("the file must hold a JSON object", file=str(path))
    return config


def _name(path: Path) -> str:
    folder = path.resolve().parent.name.lower()
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in folder).strip("-._") or "model"


def _optional(config: dict[str, Json], path: Path, *keys: str) -> int | None:
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise InputError(f"{value!r} is not allowed; it must be a whole number above zero", file=str(path), key=key)
        return value
    return None


def _count(config: dict[str, Json], path: Path, key: str) -> int:
    value = _optional(config, path, key)
    if value is None:
        raise InputError(f"missing; a decoder-only model's config.json has `{key}`", file=str(path), key=key)
    return value


def _kv_groups(config: dict[str, Json], path: Path, layers: int) -> list[Json]:
    window = _optional(config, path, "sliding_window")
    kinds = config.get("layer_types")
    if not isinstance(kinds, list):
        sliding = window if config.get("use_sliding_window", True) else None
        return [{"layers": layers, "window": sliding}]
    if unknown := set(map(str, kinds)) - {"full_attention", "sliding_attention"}:
        raise InputError(f"layer type {sorted(unknown)[0]!r} is not modelled", file=str(path), key="layer_types")
    sliding_layers = sum(kind == "sliding_attention" for kind in kinds)
    if sliding_layers and window is None:
        raise InputError("missing, although layer_types name sliding layers", file=str(path), key="sliding_window")
    groups: list[Json] = []
    if sliding_layers:
        groups.append({"layers": sliding_layers, "window": window})
    if len(kinds) > sliding_layers:
        groups.append({"layers": len(kinds) - sliding_layers, "window": None})
    return groups


def _native_precision(config: dict[str, Json], path: Path) -> str:
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict):
        return "bf16"
    method = str(quantization.get("quant_method"))
    if method not in _PRECISION_OF_METHOD:
        known = ", ".join(_PRECISION_OF_METHOD)
        problem = f"quantization {method!r} is not known ({known} are); write a model card with its bits per weight"
        raise InputError(problem, file=str(path), key="quantization_config.quant_method")
    return _PRECISION_OF_METHOD[method]


def _precision(name: str, *, moe: bool, keep_attention: bool) -> dict[str, Json]:
    bits = _BITS[name]
    entry: dict[str, Json] = {"dense_bits": 16.0 if keep_attention else bits, "embedding_bits": 16.0}
    if moe:
        entry["expert_bits"] = bits
    return entry
