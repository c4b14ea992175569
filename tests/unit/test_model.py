"""Model cards count every weight, and a model folder gives the same card as the shipped file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hardware_profiles.errors import InputError
from hardware_profiles.model import KvGroup, list_model_cards, load_model_card, precision_name
from hardware_profiles.model_config_json import Json
from hardware_profiles.shipped import PACKAGE

GPT_OSS_CONFIG: dict[str, Json] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "attention_bias": True,
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
    "sliding_window": 128,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}
LLAMA_CONFIG: dict[str, Json] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}


def model_folder(folder: Path, config: dict[str, Json]) -> Path:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_gpt_oss_120b_has_the_published_number_of_weights_part_by_part() -> None:
    card = load_model_card("gpt-oss-120b")
    assert card.parameters.total == 116_829_156_672
    assert card.parameters.expert == 36 * 128 * 3 * 2880 * 2880
    assert card.parameters.embedding == 2 * 201_088 * 2880
    assert card.kv_groups == (KvGroup(layers=18, window=128), KvGroup(layers=18, window=None))
    weights = card.weight_bytes("mxfp4")
    assert weights.expert_bytes == card.parameters.expert * 17 // 32 + 2 * card.parameters.expert_bias
    assert weights.dense_bytes == 2 * card.parameters.dense
    assert weights.total_bytes / 2**30 == pytest.approx(60.77, abs=0.01)


def test_llama_70b_has_the_published_number_of_weights_and_its_distillate_the_same_shape() -> None:
    llama = load_model_card("llama-3.3-70b")
    distillate = load_model_card("deepseek-r1-distill-llama-70b")
    assert llama.parameters.total == distillate.parameters.total == 70_553_706_496
    assert llama.weight_bytes("bf16").total_bytes == 2 * 70_553_706_496
    assert llama.weight_bytes("fp8").dense_bytes == 80 * (2 * 8192 * 9216 + 3 * 8192 * 28672 + 2 * 8192) + 8192
    assert llama.weight_bytes("mxfp4").dense_bytes * 32 == llama.parameters.dense * 17
    assert (llama.experts, llama.weight_bytes("fp8").expert_bytes) == (None, 0)
    assert llama.kv_bytes_per_token() == (327_680,)
    assert llama.kv_bytes_per_token(1) == (163_840,)


def test_gpt_oss_kv_bytes_are_counted_by_group() -> None:
    assert load_model_card("gpt-oss-120b").kv_bytes_per_token() == (36_864, 36_864)


@pytest.mark.parametrize("name", list_model_cards())
def test_a_shipped_card_is_whole_and_every_precision_has_a_source(name: str) -> None:
    card = load_model_card(name)
    assert card.name == name
    linear_layers = 0 if card.linear is None else card.linear.layers
    assert sum(group.layers for group in card.kv_groups if not group.branch) + linear_layers == card.layers
    assert card.native_precision in card.precisions
    assert {"shape", *card.precisions} == set(card.sources)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("gptoss120b", "gpt-oss-120b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("OpenAI/GPT-OSS-120b", "gpt-oss-120b"),
        ("llama70b", "llama-3.3-70b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.3-70b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "deepseek-r1-distill-llama-70b"),
    ],
)
def test_a_model_is_found_by_the_names_people_and_benchmarks_use(alias: str, name: str) -> None:
    assert load_model_card(alias).name == name


def test_fp4_means_mxfp4_and_an_unknown_precision_names_the_known_ones() -> None:
    card = load_model_card("llama-3.3-70b")
    assert card.weight_bytes("fp4") == card.weight_bytes("mxfp4")
    assert precision_name("FP4") == "mxfp4"
    with pytest.raises(InputError, match=r"'int3' is not on the card of llama-3.3-70b; it knows bf16, fp8, mxfp4"):
        card.weight_bytes("int3")


def test_an_unknown_model_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match="unknown model 'gpt-oss-12b'; did you mean `gpt-oss-120b`"):
        load_model_card("gpt-oss-12b")
    with pytest.raises(InputError, match="neither a model folder nor an alias"):
        load_model_card("openai/gpt-5-oss")
    for odd in ("", "x" * 5000, "a\0b", "a\0b/c", "a\0b.yaml"):
        with pytest.raises(InputError):
            load_model_card(odd)


def test_a_model_folder_gives_the_card_that_ships(tmp_path: Path) -> None:
    read = load_model_card(model_folder(tmp_path, GPT_OSS_CONFIG))
    shipped = load_model_card("gpt-oss-120b")
    assert read.parameters == shipped.parameters
    assert read.kv_groups == shipped.kv_groups
    assert read.weight_bytes("mxfp4") == shipped.weight_bytes("mxfp4")
    assert (read.native_precision, read.max_model_len, read.experts) == ("mxfp4", 131072, 128)


def test_a_dense_model_folder_is_read_by_folder_by_file_and_by_relative_path(tmp_path: Path) -> None:
    folder = tmp_path / "My Llama"
    folder.mkdir()
    model_folder(folder, LLAMA_CONFIG)
    shipped = load_model_card("llama-3.3-70b")
    for card in (
        load_model_card(folder),
        load_model_card(str(folder / "config.json")),
        load_model_card("./My Llama", relative_to=tmp_path),
    ):
        assert card.name == "my-llama"
        assert card.parameters == shipped.parameters
        assert (card.head_dim, card.native_precision) == (128, "bf16")
        assert dict(card.precisions) == dict(shipped.precisions)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kv_lora_rank": 512, "index_topk": 2048}, "an indexer over latent attention (index_topk) is not modelled"),
        ({"kv_lora_rank": 512}, "qk_nope_head_dim: missing"),
        ({"compress_ratios": [128, 4]}, "a KV cache compressed over tokens"),
        ({"num_experts": 8, "moe_layer_freq": 2}, "dense layers among the MoE layers"),
        ({"num_experts": 8, "moe_layer_freq": [1] * 40 + [0] * 40}, "dense layers among the MoE layers"),
        ({"attn_type_list": [0, 1] * 40}, "lightning attention is not modelled"),
        ({"num_hidden_layers": None}, "missing; a decoder-only model's config.json has `num_hidden_layers`"),
        ({"num_hidden_layers": "80"}, "'80' is not allowed; it must be a whole number"),
        ({"num_hidden_layers": True}, "True is not allowed"),
        ({"num_key_value_heads": 7}, "heads 64 is not a multiple of kv_heads 7"),
        ({"layer_types": ["mamba"] * 80}, "layer type 'mamba' is not modelled"),
        ({"layer_types": ["linear_attention"] * 80}, "linear_num_key_heads: missing"),
        ({"layer_types": ["sliding_attention"] * 80}, "sliding_window: missing"),
        ({"layer_types": ["full_attention"] * 79}, "kv_groups hold 79 layers, the model has 80"),
        ({"quantization_config": {"quant_method": "exl3"}}, "quantization 'exl3' is not known"),
    ],
)
def test_a_shape_the_models_do_not_know_is_refused_by_name(tmp_path: Path, change: dict[str, Json], words: str) -> None:
    with pytest.raises(InputError) as caught:
        load_model_card(model_folder(tmp_path, LLAMA_CONFIG | change))
    assert words in str(caught.value)


def test_a_folder_without_a_config_or_with_a_broken_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no readable config.json"):
        load_model_card(tmp_path)
    (tmp_path / "config.json").write_text("{\n'a': 1}", encoding="utf-8")
    with pytest.raises(InputError, match="not valid JSON") as caught:
        load_model_card(tmp_path)
    assert caught.value.line == 2


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("experts_per_token: 4\n", "", "go together; give all three or none"),
        ("experts_per_token: 4", "experts_per_token: 400", "400 is more than the 128 experts"),
        ("{layers: 18}", "{layers: 17}", "kv_groups hold 35 layers"),
        ("native_precision: mxfp4", "native_precision: fp8", "'fp8' is not among precisions"),
        ("expert_bias: true", "dense_layers: 37", "dense_layers 37 is more than the 36 layers"),
        ("{layers: 18, window: 128}", "{layers: 18, branch: true}", "a branch without a window"),
        (
            "expert_bias: true",
            "latent: {kv_rank: 512, nope_dim: 128, rope_dim: 64, value_dim: 128}",
            "latent attention keeps one vector for all heads",
        ),
        (
            "expert_bias: true",
            "linear: {layers: 1, key_heads: 1, value_heads: 1, key_dim: 1, value_dim: 1, conv_kernel: 4}",
            "kv_groups hold 36 layers and linear 1, the model has 36",
        ),
        ("hidden: 2880", "hiden: 2880", r"unknown key `hiden`; did you mean `hidden`?"),
        ("  bf16:\n    source", "  bf17:\n    source", "no source for bf16"),
    ],
)
def test_a_wrong_card_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    text = (PACKAGE / "models" / "gpt-oss-120b.yaml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "card.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_model_card(path)
    assert words in str(caught.value)
