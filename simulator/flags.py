"""vLLM's flags in the scenario file: held fixed (``engine:``), run today (``baseline:``) or searched (``search:``).

Names and meanings are vLLM's. What is not given here is decided later: the search varies it, or vLLM's default holds.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["Baseline", "EngineFlags", "FlagValue", "Search"]

FlagValue: TypeAlias = int | float | str

_TensorParallel = Annotated[int, Field(ge=1, examples=[8])]
_Seqs = Annotated[int, Field(ge=1, examples=[256])]
_BatchedTokens = Annotated[int, Field(ge=1, examples=[8192])]
_ModelLen = Annotated[int, Field(ge=2, examples=[32768])]
_BlockSize: TypeAlias = Literal[1, 8, 16, 32, 64, 128, 256]
_MemoryFraction = Annotated[float, Field(gt=0, le=1, examples=[0.9])]
_KvDtype: TypeAlias = Literal["auto", "fp8"]
_Blocks = Annotated[int, Field(ge=2, examples=[100_000])]


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

    def given(self) -> dict[str, FlagValue]:
        """The flags that have a value, by vLLM's names."""
        return {name: value for name in EngineFlags.model_fields if (value := getattr(self, name)) is not None}


class Baseline(EngineFlags):
    """What runs today; flags not given here are those of ``engine:``, then vLLM's defaults."""

    servers: Annotated[int | None, Field(ge=1, examples=[4])] = None
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

    @model_validator(mode="after")
    def _lists_have_distinct_values(self) -> Self:
        for name, values in self.lists().items():
            if not values:
                raise ValueError(f"{name} has no values; list at least one, or remove the key")
            repeated = sorted({str(value) for value in values if values.count(value) > 1})
            if repeated:
                raise ValueError(f"{name} lists {repeated[0]} twice; list each value once")
        return self

    def lists(self) -> dict[str, tuple[FlagValue, ...]]:
        """The flags that are searched, by vLLM's names, in the order of the flags (not of the file)."""
        return {name: values for name in Search.model_fields if (values := getattr(self, name)) is not None}
