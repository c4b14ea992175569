"""A model folder's ``config.json`` (Hugging Face) as the contents of a model card.

Read are decoder-only models with grouped-query or latent attention (DeepSeek-V3, Kimi K2), dense or with experts in all
layers or all but the first, with shared experts, full, sliding-window, block-sparse (MiniMax-M3) or gated linear layers
(Qwen3-Next, Qwen3.5). Of a model with an encoder the language model is read (``text_config``). Shapes the memory and
step-time models do not know are refused by name rather than priced as something else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeAlias

from hardware_profiles.errors import InputError

__all__ = ["read_config_json"]

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_UNKNOWN_SHAPES = {
    "compress_ratios": "a KV cache compressed over tokens",
    "index_topk": "an indexer over latent attention",
    "linear_attn_config": "linear attention of another kind",
    "mlp_only_layers": "dense layers among the MoE layers",
    "interleave_moe_layer_step": "dense layers among the MoE layers",
    "mamba_d_state": "state-space layers",
    "ssm_state_size": "state-space layers",
    "hybrid_override_pattern": "state-space layers",
    "attention_chunk_size": "chunked local attention",
    "cross_attention_layers": "cross attention",
    "num_kv_shared_layers": "layers that share a KV cache",
}
_PRECISION_OF_METHOD = {"mxfp4": "mxfp4", "fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp8": "fp8", "modelopt": "fp8"}
_BITS = {"bf16": 16.0, "fp8": 8.0, "mxfp4": 4.25}
_MXFP8_BITS, _NVFP4_BITS = 8.25, 4.5


def read_config_json(path: Path) -> dict[str, Json]:
    """The model card (as a plain mapping) that a ``config.json`` describes."""
    config = _read(path)
    if isinstance(text := config.get("text_config"), dict):
        config = config | text
    for key, what in _UNKNOWN_SHAPES.items():
        if config.get(key):
            raise InputError(f"{what} ({key}) is not modelled; use a model without it", file=str(path), key=key)
    layers = _count(config, path, "num_hidden_layers")
    hidden = _count(config, path, "hidden_size")
    heads = _count(config, path, "num_attention_heads")
    kinds = _layer_kinds(config, path, layers)
    native, native_bits = _native_precision(config, path)
    card: dict[str, Json] = {
        "name": _name(path),
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": _optional(config, path, "num_key_value_heads") or heads,
        "head_dim": _optional(config, path, "head_dim") or hidden // heads,
        "vocab": _count(config, path, "vocab_size"),
        "attention_bias": bool(config.get("attention_bias", False)),
        "attention_output_gate": bool(config.get("attn_output_gate", False)),
        "qk_norm": _qk_norm(config),
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "kv_groups": _kv_groups(config, path, kinds),
        "max_model_len": _count(config, path, "max_position_embeddings"),
        "native_precision": native,
    }
    card |= _latent(config, path) | _linear(config, path, kinds) | _experts(config, path, layers)
    if config.get("model_type") == "gpt_oss":
        card |= {"attention_sinks": True, "expert_bias": True}
    left_out = json.dumps(config.get("quantization_config"))
    precisions: dict[str, dict[str, Json]] = {}
    for name, bits in {native: native_bits, **{name: bits for name, bits in _BITS.items() if name != native}}.items():
        precisions[name] = _precision(bits, card=card, left_out=left_out if name == native else "")
        if name == native and (block := _scale_block(config)):
            precisions[name] |= {"block": block}
    source: Json = {"source": f"config.json in {path.resolve().parent.name}", "date": None, "how_known": "given"}
    return card | {"precisions": dict(precisions), "sources": dict.fromkeys(("shape", *precisions), source)}


def _qk_norm(config: dict[str, Json]) -> str | None:
    """Norms of queries and keys are the model type's, except where MiniMax says which it has."""
    if config.get("use_qk_norm"):
        return str(config.get("qk_norm_type", "per_head"))
    return "per_head" if str(config.get("model_type", "")).startswith("qwen3") else None


