"""vLLM's flags in the scenario file: held fixed (``engine:``), run today (``baseline:``) or searched (``search:``).

Names and meanings are vLLM's. What is not given here is decided later: the search varies it, or vLLM's default holds.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["Baseline", "EngineFlags", "FlagValue", "Search", "flag_text"]

FlagValue: TypeAlias = bool | int | float | str

_MOST = 1_000_000_000
_MOST_SEQS, _MOST_BATCHED_TOKENS, _MOST_BLOCKS = 1_000_000, 10_000_000, 100_000_000
"""Far above any server, and small enough for tables with an entry per sequence, token or block."""

_TensorParallel = Annotated[int, Field(ge=1, le=1024, examples=[8])]
_Seqs = Annotated[int, Field(ge=1, le=_MOST_SEQS, examples=[256])]
_BatchedTokens = Annotated[int, Field(ge=1, le=_MOST_BATCHED_TOKENS, examples=[8192])]
_ModelLen = Annotated[int, Field(ge=2, le=_MOST, examples=[32768])]
_BlockSize: TypeAlias = Literal[1, 8, 16, 32, 64, 128, 256]
_MemoryFraction = Annotated[float, Field(gt=0, le=1, examples=[0.9])]
_KvDtype: TypeAlias = Literal["auto", "fp8"]
_Blocks = Annotated[int, Field(ge=2, le=_MOST_BLOCKS, examples=[100_000])]
_Switch = Annotated[bool, Field(examples=[False])]
_LongPrefill = Annotated[int, Field(ge=0, le=_MOST, examples=[2048])]
_Watermark = Annotated[float, Field(ge=0, lt=1, examples=[0.01])]
_ActiveSeqs = Annotated[int, Field(ge=1, le=_MOST_SEQS, examples=[128])]
_QueuedReqs = Annotated[int, Field(ge=1, le=_MOST, examples=[512])]
_QueuedTokens = Annotated[int, Field(ge=1, le=_MOST, examples=[200_000])]
_Policy: TypeAlias = Literal["fcfs", "priority"]


def flag_text(value: FlagValue) -> str:
    """A value as it is written in a scenario: ``true``, not ``True``."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class EngineFlags(BaseModel):
    """Flags with one value each."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    tensor_parallel_size: _TensorParallel | None = None
    "GPUs that share one copy of the model."
    max_num_seqs: _Seqs | None = None
    "Most requests in one engine step."
    max_num_batched_tokens: _BatchedTokens | None = None
    "Most tokens in one engine step; vLLM wants at least max_num_seqs."
    max_model_len: _ModelLen | None = None
    "Most tokens of prompt and answer together; default: the model's."
    block_size: _BlockSize | None = None
    "Tokens per KV-cache block."
    gpu_memory_utilization: _MemoryFraction | None = None
    "Share of the GPU's memory that vLLM may use."
    kv_cache_dtype: _KvDtype | None = None
    "auto keeps the KV cache in the model's 16-bit type; fp8 halves it."
    num_gpu_blocks_override: _Blocks | None = None
    "KV blocks as a running server printed them, instead of the memory formula."
    enable_prefix_caching: _Switch | None = None
    "Keep the KV blocks of a prefix for other requests that begin with it. Plans leave it off unless it is given here."
    enable_chunked_prefill: _Switch | None = None
    "Off: a prompt waits for a step that it fits whole; vLLM then wants max_num_batched_tokens >= max_model_len."
    long_prefill_token_threshold: _LongPrefill | None = None
    "Most prompt tokens of one request in a step that it shares with others; 0 is no cap."
    long_prefill_token_threshold_adaptive: _Switch | None = None
    "Raise that cap to max_num_batched_tokens / requests where this is more."
    watermark: _Watermark | None = None
    "Share of the KV blocks to keep free when a request joins running ones."
    max_num_active_seqs: _ActiveSeqs | None = None
    "Most requests that run at once; at most max_num_seqs, which then only sizes buffers and graphs."
    max_num_queued_reqs: _QueuedReqs | None = None
    "Unfinished requests of one replica at which it answers 503 to the next; such requests count as missed."
    max_num_queued_tokens: _QueuedTokens | None = None
    "Prompt tokens of one replica that wait for their first answer token at which it answers 503 to the next request."
    scheduling_policy: _Policy | None = None
    "fcfs, or priority: lower `priority` of a workload first."
    async_scheduling: _Switch | None = None
    "Off: the next step is scheduled only when the outputs of the present one are known."

    def given(self) -> dict[str, FlagValue]:
        """The flags that have a value, by vLLM's names."""
        return {name: value for name in EngineFlags.model_fields if (value := getattr(self, name)) is not None}


