"""Recipes: what a plan's shortlist holds, and the file that vLLM starts from."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hardware_profiles.errors import InputError
from planner.plan_file import Plan, load_plan, plan_sha256
from planner.recipe import Recipe, export_vllm_config, load_recipe, shortlisted, write_shortlist
from simulator.engine import ENGINE_FLAGS
from simulator.flags import FlagValue

CASE = Path(__file__).parent / "cases" / "plan.json"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return load_plan(CASE)


@pytest.fixture
def best(plan: Plan, tmp_path: Path) -> Path:
    return write_shortlist(plan, tmp_path)[0]


def rewritten(path: Path, old: str, new: str) -> Path:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def vllm_arguments(config: str) -> list[str]:
    """The command line that vLLM 0.32 makes of a config file when its top parser, which knows no flag, reads it.

    `vllm/utils/argparse_utils.py: FlexibleArgumentParser.load_config_file`: true is a bare flag, false is dropped.
    """
    arguments: list[str] = []
    for key, value in yaml.safe_load(config).items():
        if isinstance(value, bool):
            arguments += [f"--{key}"] if value else []
        else:
            arguments += [f"--{key}", str(value)]
    return arguments


SWITCHES = (
    "enable-prefix-caching",
    "enable-chunked-prefill",
    "long-prefill-token-threshold-adaptive",
    "async-scheduling",
)


def serve_parser() -> argparse.ArgumentParser:
    """The flags of `vllm serve` that recipes use, spelled as in vLLM 0.32 `vllm/engine/arg_utils.py`."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    for name in ("model", "kv-cache-dtype"):
        parser.add_argument(f"--{name}")
    for name in ("tensor-parallel-size", "max-num-seqs", "max-num-batched-tokens", "max-model-len", "block-size"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--num-gpu-blocks-override", type=int)
    parser.add_argument("--gpu-memory-utilization", type=float)
    parser.add_argument("--watermark", type=float)
    for name in ("long-prefill-token-threshold", "max-num-active-seqs", "max-num-queued-reqs", "max-num-queued-tokens"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--scheduling-policy", choices=["fcfs", "priority"])
    for name in SWITCHES:
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=None)
    return parser


def test_the_shortlist_is_the_best_its_ties_then_the_next_simulated_fleets(plan: Plan, tmp_path: Path) -> None:
    paths = write_shortlist(plan, tmp_path)
    assert tuple(f"shortlist/{path.name}" for path in paths) == plan.shortlist
    rows = shortlisted(plan.candidates)
    assert [row.evidence for row in rows] == ["confirmed", "fleet", "fleet", "fleet", "fleet"]
    assert [row.tied for row in rows] == [False, True, True, False, False]
    assert rows[3:] == tuple(c for c in plan.candidates if c.evidence == "fleet" and not c.tied)[:2]
    for path, row in zip(paths, rows, strict=True):
        recipe = load_recipe(path)
        assert recipe.vllm == row.engine
        assert recipe.vllm["enable_prefix_caching"] is False
        assert recipe.replicas_per_server == row.replicas_per_server


def test_nothing_is_shortlisted_when_nothing_was_confirmed(plan: Plan) -> None:
    assert shortlisted(plan.candidates[1:]) == ()
    assert shortlisted(()) == ()


def test_a_recipe_says_all_that_a_server_needs(plan: Plan, best: Path) -> None:
    recipe = load_recipe(best)
    assert recipe == Recipe(
        model="openai/gpt-oss-120b",
        precision="mxfp4",
        node="mi355x",
        engine="vllm",
        image="vllm/vllm-openai-rocm:v0.32.0",
        env={},
        vllm={
            "tensor_parallel_size": 1,
            "max_num_seqs": 1024,
            "max_num_batched_tokens": 12288,
            "max_model_len": 32768,
            "block_size": 16,
            "gpu_memory_utilization": 0.9,
            "kv_cache_dtype": "auto",
            "enable_prefix_caching": False,
        },
        replicas_per_server=8,
        plan_sha256=plan_sha256(plan),
    )
    assert list(yaml.safe_load(best.read_text(encoding="utf-8"))) == list(Recipe.model_fields)


@pytest.mark.parametrize(
    ("model", "precision", "node", "checkpoint", "image"),
    [
        ("gptoss120b", "mxfp4", "h200", "openai/gpt-oss-120b", "vllm/vllm-openai:v0.32.0"),
        ("llama-3.3-70b", "bf16", "mi300x", "meta-llama/Llama-3.3-70B-Instruct", "vllm/vllm-openai-rocm:v0.32.0"),
        ("llama-3.3-70b", "fp8", "b200", "amd/Llama-3.3-70B-Instruct-FP8-KV", "vllm/vllm-openai:v0.32.0"),
        ("./models/mine/config.json", "fp8", "mi355x", "models/mine", "vllm/vllm-openai-rocm:v0.32.0"),
        ("org/own-model", "fp8", "mi355x", "org/own-model", "vllm/vllm-openai-rocm:v0.32.0"),
    ],
)
def test_model_and_image_are_those_that_can_be_loaded(
    model: str, precision: str, node: str, checkpoint: str, image: str, plan: Plan, tmp_path: Path
) -> None:
    data = plan.model_dump(mode="json")
    data["scenario"]["model"] = model
    data["candidates"][0] |= {"precision": precision, "node": node}
    recipe = load_recipe(write_shortlist(Plan.model_validate_json(json.dumps(data)), tmp_path)[0])
    assert (recipe.model, recipe.image) == (checkpoint, image)


def test_vllm_reads_the_exported_file_as_it_was_meant(best: Path) -> None:
    parsed = serve_parser().parse_args(vllm_arguments(export_vllm_config(load_recipe(best))))
    assert {name: value for name, value in vars(parsed).items() if value is not None} == {
        "model": "openai/gpt-oss-120b",
        "tensor_parallel_size": 1,
        "max_num_seqs": 1024,
        "max_num_batched_tokens": 12288,
        "max_model_len": 32768,
        "block_size": 16,
        "gpu_memory_utilization": 0.9,
        "kv_cache_dtype": "auto",
        "enable_prefix_caching": False,
    }


def test_every_flag_of_a_scenario_reaches_vllm_through_the_exported_file(plan: Plan, tmp_path: Path) -> None:
    flags: dict[str, FlagValue] = {
        "tensor_parallel_size": 2,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 8192,
        "max_model_len": 8000,
        "block_size": 32,
        "gpu_memory_utilization": 0.95,
        "kv_cache_dtype": "fp8",
        "num_gpu_blocks_override": 31_000,
        "enable_prefix_caching": False,
        "enable_chunked_prefill": False,
        "long_prefill_token_threshold": 512,
        "long_prefill_token_threshold_adaptive": True,
        "watermark": 0.01,
        "max_num_active_seqs": 48,
        "max_num_queued_reqs": 500,
        "max_num_queued_tokens": 100_000,
        "scheduling_policy": "priority",
        "async_scheduling": False,
    }
    assert set(flags) == set(ENGINE_FLAGS)
    data = plan.model_dump(mode="json")
    data["candidates"][0]["engine"] = flags
    recipe = load_recipe(write_shortlist(Plan.model_validate_json(json.dumps(data)), tmp_path)[0])
    assert recipe.vllm == flags
    config = export_vllm_config(recipe)
    parsed = vars(serve_parser().parse_args(vllm_arguments(config)))
    assert parsed == {"model": recipe.model, **flags}
    assert [type(parsed[name]) for name in flags] == [type(value) for value in flags.values()]
    assert "clients send `priority`" in config


def test_a_plan_that_counts_on_the_prefix_cache_writes_it_out(plan: Plan, tmp_path: Path) -> None:
    data = plan.model_dump(mode="json")
    del data["candidates"][0]["engine"]["enable_prefix_caching"]
    recipe = load_recipe(write_shortlist(Plan.model_validate_json(json.dumps(data)), tmp_path)[0])
    assert recipe.vllm["enable_prefix_caching"] is True
    assert "\nenable-prefix-caching: true\n" in export_vllm_config(recipe)


def test_a_switch_that_is_off_is_not_written_as_false(best: Path) -> None:
    config = export_vllm_config(load_recipe(best))
    assert "\nno-enable-prefix-caching: true\n" in config
    assert "false" not in [line.partition(": ")[2] for line in config.splitlines()]
    assert "counts on no prefix cache" in config


def test_a_block_count_is_exported_only_when_given(best: Path) -> None:
    assert "num-gpu-blocks-override" not in export_vllm_config(load_recipe(best))
    given = rewritten(best, "  block_size: 16\n", "  block_size: 16\n  num_gpu_blocks_override: 31000\n")
    assert "\nnum-gpu-blocks-override: 31000\n" in export_vllm_config(load_recipe(given))


def test_the_export_says_how_replicas_share_a_server(plan: Plan, tmp_path: Path) -> None:
    notes = export_vllm_config(load_recipe(write_shortlist(plan, tmp_path)[3]))
    assert "# 4 of these on every mi355x server, each with its own 2 GPUs" in notes
    assert "# the first on GPUs 0-1, the last on 6-7" in notes


def test_a_digest_that_looks_like_a_number_stays_text(best: Path) -> None:
    recipe = load_recipe(best)
    for digest in ("1" * 64, "12e" + "4" * 61, "0" * 64):
        path = rewritten(best, recipe.plan_sha256, digest)
        assert load_recipe(path).plan_sha256 == digest
        rewritten(best, digest, recipe.plan_sha256)


def test_odd_text_survives_the_file(best: Path) -> None:
    recipe = load_recipe(best).model_copy(update={"env": {"A": "yes", "B": "a: #'\"\\ é\t", "C": "007"}})
    config = yaml.safe_load(export_vllm_config(recipe))
    assert config["model"] == recipe.model
    text = best.read_text(encoding="utf-8")
    best.write_text(text.replace("env: {}", 'env: {A: "yes", B: "a: #\'\\"\\\\ é\\t", C: "007"}'), encoding="utf-8")
    assert load_recipe(best).env == recipe.env


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("replicas_per_server: 8", "replicas: 8", None, "replicas_per_server"),
        ("schema_version: 1", "schema_version: 2", 4, "schema_version"),
        ("max_num_seqs: 1024", "max-num-seqs: 1024", 13, "max-num-seqs"),
        ("tensor_parallel_size: 1", "tensor_parallel_size: half", None, "tensor_parallel_size"),
        ("tensor_parallel_size: 1\n", "tensor_parallel_size: 0\n", None, "tensor_parallel_size"),
        ('precision: "mxfp4"', "precision: 4", 6, "precision"),
        ("env: {}", "env: {A: 1}", 10, "env.A"),
        ("plan_sha256: ", "plan_sha256: x # ", None, "plan_sha256"),
        ("gpu_memory_utilization: 0.9", "gpu_memory_utilization: .nan", None, "nan"),
    ],
)
def test_a_broken_recipe_is_refused_with_file_and_key(
    old: str, new: str, line: int | None, said: str, best: Path
) -> None:
    path = rewritten(best, old, new)
    with pytest.raises(InputError) as refused:
        load_recipe(path)
    message = str(refused.value)
    assert message.startswith(f"{path}:{line}: " if line else str(path))
    assert said in message


def test_a_recipe_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"01\.yaml"):
        load_recipe(tmp_path / "01.yaml")


def test_another_engine_has_no_vllm_config(best: Path) -> None:
    other: dict[str, Any] = {"engine": "sglang"}
    with pytest.raises(InputError, match="sglang"):
        export_vllm_config(load_recipe(best).model_copy(update=other))