def _latent(config: dict[str, Json], path: Path) -> dict[str, Json]:
    if not config.get("kv_lora_rank"):
        return {}
    nope, rope = _count(config, path, "qk_nope_head_dim"), _count(config, path, "qk_rope_head_dim")
    latent: dict[str, Json] = {
        "q_rank": _optional(config, path, "q_lora_rank"),
        "kv_rank": _count(config, path, "kv_lora_rank"),
        "nope_dim": nope,
        "rope_dim": rope,
        "value_dim": _count(config, path, "v_head_dim"),
    }
    return {"kv_heads": 1, "head_dim": nope + rope, "latent": latent}


def _linear(config: dict[str, Json], path: Path, kinds: list[str]) -> dict[str, Json]:
    if "linear_attention" not in kinds:
        return {}
    linear: dict[str, Json] = {
        "layers": kinds.count("linear_attention"),
        "key_heads": _count(config, path, "linear_num_key_heads"),
        "value_heads": _count(config, path, "linear_num_value_heads"),
        "key_dim": _count(config, path, "linear_key_head_dim"),
        "value_dim": _count(config, path, "linear_value_head_dim"),
        "conv_kernel": _count(config, path, "linear_conv_kernel_dim"),
    }
    return {"linear": linear}


def _experts(config: dict[str, Json], path: Path, layers: int) -> dict[str, Json]:
    """Experts, shared experts and dense layers; a model without experts has its MLP width only."""
    experts = _optional(config, path, "num_local_experts", "num_experts", "n_routed_experts")
    if not experts:
        return {"intermediate": _count(config, path, "intermediate_size")}
    inner = _optional(config, path, "moe_intermediate_size") or _count(config, path, "intermediate_size")
    per_token = _optional(config, path, "num_experts_per_tok", "experts_per_token") or 1
    shared = config.get("shared_expert_intermediate_size") or config.get("shared_intermediate_size")
    if not shared:
        count = config.get("n_shared_experts") or config.get("num_shared_experts") or 0
        shared = count * inner if isinstance(count, int) else None
    dense = _dense_layers(config, path, layers)
    return {
        "intermediate": _optional(config, path, "dense_intermediate_size", "intermediate_size") or 0,
        "experts": experts,
        "experts_per_token": per_token,
        "expert_intermediate": inner,
        "shared_intermediate": shared,
        "shared_expert_gate": bool(config.get("shared_expert_intermediate_size")),
        "dense_layers": dense,
        "router_bias": bool(config.get("use_routing_bias")) or config.get("topk_method") == "noaux_tc",
    }


def _dense_layers(config: dict[str, Json], path: Path, layers: int) -> int:
    """Number of first layers without experts; dense layers anywhere else are refused."""
    first = _optional(config, path, "first_k_dense_replace") if config.get("first_k_dense_replace") else 0
    for key in ("moe_layer_freq", "decoder_sparse_step"):
        pattern = config.get(key, 1)
        if isinstance(pattern, list):
            first = pattern.index(1) if 1 in pattern else layers
        if pattern != 1 and pattern != [0] * (first or 0) + [1] * (layers - (first or 0)):
            raise InputError("dense layers among the MoE layers are not modelled", file=str(path), key=key)
    return first or 0


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


