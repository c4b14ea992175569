"""The memory ledger: cases from the field, vLLM's grouping rules, and start-up logs of real servers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles.errors import InputError
from hardware_profiles.memory import (
    KvLedger,
    LedgerLine,
    blocks_in,
    explicit_ledger,
    kv_bytes_per_element,
    kv_bytes_per_token_per_rank,
    kv_ledger,
    max_concurrency,
    tensor_parallel_problem,
    vllm_kv_group_sizes,
    weakest_rank_blocks,
)
from hardware_profiles.model import KvGroup, ModelCard, load_model_card
from hardware_profiles.node import Node, list_nodes, load_node

GIB = 2**30


def gib(amount: float) -> int:
    return round(amount * GIB)


def term(name: str, amount_gib: float) -> LedgerLine:
    return LedgerLine(name=name, bytes=gib(amount_gib), how_known="measured", note="start-up log")


def shape(folder: Path, **config: int | str) -> ModelCard:
    """A model card from the keys of a config.json."""
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 131072, **config}), encoding="utf-8")
    return load_model_card(folder)


def llama_8b(folder: Path) -> ModelCard:
    return shape(
        folder,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
    )


def minimax_m2_5(folder: Path) -> ModelCard:
    """Shape of MiniMaxAI/MiniMax-M2.5: 62 layers of 256 experts."""
    return shape(
        folder,
        hidden_size=3072,
        intermediate_size=1536,
        num_hidden_layers=62,
        num_attention_heads=48,
        num_key_value_heads=8,
        head_dim=128,
        num_local_experts=256,
        num_experts_per_tok=8,
        vocab_size=200064,
    )


def ledger(
    model: str | ModelCard,
    precision: str,
    tp: int,
    *,
    node: str | Node = "mi355x",
    utilization: float = 0.92,
    batched: int = 16384,
    seqs: int = 1024,
    kv: str = "auto",
    block: int = 16,
    override: int | None = None,
) -> KvLedger:
    """vLLM 0.32's defaults on a GPU of 160 GiB or more."""
    return kv_ledger(
        load_node(node) if isinstance(node, str) else node,
        load_model_card(model) if isinstance(model, str) else model,
        precision,
        tensor_parallel_size=tp,
        gpu_memory_utilization=utilization,
        max_num_batched_tokens=batched,
        max_num_seqs=seqs,
        kv_cache_dtype=kv,
        block_size=block,
        num_gpu_blocks_override=override,
    )


def taken(result: KvLedger, name: str) -> float:
    """GiB a line takes."""
    return -sum(line.bytes for line in result.lines if line.name == name) / GIB


# --- cases from the field --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kv_gib", "max_model_len", "logged_blocks", "concurrency", "fits"),
    [(3.81, 20_000, 1952, 1.56, True), (2.89, 29_000, 1478, 0.82, False)],
)
def test_two_context_lengths_on_a_24_gb_card(
    tmp_path: Path, kv_gib: float, max_model_len: int, logged_blocks: int, concurrency: float, fits: bool
) -> None:
    """Case C03, https://github.com/vllm-project/vllm/issues/10517: Llama-3.1-8B on an RTX 3090."""
    block_bytes = 16 * kv_bytes_per_token_per_rank(llama_8b(tmp_path), 1, 2)
    assert block_bytes == 2 * 2**20
    assert abs(blocks_in(gib(kv_gib), block_bytes) - logged_blocks) <= 2
    full_length = max_concurrency(logged_blocks, math.ceil(max_model_len / 16))
    assert round(full_length, 2) == concurrency
    assert (full_length >= 1) is fits
    if not fits:
        assert logged_blocks * 16 == 23_648  # the longest admissible length of the log


def test_the_activation_peak_grows_with_the_token_budget_as_measured(tmp_path: Path) -> None:
    """Case C03: the peak was 17.06 - 14.99 GiB at 20,000 tokens and 17.98 - 14.99 GiB at 29,000."""
    measured = (gib(17.98) - gib(17.06)) / 9_000
    peaks = [
        taken(ledger(llama_8b(tmp_path), "bf16", 1, batched=tokens, seqs=256), "activation peak")
        for tokens in (20_000, 29_000)
    ]
    assert (peaks[1] - peaks[0]) * GIB / 9_000 == pytest.approx(measured, rel=0.02)
    assert peaks[0] == pytest.approx(17.06 - 14.99, rel=0.02)


