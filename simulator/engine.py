"""One replica's vLLM flags, in vLLM's spelling, with vLLM's defaults.

Defaults follow vLLM 0.32 `vllm/engine/arg_utils.py: EngineArgs.get_batch_defaults` for the API server: 16,384 tokens
and 1,024 sequences on GPUs with 160 GiB or more, 8,192 and 1,024 from 70 GiB, 2,048 and 256 below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from hardware_profiles.model import ModelCard
from hardware_profiles.node import Node

__all__ = ["ENGINE_FLAGS", "EngineConfig", "engine_with_defaults"]

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

    def flags(self) -> dict[str, int | float | str]:
        """The flags as vLLM names them, without those that are unset."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}


ENGINE_FLAGS: tuple[str, ...] = tuple(f.name for f in fields(EngineConfig))
"""Names of the flags that the simulator understands."""


def engine_with_defaults(
    flags: Mapping[str, int | float | str], *, node: Node, card: ModelCard, tensor_parallel_size: int
) -> EngineConfig:
    """Fill in vLLM's defaults for this node and model; `tensor_parallel_size` where the flags do not name one."""
    if node.hbm_bytes >= 160 * GIB:
        tokens, seqs = 16_384, 1_024
    elif node.hbm_bytes >= 70 * GIB:
        tokens, seqs = 8_192, 1_024
    else:
        tokens, seqs = 2_048, 256
    tokens = int(flags.get("max_num_batched_tokens", tokens))
    seqs = int(flags.get("max_num_seqs", min(seqs, tokens)))
    override = flags.get("num_gpu_blocks_override")
    return EngineConfig(
        tensor_parallel_size=int(flags.get("tensor_parallel_size", tensor_parallel_size)),
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_model_len=int(flags.get("max_model_len", card.max_model_len)),
        block_size=int(flags.get("block_size", 16)),
        gpu_memory_utilization=float(flags.get("gpu_memory_utilization", 0.92)),
        kv_cache_dtype=str(flags.get("kv_cache_dtype", "auto")),
        num_gpu_blocks_override=None if override is None else int(override),
    )