def _layer_kinds(config: dict[str, Json], path: Path, layers: int) -> list[str]:
    """What each layer attends with: `full_attention`, `sliding_attention`, `linear_attention` or `sparse_attention`."""
    listed = config.get("layer_types")
    if isinstance(listed, list):
        kinds = [str(kind) for kind in listed]
    elif interval := _optional(config, path, "full_attention_interval"):
        kinds = ["linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(layers)]
    elif isinstance(sparse := config.get("sparse_attention_config"), dict) and sparse.get("use_sparse_attention"):
        flags = sparse.get("sparse_attention_freq")
        flags = flags if isinstance(flags, list) else [1] * layers
        kinds = ["sparse_attention" if flag else "full_attention" for flag in flags]
    else:
        window = _optional(config, path, "sliding_window") if config.get("use_sliding_window", True) else None
        kinds = ["sliding_attention" if window else "full_attention"] * layers
    known = {"full_attention", "sliding_attention", "linear_attention", "sparse_attention"}
    if unknown := set(kinds) - known:
        raise InputError(f"layer type {sorted(unknown)[0]!r} is not modelled", file=str(path), key="layer_types")
    if isinstance(types := config.get("attn_type_list"), list) and any(kind != 1 for kind in types):
        raise InputError("lightning attention is not modelled", file=str(path), key="attn_type_list")
    return kinds


def _kv_groups(config: dict[str, Json], path: Path, kinds: list[str]) -> list[Json]:
    groups: list[Json] = []
    if sliding := kinds.count("sliding_attention"):
        window = _optional(config, path, "sliding_window")
        if window is None:
            raise InputError("missing, although layer_types name sliding layers", file=str(path), key="sliding_window")
        groups.append({"layers": sliding, "window": window})
    if full := kinds.count("full_attention"):
        groups.append({"layers": full, "window": None})
    if sparse := kinds.count("sparse_attention"):
        shape = config.get("sparse_attention_config")
        if not isinstance(shape, dict):
            raise InputError("missing, although layers are sparse", file=str(path), key="sparse_attention_config")
        heads, dim = _count(shape, path, "sparse_num_index_heads"), _count(shape, path, "sparse_index_dim")
        index: dict[str, Json] = {"heads": heads, "dim": dim, "bytes": 2 * dim, "split": True}
        reads = _count(shape, path, "sparse_topk_blocks") * _count(shape, path, "sparse_block_size")
        groups.append({"layers": sparse, "reads": reads, "index": index})
    return groups


def _native_precision(config: dict[str, Json], path: Path) -> tuple[str, float]:
    """Name and bits per weight of what is quantised."""
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict):
        return "bf16", _BITS["bf16"]
    method = str(quantization.get("quant_method"))
    if method == "modelopt" and quantization.get("quant_algo") == "NVFP4":
        return "nvfp4", _NVFP4_BITS
    if method == "compressed-tensors" and (found := _of_groups(quantization)):
        return found
    if method not in _PRECISION_OF_METHOD:
        known = ", ".join(_PRECISION_OF_METHOD)
        problem = f"quantization {method!r} is not known ({known} are); write a model card with its bits per weight"
        raise InputError(problem, file=str(path), key="quantization_config.quant_method")
    name = _PRECISION_OF_METHOD[method]
    return name, _MXFP8_BITS if method == "mxfp8" else _BITS[name]


def _scale_block(config: dict[str, Json]) -> int | None:
    """Rows of an FP8 block, of those of 128 x 128 say; MXFP8's blocks are parts of one row."""
    quantization = config.get("quantization_config")
    blocks = quantization.get("weight_block_size") if isinstance(quantization, dict) else None
    return blocks[0] if isinstance(blocks, list) and isinstance(blocks[0], int) and blocks[0] > 1 else None


def _of_groups(quantization: dict[str, Json]) -> tuple[str, float] | None:
    """Precision of compressed-tensors with one kind of weights; a group's scale is 16 bits, NVFP4's 8."""
    groups = quantization.get("config_groups")
    kinds = list(groups.values()) if isinstance(groups, dict) else []
    weights = kinds[0].get("weights") if len(kinds) == 1 and isinstance(kinds[0], dict) else None
    if not isinstance(weights, dict):
        return None
    bits, kind, group = weights.get("num_bits"), weights.get("type"), weights.get("group_size")
    if (bits, kind) == (4, "int") and isinstance(group, int) and group > 0:
        return "int4", 4.0 + 16.0 / group
    if (bits, kind, group) == (4, "float", 16):
        return "nvfp4", _NVFP4_BITS
    return ("fp8", _BITS["fp8"]) if (bits, kind) == (8, "float") else None


def _precision(bits: float, *, card: dict[str, Json], left_out: str) -> dict[str, Json]:
    """Bits by part; parts named in ``left_out`` (the quantization's exclude list) stay in BF16."""
    entry: dict[str, Json] = {"dense_bits": 16.0 if "self_attn" in left_out else bits, "embedding_bits": 16.0}
    if card.get("experts"):
        entry["expert_bits"] = bits
    if card.get("shared_intermediate") or card.get("dense_layers"):
        entry["mlp_bits"] = 16.0 if "shared_experts" in left_out else bits
    return entry