def test_the_whole_ledger_of_an_a100_40_adds_up_line_by_line() -> None:
    """Case C04, https://github.com/vllm-project/vllm/issues/12330: Llama-3-8B, 11.12 GiB, log 5,691 blocks."""
    terms = [
        term("device memory", 39.50),
        term("not requested", -39.50 * 0.10),
        term("weights", -14.96),
        term("non-torch", -0.10),
        term("activation peak", -9.37),
    ]
    result = explicit_ledger(terms, block_bytes=2 * 2**20, block_size=16)
    assert result.available_bytes / GIB == pytest.approx(11.12, abs=0.005)
    assert result.num_gpu_blocks == 5_693
    assert abs(result.num_gpu_blocks - 5_691) <= 2
    assert round(max_concurrency(result.num_gpu_blocks, 8192 // 16), 2) == 11.12
    assert sum(line.bytes for line in result.lines) == result.usable_blocks * result.block_bytes
    assert result.kv_tokens == (5_693 - 1) * 16


def test_two_gpus_do_not_give_one_big_pool() -> None:
    """Case C09, https://github.com/vllm-project/vllm/issues/13061: 81,536 tokens, not 94,900 and not the sum."""
    token_bytes = 2 * 48 * 4 * 128 * 2  # a rank of TP2 holds 4 of 8 heads for every token
    assert token_bytes == 98_304
    first, second = gib(8.69), 81_536 * token_bytes
    assert weakest_rank_blocks([first, second], 16 * token_bytes) * 16 == 81_536
    assert weakest_rank_blocks([first], 16 * token_bytes) * 16 == pytest.approx(94_900, abs=20)
    assert second / GIB == pytest.approx(7.46, abs=0.01)


def test_bytes_per_token_count_kv_heads_not_the_hidden_size(tmp_path: Path) -> None:
    """Case C11, https://github.com/vllm-project/vllm/issues/22291: Qwen2.5-7B, 3,072 tokens a user."""
    qwen = shape(
        tmp_path,
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=152064,
    )
    (token_bytes,) = qwen.kv_bytes_per_token()
    assert token_bytes == 57_344
    assert round(3_072 * token_bytes / 1e9, 3) == 0.176
    for weights in ("bf16", "fp8", "mxfp4"):  # the weights' precision does not make the KV cache smaller
        assert ledger(qwen, weights, 1).block_bytes == 16 * 57_344
    assert ledger(qwen, "bf16", 1, kv="fp8").block_bytes == 16 * 57_344 // 2


# --- start-up logs of real servers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kv_gib", "logged_tokens", "tp"),
    [
        (152.59, 1_290_336, 1),
        (152.54, 1_289_920, 1),
        (56.86, 480_800, 1),
        (161.08, 2_724_224, 2),
        (161.55, 2_732_160, 2),
    ],
)
def test_kv_tokens_of_mi355x_logs_follow_from_the_logged_memory(
    tmp_path: Path, kv_gib: float, logged_tokens: int, tp: int
) -> None:
    """vLLM 0.22.0, MiniMax-M2.5, FP8 KV, blocks of 32: server logs of ajith-sirra-amd/InferenceMAX_Rocm_Team @5988286.

    The log rounds to 0.01 GiB, which is 85 tokens at TP1 and 169 at TP2.
    """
    token_bytes = kv_bytes_per_token_per_rank(minimax_m2_5(tmp_path), tp, kv_bytes_per_element("fp8"))
    tokens = blocks_in(gib(kv_gib), 32 * token_bytes) * 32
    assert abs(tokens - logged_tokens) <= 0.005 * GIB / token_bytes + 32


@pytest.mark.parametrize(
    ("weights_gib", "tp", "seqs", "logged_kv_gib"),
    [
        (118.75, 1, 32, 152.59),
        (118.75, 1, 1, 152.54),
        (214.51, 1, 1, 57.33),
        (214.51, 1, 32, 56.86),
        (107.38, 2, 1, 161.55),
        (107.38, 2, 32, 161.08),
    ],
)
def test_the_ledger_meets_mi355x_logs_within_a_gibibyte(
    tmp_path: Path, weights_gib: float, tp: int, seqs: int, logged_kv_gib: float
) -> None:
    """The same logs (utilization 0.95, 8,192 tokens a step), with the weights the log states.

    The runtime reserve was read off these logs, so this shows that one number a platform serves them all.
    """
    result = ledger(minimax_m2_5(tmp_path), "bf16", tp, utilization=0.95, batched=8192, seqs=seqs, kv="fp8", block=32)
    parts = ("device memory", "not requested", "activation peak", "runtime reserve")
    kv_gib = -sum(taken(result, part) for part in parts) - weights_gib
    assert kv_gib == pytest.approx(logged_kv_gib, abs=1.0)
    assert kv_gib == pytest.approx(logged_kv_gib, rel=0.02)


def test_padded_experts_weigh_what_an_h100_logged() -> None:
    """https://github.com/vllm-project/vllm/issues/23278: gpt-oss-120b with Marlin took 65.9651 GiB."""
    result = ledger("gpt-oss-120b", "mxfp4", 1, node="h100")
    parts = ("dense weights", "embedding and output head", "expert weights", "expert padding")
    assert sum(taken(result, part) for part in parts) == pytest.approx(65.9651, rel=0.003)


# --- vLLM's rules ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "size", "counts"),
    [
        ([18, 18], 18, (1, 1)),  # gpt-oss-120b
        ([80], 80, (1,)),  # a dense model
        ([10, 20], 10, (1, 2)),  # the example in vLLM's docstring
        ([12, 13], 13, (1, 1)),  # gpt-oss-20b with a drafter: padded
        ([8, 40], 8, (1, 5)),  # five sliding layers to one full
        ([2, 3], 2, (1, 2)),  # 3 is 1.5 times 2, so not padded up
    ],
)
def test_kv_groups_are_of_equal_size_as_in_vllm(layers: list[int], size: int, counts: tuple[int, ...]) -> None:
    assert vllm_kv_group_sizes([KvGroup(layers=count, window=None) for count in layers]) == (size, counts)


