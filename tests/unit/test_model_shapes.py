"""Models beyond grouped-query attention in all layers: what they weigh, keep and read, by card and by config.json."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hardware_profiles.attention import KvGroup
from hardware_profiles.memory import KvLedger, kv_bytes_per_token_per_rank, kv_ledger, tensor_parallel_problem
from hardware_profiles.model import ModelCard, load_model_card
from hardware_profiles.model_config_json import Json
from hardware_profiles.node import load_node
from hardware_profiles.profile import SharedTerms, TensorParallelTerms
from simulator.steptime import StepTimeModel, build_step_time

NODE = load_node("mi355x")
HBM_BYTES_PER_S = NODE.hbm_rate_bytes_per_s
TERMS = TensorParallelTerms(
    step_floor_s=0.0,
    prefill_floor_s=0.0,
    sequence_s=1e-5,
    weight_efficiency=1.0,
    flop_efficiency=1.0,
    kv_efficiency=0.5,
    attention_efficiency=0.2,
)
SHARED = SharedTerms(
    smooth_exponent=8.0,
    expert_popularity_shape=2.0,
    host_s=0.0,
    host_sequence_s=0.0,
    sync_s=0.0,
    request_overhead_s=0.0,
)
THREE_DENSE: list[Json] = [0, 0, 0, *(1 for _ in range(57))]
DEEPSEEK_V3: dict[str, Json] = {
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
KIMI_K2: dict[str, Json] = DEEPSEEK_V3 | {
    "model_type": "kimi_k2",
    "first_k_dense_replace": 1,
    "max_position_embeddings": 262144,
    "n_routed_experts": 384,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
    },
    "vocab_size": 163840,
}
MINIMAX_M2_5: dict[str, Json] = {
    "model_type": "minimax_m2",
    "attn_type_list": [1] * 62,
    "head_dim": 128,
    "hidden_size": 3072,
    "intermediate_size": 1536,
    "max_position_embeddings": 196608,
    "num_attention_heads": 48,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 62,
    "num_key_value_heads": 8,
    "num_local_experts": 256,
    "qk_norm_type": "per_layer",
    "quantization_config": {
        "quant_method": "fp8",
        "modules_to_not_convert": ["gate", "lm_head"],
        "weight_block_size": [128, 128],
    },
    "shared_intermediate_size": 0,
    "use_qk_norm": True,
    "use_routing_bias": True,
    "vocab_size": 200064,
}
MINIMAX_M3: dict[str, Json] = {
    "model_type": "minimax_m3_vl",
    "text_config": {
        "dense_intermediate_size": 12288,
        "head_dim": 128,
        "hidden_size": 6144,
        "intermediate_size": 3072,
        "max_position_embeddings": 1048576,
        "moe_layer_freq": THREE_DENSE,
        "n_shared_experts": 1,
        "num_attention_heads": 64,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 60,
        "num_key_value_heads": 4,
        "num_local_experts": 128,
        "qk_norm_type": "per_head",
        "shared_intermediate_size": 3072,
        "sparse_attention_config": {
            "sparse_attention_freq": THREE_DENSE,
            "sparse_block_size": 128,
            "sparse_index_dim": 128,
            "sparse_num_index_heads": 4,
            "sparse_topk_blocks": 16,
            "use_sparse_attention": True,
        },
        "use_qk_norm": True,
        "use_routing_bias": True,
        "vocab_size": 200064,
    },
    "quantization_config": {"quant_method": "mxfp8", "weight_block_size": [1, 32]},
    "vision_config": {"hidden_size": 1280, "num_hidden_layers": 32},
}
QWEN3_235B: dict[str, Json] = {
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "moe_intermediate_size": 1536,
    "num_attention_heads": 64,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 94,
    "num_key_value_heads": 4,
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3_5: dict[str, Json] = {
    "model_type": "qwen3_5_moe",
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "attn_output_gate": True,
        "full_attention_interval": 4,
        "head_dim": 256,
        "hidden_size": 4096,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 64,
        "linear_value_head_dim": 128,
        "max_position_embeddings": 262144,
        "mlp_only_layers": [],
        "moe_intermediate_size": 1024,
        "num_attention_heads": 32,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "num_hidden_layers": 60,
        "num_key_value_heads": 2,
        "shared_expert_intermediate_size": 1024,
        "vocab_size": 248320,
    },
    "vision_config": {"depth": 27, "hidden_size": 1152},
}


def built(card: ModelCard, precision: str, degree: int, *, kv_cache_dtype: str = "fp8") -> StepTimeModel:
    return build_step_time(
        node=NODE,
        card=card,
        precision=precision,
        tensor_parallel_size=degree,
        shared=SHARED,
        terms=TERMS,
        all_reduce=None,
        max_tokens=64,
        kv_cache_dtype=kv_cache_dtype,
    )


def ledger(card: ModelCard, precision: str, degree: int, *, seqs: int = 256) -> KvLedger:
    return kv_ledger(
        NODE,
        card,
        precision,
        tensor_parallel_size=degree,
        gpu_memory_utilization=0.9,
        max_num_batched_tokens=8192,
        max_num_seqs=seqs,
        kv_cache_dtype="fp8",
        block_size=16,
    )


def taken_bytes(result: KvLedger, name: str) -> int:
    return -sum(line.bytes for line in result.lines if line.name == name)


# --- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("deepseek-r1", 671e9, 37e9),
        ("deepseek-v4", 1.6e12, 49e9),
        ("kimi-k2-thinking", 1.03e12, 32e9),
        ("kimi-k2.5", 1.03e12, 32e9),
        ("minimax-m2.5", 229e9, 10e9),
        ("minimax-m3", 427e9, 23e9),
        ("qwen3-235b-a22b", 235e9, 22e9),
        ("qwen3.5-397b-a17b", 397e9, 17e9),
    ],
)
def test_a_card_has_the_published_number_of_weights(name: str, total: float, active: float) -> None:
    """Published figures are rounded: within half of their last digit, 2 % for 1.6 T, and 10 % of the active ones.

    What counts as active differs between vendors (embeddings, the output head).
    """
    card = load_model_card(name)
    assert card.experts is not None and card.experts_per_token is not None
    routed = card.parameters.expert * card.experts_per_token / card.experts
    assert card.parameters.total == pytest.approx(total, rel=0.02 if total == 1.6e12 else 0.005)
    assert card.parameters.dense + routed == pytest.approx(active, rel=0.1)


def test_counts_are_exact_where_the_same_tensors_are_counted_elsewhere() -> None:
    assert load_model_card("deepseek-r1").parameters.total == 671_026_419_200
    assert load_model_card("qwen3-235b-a22b").parameters.total == 235_093_634_560


def test_a_first_dense_layer_and_a_shared_expert_are_dense_weights() -> None:
    card = load_model_card("deepseek-r1")
    assert card.parameters.mlp == 3 * 3 * 7168 * 18432 + 58 * 3 * 7168 * 2048
    assert card.parameters.expert == 58 * 256 * 3 * 7168 * 2048


def test_projections_into_the_latent_vectors_are_whole_on_every_rank() -> None:
    card = load_model_card("deepseek-r1")
    assert card.parameters.replicated == 61 * 7168 * (1536 + 512 + 64)
    one, eight = (taken_bytes(ledger(card, "fp8", degree), "dense weights") for degree in (4, 8))
    replicated = card.weight_bytes("fp8").replicated_bytes
    assert eight - replicated == pytest.approx((one - replicated) / 2, abs=1)


def test_amds_four_bit_checkpoint_keeps_attention_at_sixteen_bits() -> None:
    card = load_model_card("deepseek-r1")
    weights = card.weight_bytes("fp4")
    attention = card.parameters.dense - card.parameters.mlp
    assert weights.dense_bytes == 2 * attention + card.parameters.mlp * 17 // 32
    assert (weights.multiplied_in, card.weight_bytes("fp8").multiplied_in) == ("fp4", "fp8")
    assert load_model_card("gpt-oss-120b").weight_bytes("mxfp4").multiplied_in == "bf16"


# --- what a token and a sequence keep --------------------------------------------------------------------------------


@pytest.mark.parametrize("degree", [1, 2, 4, 8])
def test_a_latent_vector_is_whole_on_every_rank(degree: int) -> None:
    card = load_model_card("kimi-k2.5")
    assert card.kv_bytes_per_token(1) == (61 * 576,)
    assert kv_bytes_per_token_per_rank(card, degree, 1) == 35_136
    assert kv_bytes_per_token_per_rank(card, degree, 2) == 70_272


@pytest.mark.parametrize(
    ("name", "degree", "rank_bytes"),
    [
        ("minimax-m2.5", 4, 62 * 2 * 2 * 128),
        ("minimax-m3", 4, 60 * 2 * 128 + 57 * 256),
        ("minimax-m3", 8, 60 * 2 * 128 + 57 * 256),
        ("qwen3-235b-a22b", 2, 94 * 2 * 2 * 128),
        ("qwen3.5-397b-a17b", 4, 15 * 2 * 256),
        ("deepseek-v4", 8, 31 * 584 // 128 + 30 * 584 // 4 + 30 * 132 // 4),
    ],
)
def test_bytes_a_token_takes_of_an_eight_bit_cache_on_one_rank(name: str, degree: int, rank_bytes: int) -> None:
    assert kv_bytes_per_token_per_rank(load_model_card(name), degree, 1) == rank_bytes


def test_a_million_tokens_of_deepseek_v4_take_what_vllm_says() -> None:
    """9.62 GiB in BF16 (vLLM's blog of 2026-04-24), with index keys in 16 bits; the card has 8-bit ones."""
    card = load_model_card("deepseek-v4")
    without_keys = kv_bytes_per_token_per_rank(card, 8, 2) - card.index_bytes_per_token
    keys = 30 * 128 * 2 // 4
    assert (without_keys + keys) * 2**20 / 2**30 == pytest.approx(9.62, abs=0.01)


def test_linear_attention_keeps_a_state_of_constant_size_that_ranks_share() -> None:
    card = load_model_card("qwen3.5-397b-a17b")
    assert card.state_bytes == 45 * (64 * 128 * 128 * 4 + (2 * 16 + 64) * 128 * 3 * 2)
    few, many = (taken_bytes(ledger(card, "fp8", 4, seqs=seqs), "sequence states") for seqs in (64, 128))
    assert many == 2 * few == 128 * card.state_bytes // 4


def test_the_window_branch_and_the_compressors_of_deepseek_v4_are_set_aside_by_sequence() -> None:
    card = load_model_card("deepseek-v4")
    states = taken_bytes(ledger(card, "mxfp4", 8, seqs=100), "sequence states")
    assert states == 100 * (61 * 128 * 584 + card.sequence_bytes)


def test_a_model_without_states_has_no_line_for_them() -> None:
    assert taken_bytes(ledger(load_model_card("deepseek-r1"), "fp8", 8), "sequence states") == 0


def test_layers_that_keep_alike_share_a_block_however_much_they_read() -> None:
    card = load_model_card("minimax-m3")
    plain = replace(card, kv_groups=(KvGroup(layers=60, window=None),))
    block_bytes = ledger(card, "fp8", 4).block_bytes
    assert block_bytes == ledger(plain, "fp8", 4).block_bytes + 16 * card.index_bytes_per_token


@pytest.mark.parametrize(("name", "degrees"), [("deepseek-r1", (1, 2, 4, 8, 16)), ("qwen3.5-397b-a17b", (1, 2, 4, 8))])
def test_latent_heads_and_few_kv_heads_do_not_limit_tensor_parallelism(name: str, degrees: tuple[int, ...]) -> None:
    card = load_model_card(name)
    assert [tensor_parallel_problem(card, degree) for degree in degrees] == [None] * len(degrees)


def test_heads_that_do_not_divide_are_named() -> None:
    assert "48 attention heads" in str(tensor_parallel_problem(load_model_card("minimax-m2.5"), 32))
    key_heads = tensor_parallel_problem(load_model_card("qwen3.5-397b-a17b"), 32)
    assert "16 key heads of linear attention" in str(key_heads)


def test_blocks_with_one_scale_are_not_split_between_ranks() -> None:
    """vLLM at TP 8: "output_size of gate's and up's weight = 192 is not divisible by weight quantization block_n"."""
    for name in ("minimax-m2.5", "qwen3-235b-a22b"):
        card = load_model_card(name)
        assert [tensor_parallel_problem(card, degree, "fp8") for degree in (1, 2, 4)] == [None] * 3
        assert "192 columns of an expert" in str(tensor_parallel_problem(card, 8, "fp8"))
        assert tensor_parallel_problem(card, 8, "bf16") is None
    for name in ("deepseek-r1", "kimi-k2.5", "qwen3.5-397b-a17b", "minimax-m3"):
        assert tensor_parallel_problem(load_model_card(name), 8, "fp8") is None


# --- what a step reads and multiplies --------------------------------------------------------------------------------


def test_more_ranks_do_not_shorten_the_reading_of_latent_vectors() -> None:
    card = load_model_card("deepseek-r1")
    assert built(card, "fp8", 8).kv_s == built(card, "fp8", 1).kv_s
    assert built(card, "fp8", 8).kv_s == pytest.approx(35_136 / (HBM_BYTES_PER_S * 0.5))


def test_prompt_pairs_of_latent_attention_are_multiplied_head_by_head() -> None:
    card = load_model_card("deepseek-r1")
    flop = 61 * 2 * 128 * (128 + 64 + 128)
    assert built(card, "fp8", 8).attention_s == pytest.approx(flop / 8 / (NODE.flops["bf16"] * 0.2))


def test_sparse_attention_reads_a_window_and_scans_all_index_keys() -> None:
    model = built(load_model_card("minimax-m3"), "fp8", 4)
    byte_s = 1 / (HBM_BYTES_PER_S * 0.5)
    assert model.window_tokens == 2048
    assert model.window_kv_s == pytest.approx(57 * 2 * 128 * byte_s)
    assert model.kv_s == pytest.approx((3 * 2 * 128 + 57 * 256) * byte_s)


@pytest.mark.parametrize("degree", [1, 2, 4, 8])
@pytest.mark.parametrize(("name", "precision"), [("gpt-oss-120b", "mxfp4"), ("llama-3.3-70b", "fp8")])
def test_a_model_of_plain_attention_is_reckoned_by_the_plain_formulas_to_the_bit(
    name: str, precision: str, degree: int
) -> None:
    card, model = load_model_card(name), built(load_model_card(name), precision, degree)
    weights, rate = card.weight_bytes(precision), NODE.flops["bf16"] * 0.2
    full = [group.layers for group in card.kv_groups if group.window is None]
    token_bytes = 2 * card.kv_heads * card.head_dim
    byte_s = max(1, card.kv_heads // degree) / card.kv_heads / (HBM_BYTES_PER_S * 0.5)
    pair_s = 4.0 * card.heads * card.head_dim / degree / rate
    assert model.kv_s == sum(full) * token_bytes * byte_s
    assert model.window_kv_s == (card.layers - sum(full)) * token_bytes * byte_s
    assert model.attention_s == pair_s * sum(full)
    assert model.window_attention_s == pair_s * (card.layers - sum(full))
    assert model.sequence_s == TERMS.sequence_s
    assert (weights.replicated_bytes, card.state_bytes, card.index_bytes_per_token) == (0, 0, 0)
    size = card.layers if len(card.kv_groups) == 1 else card.layers // 2
    rank_heads = max(1, card.kv_heads // degree)
    assert ledger(card, precision, degree).block_bytes == 16 * 2 * rank_heads * card.head_dim * size


def test_a_sequence_of_linear_attention_reads_and_writes_its_state() -> None:
    card = load_model_card("qwen3.5-397b-a17b")
    extra_s = built(card, "fp8", 4).sequence_s - TERMS.sequence_s
    assert extra_s == pytest.approx(2 * card.state_bytes / 4 / (HBM_BYTES_PER_S * 0.5))


def test_compressed_layers_share_one_window_by_what_they_read() -> None:
    model = built(load_model_card("deepseek-v4"), "mxfp4", 8)
    byte_s = 1 / (HBM_BYTES_PER_S * 0.5)
    assert model.window_tokens == 4096
    assert model.window_kv_s == pytest.approx((30 * 584 / 4 + 61 * 584 * 128 / 4096) * byte_s, rel=1e-3)
    assert model.kv_s == pytest.approx((31 * 584 / 128 + 30 * 132 / 4) * byte_s, rel=1e-3)


def test_a_step_of_one_token_reads_the_dense_weights_and_its_experts() -> None:
    card = load_model_card("deepseek-r1")
    model = built(card, "fp8", 8)
    weights = card.weight_bytes("fp8")
    dense = (weights.dense_bytes - weights.replicated_bytes + weights.embedding_bytes / 2) / 8
    touched = 1 - (1 + 8 / 256 / 2.0) ** -2.0
    read_s = (dense + weights.replicated_bytes + weights.expert_bytes / 8 * touched) / HBM_BYTES_PER_S
    assert model.decode_s[1] == pytest.approx(read_s, rel=1e-6)
    assert (np.diff(model.decode_s) > 0).all()


# --- config.json -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "name", "native"),
    [
        (DEEPSEEK_V3, "deepseek-r1", "fp8"),
        (KIMI_K2, "kimi-k2-thinking", "int4"),
        ({"text_config": KIMI_K2, "vision_config": {"patch_size": 14}}, "kimi-k2.5", "int4"),
        (MINIMAX_M2_5, "minimax-m2.5", "fp8"),
        (MINIMAX_M3, "minimax-m3", "fp8"),
        (QWEN3_235B, "qwen3-235b-a22b", "bf16"),
        (QWEN3_5, "qwen3.5-397b-a17b", "bf16"),
    ],
)
def test_a_model_folder_gives_the_shape_that_ships(
    tmp_path: Path, config: dict[str, Json], name: str, native: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    read, shipped = load_model_card(tmp_path), load_model_card(name)
    assert read.parameters == shipped.parameters
    assert (read.kv_groups, read.latent, read.linear) == (shipped.kv_groups, shipped.latent, shipped.linear)
    assert (read.kv_heads, read.head_dim, read.max_model_len) == (
        shipped.kv_heads,
        shipped.head_dim,
        shipped.max_model_len,
    )
    assert read.native_precision == native
    assert read.weight_bytes(native) == shipped.weight_bytes(native)


def test_an_nvfp4_checkpoint_is_not_taken_for_fp8(tmp_path: Path) -> None:
    quantization: Json = {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "ignore": ["lm_head", "layers.0.self_attn*"],
    }
    (tmp_path / "config.json").write_text(json.dumps(KIMI_K2 | {"quantization_config": quantization}), encoding="utf-8")
    read = load_model_card(tmp_path)
    assert read.native_precision == "nvfp4"
    assert read.weight_bytes("nvfp4") == load_model_card("kimi-k2.5").weight_bytes("nvfp4")
