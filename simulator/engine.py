"""One replica's vLLM flags, in vLLM's spelling, with vLLM's defaults.

Defaults follow vLLM 0.32 `vllm/engine/arg_utils.py: EngineArgs.get_batch_defaults` for the API server: 16,384 tokens
and 1,024 sequences on GPUs with 160 GiB or more, 8,192 and 1,024 from 70 GiB, 2,048 and 256 below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from hardware_profiles.model import ModelCard
from hardware_profiles.node import Node
from simulator.flags import FlagValue
from simulator.scheduler_settings import SchedulerSettings

__all__ = ["ENGINE_FLAGS", "EngineConfig", "FlagValue", "engine_with_defaults", "flag_value", "scheduler_settings"]

GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What one replica is started with. Values that vLLM itself refuses are a `Rejection` of the planner."""

    tensor_parallel_size: int
    """GPUs per replica."""
    max_num_seqs: int
    """Most sequences that run at once."""
    max_num_batched_tokens: int
    """Most tokens in one step (prompt chunks and decodes together)."""
    max_model_len: int
    """Most tokens of prompt and answer together."""
    block_size: int = 16
    """Tokens per KV block."""
    gpu_memory_utilization: float = 0.92
    """Share of the GPU's memory that vLLM may use (vLLM 0.32 `vllm/config/cache.py`)."""
    kv_cache_dtype: str = "auto"
    """auto (16 bit) or fp8."""
    num_gpu_blocks_override: int | None = None
    """KV blocks as a real server printed them; None = the memory formula."""
    enable_chunked_prefill: bool = True
    """Off: a prompt that does not fit what is left of the budget waits."""
    long_prefill_token_threshold: int = 0
    """Most prompt tokens of one request in a step while another is there; 0 = no cap."""
    long_prefill_token_threshold_adaptive: bool = False
    """Raise that cap to a fair share of the budget."""
    watermark: float = 0.0
    """Share of the KV blocks to keep free when a request joins running ones."""
    max_num_active_seqs: int | None = None
    """Seats of the running list that may be taken; None = max_num_seqs."""
    max_num_queued_reqs: int | None = None
    """Unfinished requests above which a server answers 503; None = no limit."""
    max_num_queued_tokens: int | None = None
    """Prompt tokens before their first answer token at which a server answers 503; None = no limit."""
    scheduling_policy: str = "fcfs"
    """fcfs or priority."""
    async_scheduling: bool = True
    """Schedule the next step before the outputs of the present one are known."""
    enable_prefix_caching: bool = False
    """Find prefixes again that other requests had. vLLM's own default is on: without shared prefixes it only spares
    preempted requests some work, so plans turn it off unless they are asked to count on it."""
    data_parallel_size: int = 1
    """Ranks of one replica, each with a scheduler and a KV cache, behind one front end. Not a flag of scenarios."""
    num_speculative_tokens: int = 0
    """Drafts per request and step (vLLM: `speculative_config`). Not a flag of scenarios: step times of drafting models
    are profiles of their own."""
    speculative_method: str = "ngram"
    """ngram, or eagle for drafters with a KV cache of their own (EAGLE, MTP)."""

    def values(self) -> dict[str, FlagValue]:
        """Every flag that has a value: what `engine_with_defaults` makes the same replica of again."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    def flags(self) -> dict[str, FlagValue]:
        """The flags as vLLM names them: the sizes always, what changes the scheduler where it differs from vLLM."""
        return {name: value for name, value in self.values().items() if VLLM_DEFAULTS.get(name) != value}


ENGINE_FLAGS: tuple[str, ...] = (
    "tensor_parallel_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "block_size",
    "gpu_memory_utilization",
    "kv_cache_dtype",
    "num_gpu_blocks_override",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive",
    "watermark",
    "max_num_active_seqs",
    "max_num_queued_reqs",
    "max_num_queued_tokens",
    "scheduling_policy",
    "async_scheduling",
)
"""Names of the flags that a scenario may set.

Left out: `data_parallel_size`, because profiles hold no step times of data-parallel ranks, and a replica more per
server does the same for a dense model; `num_speculative_tokens` and `speculative_method`, because the share of accepted
drafts and the step times with a drafter belong to a measured profile, and no shipped one has them.
"""

VLLM_DEFAULTS: dict[str, FlagValue] = {
    "enable_chunked_prefill": True,
    "long_prefill_token_threshold": 0,
    "long_prefill_token_threshold_adaptive": False,
    "watermark": 0.0,
    "scheduling_policy": "fcfs",
    "async_scheduling": True,
    "enable_prefix_caching": True,
    "data_parallel_size": 1,
    "num_speculative_tokens": 0,
    "speculative_method": "ngram",
}
"""vLLM 0.32 `vllm/config/scheduler.py`, `vllm/config/cache.py`; async scheduling is on where a GPU supports it."""


def flag_value(flags: Mapping[str, FlagValue], name: str) -> FlagValue | None:
    """One flag of `EngineConfig.flags`, which leaves out what is vLLM's default; None where it has neither."""
    return flags.get(name, VLLM_DEFAULTS.get(name))


def engine_with_defaults(
    flags: Mapping[str, FlagValue], *, node: Node, card: ModelCard, tensor_parallel_size: int
) -> EngineConfig:
    """Fill in vLLM's defaults for this node and model; `tensor_parallel_size` where the flags do not name one."""
    if node.hbm_bytes >= 160 * GIB:
        tokens, seqs = 16_384, 1_024
    elif node.hbm_bytes >= 70 * GIB:
        tokens, seqs = 8_192, 1_024
    else:
        tokens, seqs = 2_048, 256
    if flags.get("enable_chunked_prefill") is False:  # vLLM 0.32 `_set_default_max_num_seqs_and_batched_tokens_args`
        tokens = max(tokens, int(flags.get("max_model_len", card.max_model_len)))
    tokens = int(flags.get("max_num_batched_tokens", tokens))
    seqs = int(flags.get("max_num_seqs", min(seqs, tokens)))
    sizes = {
        "tensor_parallel_size": tensor_parallel_size,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": tokens,
        "max_model_len": card.max_model_len,
    }
    values: dict[str, Any] = {**sizes, **flags}  # the scenario's loader has checked names and types
    return EngineConfig(**values)


def scheduler_settings(
    engine: EngineConfig, *, num_blocks: int, sliding_windows: tuple[int, ...] = (0,)
) -> SchedulerSettings:
    """What of a replica's flags reaches its scheduler. `num_blocks` without vLLM's null block."""
    return SchedulerSettings(
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        block_size=engine.block_size,
        num_blocks=num_blocks,
        max_model_len=engine.max_model_len,
        enable_chunked_prefill=engine.enable_chunked_prefill,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        long_prefill_token_threshold_adaptive=engine.long_prefill_token_threshold_adaptive,
        watermark=engine.watermark,
        max_num_active_seqs=engine.max_num_active_seqs,
        priority_policy=engine.scheduling_policy == "priority",
        async_scheduling=engine.async_scheduling,
        enable_prefix_caching=engine.enable_prefix_caching,
        num_speculative_tokens=engine.num_speculative_tokens,
        speculative_lookahead=engine.num_speculative_tokens > 0 and engine.speculative_method == "eagle",
        sliding_windows=sliding_windows,
    )