def test_a_block_of_gpt_oss_holds_one_group_and_the_window_is_set_aside() -> None:
    result = ledger("gpt-oss-120b", "mxfp4", 1)
    assert result.block_bytes == 18 * 2 * 8 * 64 * 2 * 16
    assert result.num_gpu_blocks - 1 - result.usable_blocks == 1024 * (128 // 16 + 1)
    assert result.kv_tokens == 16 * result.usable_blocks
    fewer = ledger("gpt-oss-120b", "mxfp4", 1, seqs=64)
    assert fewer.num_gpu_blocks - 1 - fewer.usable_blocks == 64 * 9


def test_a_model_of_sliding_layers_only_has_one_group_and_sets_nothing_aside() -> None:
    card = replace(load_model_card("llama-3.3-70b"), kv_groups=(KvGroup(layers=80, window=4096),))
    assert ledger(card, "fp8", 1).usable_blocks == ledger("llama-3.3-70b", "fp8", 1).usable_blocks


def test_several_full_groups_share_the_pool() -> None:
    card = replace(
        load_model_card("llama-3.3-70b"), kv_groups=(KvGroup(layers=60, window=None), KvGroup(layers=20, window=1024))
    )
    result = ledger(card, "fp8", 1, seqs=100)
    assert result.block_bytes == 20 * 2 * 8 * 128 * 2 * 16
    assert result.kv_tokens == result.usable_blocks // 3 * 16
    assert result.num_gpu_blocks - 1 - result.usable_blocks == 100 * 65


def test_kv_heads_are_copied_once_tp_exceeds_them(tmp_path: Path) -> None:
    card = shape(
        tmp_path,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=2,
        vocab_size=32000,
    )
    assert [ledger(card, "bf16", tp).block_bytes for tp in (1, 2, 4, 8)] == [524_288, 262_144, 262_144, 262_144]


def test_experts_are_padded_per_rank_and_only_in_four_bits() -> None:
    """A rank's inner size of 360 (TP8) works as 512 on ROCm and 384 on CUDA; hidden 2880 as 3072 on both."""
    padding = {tp: taken(ledger("gpt-oss-120b", "mxfp4", tp), "expert padding") for tp in (1, 2, 4, 8)}
    expert = taken(ledger("gpt-oss-120b", "mxfp4", 1), "expert weights")
    for tp, inner in ((1, 3072), (2, 1536), (4, 768), (8, 512)):
        assert padding[tp] == pytest.approx(expert / tp * (3072 * inner * tp / 2880**2 - 1), rel=1e-6)
    on_cuda = taken(ledger("gpt-oss-120b", "mxfp4", 8, node="b200"), "expert padding")
    assert on_cuda == pytest.approx(expert / 8 * (3072 * 384 * 8 / 2880**2 - 1), rel=1e-6)
    assert taken(ledger("gpt-oss-120b", "bf16", 8), "expert padding") == 0


def test_an_override_replaces_the_arithmetic_and_the_ledger_still_adds_up() -> None:
    computed = ledger("llama-3.3-70b", "fp8", 1)
    for override in (1, 1000, computed.num_gpu_blocks + 5000):
        result = ledger("llama-3.3-70b", "fp8", 1, override=override)
        assert result.num_gpu_blocks == override
        assert result.kv_tokens == (override - 1) * 16
        assert result.available_bytes == computed.available_bytes
        assert sum(line.bytes for line in result.lines) == result.usable_blocks * result.block_bytes
        assert any(line.name == "num_gpu_blocks_override" and line.how_known == "given" for line in result.lines)


def test_weights_larger_than_the_memory_leave_a_negative_rest_and_no_block() -> None:
    result = ledger("llama-3.3-70b", "bf16", 1, node="h100")
    assert result.available_bytes < 0
    assert (result.num_gpu_blocks, result.usable_blocks, result.kv_tokens) == (0, 0, 0)
    assert sum(line.bytes for line in result.lines) == result.available_bytes


def test_a_window_reserve_larger_than_the_pool_leaves_no_tokens() -> None:
    result = ledger("gpt-oss-120b", "mxfp4", 1, override=500)
    assert (result.num_gpu_blocks, result.usable_blocks, result.kv_tokens) == (500, 0, 0)


def test_every_line_says_how_it_is_known() -> None:
    known = {line.name: line.how_known for line in ledger("gpt-oss-120b", "mxfp4", 2).lines}
    assert known["device memory"] == "measured"
    assert known["not requested"] == "given"
    assert known["expert weights"] == known["activation peak"] == known["sliding-window blocks"] == "derived"
    assert known["runtime reserve"] == "assumed"
    assert {line.name: line.how_known for line in ledger("gpt-oss-120b", "mxfp4", 2, node="mi325x").lines}[
        "device memory"
    ] == "assumed"


@settings(max_examples=80, deadline=None)
@given(
    node=st.sampled_from(list_nodes()),
    model=st.sampled_from(["gpt-oss-120b", "llama-3.3-70b"]),
    tp=st.sampled_from([1, 2, 4, 8]),
    utilization=st.floats(0.05, 1.0),
    batched=st.integers(1, 65536),
    seqs=st.integers(1, 4096),
    block=st.sampled_from([1, 16, 32, 64, 128]),
    kv=st.sampled_from(["auto", "fp8"]),
)
def test_the_lines_always_add_up_to_the_usable_cache(
    node: str, model: str, tp: int, utilization: float, batched: int, seqs: int, block: int, kv: str
) -> None:
    result = ledger(
        model, "mxfp4", tp, node=node, utilization=utilization, batched=batched, seqs=seqs, block=block, kv=kv
    )
    total = sum(line.bytes for line in result.lines)
    assert total == (result.usable_blocks * result.block_bytes if result.num_gpu_blocks else result.available_bytes)
    assert result.kv_tokens >= 0
    assert result.num_gpu_blocks * result.block_bytes <= max(0, result.available_bytes)


def test_more_memory_more_ranks_and_smaller_kv_never_shrink_the_cache() -> None:
    for model, precision in (("gpt-oss-120b", "mxfp4"), ("llama-3.3-70b", "fp8")):
        tokens = [ledger(model, precision, tp).kv_tokens for tp in (1, 2, 4, 8)]
        assert tokens == sorted(tokens)
        assert ledger(model, precision, 2, utilization=0.95).kv_tokens > tokens[1]
        assert ledger(model, precision, 2, kv="fp8").kv_tokens > tokens[1]
        assert ledger(model, precision, 2, batched=65536).kv_tokens <= tokens[1]


@pytest.mark.parametrize(
    ("model", "tp", "words"),
    [
        ("gpt-oss-120b", 7, "tensor_parallel_size 7 does not divide the 64 attention heads"),
        ("gpt-oss-120b", 0, "must be at least 1"),
        ("llama-3.3-70b", 3, "does not divide the 64 attention heads"),
        ("llama-3.3-70b", 128, "does not divide the 64 attention heads"),
    ],
)
def test_a_tp_degree_that_does_not_divide_the_model_has_its_reason(model: str, tp: int, words: str) -> None:
    assert words in str(tensor_parallel_problem(load_model_card(model), tp))
    with pytest.raises(ValueError, match="tensor_parallel_size"):
        ledger(model, "mxfp4", tp)


def test_tp_degrees_of_an_eight_gpu_server_fit_the_shipped_models() -> None:
    for model in ("gpt-oss-120b", "llama-3.3-70b", "deepseek-r1-distill-llama-70b"):
        assert [tensor_parallel_problem(load_model_card(model), tp) for tp in (1, 2, 4, 8)] == [None] * 4


def test_an_unknown_kv_dtype_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="kv_cache_dtype: 'int8' is not known; use one of auto, bfloat16"):
        ledger("llama-3.3-70b", "fp8", 1, kv="int8")