class Baseline(EngineFlags):
    """What runs today; flags not given here are those of ``engine:``, then vLLM's defaults."""

    servers: Annotated[int | None, Field(ge=1, le=1_000_000, examples=[4])] = None
    "How many servers run today, where known."


class Search(BaseModel):
    """The values to try of each flag; every combination is a candidate."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    tensor_parallel_size: Annotated[tuple[_TensorParallel, ...] | None, Field(examples=["[1, 2, 4, 8]"])] = None
    max_num_seqs: Annotated[tuple[_Seqs, ...] | None, Field(examples=["[64, 128, 256]"])] = None
    max_num_batched_tokens: Annotated[tuple[_BatchedTokens, ...] | None, Field(examples=["[2048, 8192]"])] = None
    max_model_len: Annotated[tuple[_ModelLen, ...] | None, Field(examples=["[32768]"])] = None
    block_size: Annotated[tuple[_BlockSize, ...] | None, Field(examples=["[16, 32]"])] = None
    gpu_memory_utilization: Annotated[tuple[_MemoryFraction, ...] | None, Field(examples=["[0.9, 0.95]"])] = None
    kv_cache_dtype: Annotated[tuple[_KvDtype, ...] | None, Field(examples=["[auto, fp8]"])] = None
    num_gpu_blocks_override: Annotated[tuple[_Blocks, ...] | None, Field(examples=["[100000]"])] = None
    enable_prefix_caching: Annotated[tuple[_Switch, ...] | None, Field(examples=["[true, false]"])] = None
    enable_chunked_prefill: Annotated[tuple[_Switch, ...] | None, Field(examples=["[true, false]"])] = None
    long_prefill_token_threshold: Annotated[tuple[_LongPrefill, ...] | None, Field(examples=["[0, 2048]"])] = None
    long_prefill_token_threshold_adaptive: Annotated[tuple[_Switch, ...] | None, Field(examples=["[true, false]"])] = (
        None
    )
    watermark: Annotated[tuple[_Watermark, ...] | None, Field(examples=["[0, 0.01]"])] = None
    max_num_active_seqs: Annotated[tuple[_ActiveSeqs, ...] | None, Field(examples=["[64, 128]"])] = None
    max_num_queued_reqs: Annotated[tuple[_QueuedReqs, ...] | None, Field(examples=["[256, 512]"])] = None
    max_num_queued_tokens: Annotated[tuple[_QueuedTokens, ...] | None, Field(examples=["[200000]"])] = None
    scheduling_policy: Annotated[tuple[_Policy, ...] | None, Field(examples=["[fcfs, priority]"])] = None
    async_scheduling: Annotated[tuple[_Switch, ...] | None, Field(examples=["[true, false]"])] = None

    @model_validator(mode="after")
    def _lists_have_distinct_values(self) -> Self:
        for name, values in self.lists().items():
            if not values:
                raise ValueError(f"{name} has no values; list at least one, or remove the key")
            repeated = sorted({flag_text(value) for value in values if values.count(value) > 1})
            if repeated:
                raise ValueError(f"{name} lists {repeated[0]} twice; list each value once")
        return self

    def lists(self) -> dict[str, tuple[FlagValue, ...]]:
        """The flags that are searched, by vLLM's names, in the order of the flags (not of the file)."""
        return {name: values for name in Search.model_fields if (values := getattr(self, name)) is not None}
