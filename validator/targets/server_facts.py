"""What a vLLM server tells about itself: version, KV cache, and the flags in effect.

Three places, the best one first. `/server_info` (vLLM 0.32 entrypoints/serve/dev/server_info/api_router.py, only with
VLLM_SERVER_DEV_MODE=1) holds the whole resolved configuration: on a CPU it shows block size 128 and asynchronous
scheduling off where a GPU has 16 and on. `/metrics` holds the cache's part (`vllm:cache_config_info`). The start-up log
holds the arguments that differ from defaults, and the tokens of KV cache.
"""

from __future__ import annotations

import ast
import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from simulator.flags import FlagValue
from validator.targets.target import ServerFacts, TargetError

__all__ = ["counters", "read_facts"]

ANSWER_WITHIN_S = 30.0
FLAG_PLACES = {
    "tensor_parallel_size": ("parallel_config", "tensor_parallel_size"),
    "pipeline_parallel_size": ("parallel_config", "pipeline_parallel_size"),
    "data_parallel_size": ("parallel_config", "data_parallel_size"),
    "enable_expert_parallel": ("parallel_config", "enable_expert_parallel"),
    "max_num_seqs": ("scheduler_config", "max_num_seqs"),
    "max_num_batched_tokens": ("scheduler_config", "max_num_batched_tokens"),
    "enable_chunked_prefill": ("scheduler_config", "enable_chunked_prefill"),
    "long_prefill_token_threshold": ("scheduler_config", "long_prefill_token_threshold"),
    "long_prefill_token_threshold_adaptive": ("scheduler_config", "long_prefill_token_threshold_adaptive"),
    "max_num_active_seqs": ("scheduler_config", "max_num_active_seqs"),
    "watermark": ("scheduler_config", "watermark"),
    "scheduling_policy": ("scheduler_config", "policy"),
    "async_scheduling": ("scheduler_config", "async_scheduling"),
    "block_size": ("cache_config", "block_size"),
    "gpu_memory_utilization": ("cache_config", "gpu_memory_utilization"),
    "kv_cache_dtype": ("cache_config", "cache_dtype"),
    "num_gpu_blocks_override": ("cache_config", "num_gpu_blocks_override"),
    "enable_prefix_caching": ("cache_config", "enable_prefix_caching"),
    "max_model_len": ("model_config", "max_model_len"),
    "dtype": ("model_config", "dtype"),
    "quantization": ("model_config", "quantization"),
    "enforce_eager": ("model_config", "enforce_eager"),
    "num_speculative_tokens": ("speculative_config", "num_speculative_tokens"),
}
"""Where `/server_info` holds each flag."""
LABELS = {
    "block_size": "block_size",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "kv_cache_dtype": "cache_dtype",
    "num_gpu_blocks_override": "num_gpu_blocks_override",
    "enable_prefix_caching": "enable_prefix_caching",
}
"""The flags among the labels of `vllm:cache_config_info`."""
CACHE_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
GIVEN_ARGUMENTS = re.compile(r"non-default args: (\{.*\})")


def read_facts(url: str, log: Path | None) -> ServerFacts:
    """Ask a server that is ready; `log` is its start-up log where it is ours."""
    (model, *_) = _object(f"{url}/v1/models")["data"] or [{}]
    version = str(_object(f"{url}/version").get("version", "not stated"))
    labels = _labels(_text(f"{url}/metrics") or "", "vllm:cache_config_info")
    written = log.read_text(encoding="utf-8", errors="replace") if log is not None else ""
    info = _text(f"{url}/server_info?config_format=json")
    config = json.loads(info).get("vllm_config") if info else None
    if isinstance(config, Mapping):
        flags = _flags_of_config(config)
        told_by = "the server's own configuration (/server_info)"
    else:
        flags = _flags_of_log(written) | _flags_of_labels(labels)
        told_by = "the cache's metrics" + (" and the start-up log" if written else "")
    if "max_model_len" not in flags and model.get("max_model_len"):
        flags["max_model_len"] = int(str(model["max_model_len"]))
    tokens = labels.get("kv_cache_size_tokens", "None")
    if not tokens.isdigit():
        logged = CACHE_TOKENS.findall(written)
        tokens = logged[-1].replace(",", "") if logged else "None"
    blocks = labels.get("num_gpu_blocks", "None")
    return ServerFacts(
        vllm_version=version,
        model_id=str(model.get("id", "")),
        model_path=str(model.get("root") or model.get("id", "")),
        kv_cache_tokens=int(tokens) if tokens.isdigit() else None,
        num_gpu_blocks=int(blocks) if blocks.isdigit() else None,
        flags=flags,
        told_by=told_by,
    )


def counters(url: str) -> dict[str, float | None]:
    """The server's counters, summed over engines: tokens computed and found in the prefix cache, preemptions.

    None = the server has no such counter.
    """
    names = ("prompt_tokens", "generation_tokens", "prefix_cache_hits", "num_preemptions")
    found: dict[str, float | None] = dict.fromkeys(names)
    for line in (_text(f"{url}/metrics") or "").splitlines():
        name, _, value = line.partition("{")[0].removeprefix("vllm:"), *line.rpartition(" ")[1:]
        if name.removesuffix("_total") in found and name.endswith("_total"):
            found[name.removesuffix("_total")] = (found[name.removesuffix("_total")] or 0.0) + float(value)
    return found


def _text(address: str) -> str | None:
    """The body, or None where the server has no such address."""
    try:
        with urllib.request.urlopen(address, timeout=ANSWER_WITHIN_S) as answer:
            return str(answer.read().decode("utf-8"))
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError) as error:
        raise TargetError(f"{address} does not answer: {error}") from None


def _object(address: str) -> dict[str, list[dict[str, object]]]:  # both answers that we need are objects
    text = _text(address)
    try:
        found = json.loads(text or "")
    except json.JSONDecodeError:
        raise TargetError(f"{address} is no address of a vLLM server") from None
    if not isinstance(found, dict):
        raise TargetError(f"{address} is no address of a vLLM server")
    return found


def _labels(metrics: str, name: str) -> dict[str, str]:
    for line in metrics.splitlines():
        if line.startswith(name + "{"):
            return dict(re.findall(r'(\w+)="([^"]*)"', line))
    return {}


def _flags_of_config(config: Mapping[str, object]) -> dict[str, FlagValue]:
    flags: dict[str, FlagValue] = {}
    for name, (part, field) in FLAG_PLACES.items():
        held = config.get(part)
        value = held.get(field) if isinstance(held, Mapping) else None
        if isinstance(value, bool | int | float | str):
            flags[name] = value.removeprefix("torch.") if isinstance(value, str) else value
    return flags


def _flags_of_labels(labels: Mapping[str, str]) -> dict[str, FlagValue]:
    found = {name: labels[label] for name, label in LABELS.items() if labels.get(label, "None") != "None"}
    return {name: value if name == "kv_cache_dtype" else ast.literal_eval(value) for name, value in found.items()}


def _flags_of_log(written: str) -> dict[str, FlagValue]:
    given = GIVEN_ARGUMENTS.findall(written)
    if not given:
        return {}
    values = ast.literal_eval(given[-1])
    values |= values.get("speculative_config") or {}
    return {name: value for name, value in values.items() if name in FLAG_PLACES}
