"""What cannot run is a rejection with the flag that rules it out and a sentence with the numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hardware_profiles.model import load_model_card
from hardware_profiles.node import load_node
from hardware_profiles.profile import load_profile
from planner.feasibility import Configuration, Platform, Rejection, check
from planner.search import simplicity
from simulator.engine import ENGINE_FLAGS, EngineConfig, engine_with_defaults, flag_value
from simulator.flags import EngineFlags, FlagValue, Search, flag_text
from simulator.scenario import load_scenario

PLATFORM = Platform(
    node=load_node("mi355x"),
    card=load_model_card("gpt-oss-120b"),
    precision="mxfp4",
    profile=load_profile("mi355x/gpt-oss-120b-mxfp4-vllm"),
)
SIZES: dict[str, FlagValue] = {
    "tensor_parallel_size": 1,
    "max_num_seqs": 128,
    "max_num_batched_tokens": 4096,
    "max_model_len": 8192,
}


@pytest.mark.parametrize(
    ("flags", "constraint", "words"),
    [
        ({"max_num_batched_tokens": 100}, "max_num_batched_tokens", ["100", "max_num_seqs 128"]),
        ({"max_num_active_seqs": 129}, "max_num_active_seqs", ["129", "max_num_seqs 128"]),
        (
            {"enable_chunked_prefill": False},
            "enable_chunked_prefill",
            ["max_num_batched_tokens 4096", "max_model_len 8192"],
        ),
        ({"long_prefill_token_threshold": 8193}, "long_prefill_token_threshold", ["8193", "max_model_len 8192"]),
    ],
)
def test_what_vllm_refuses_is_a_rejection_that_names_the_flag(
    flags: dict[str, FlagValue], constraint: str, words: list[str]
) -> None:
    """vLLM 0.32 `config/scheduler.py: SchedulerConfig.verify_max_model_len`."""
    found = check(PLATFORM, SIZES | flags)
    assert isinstance(found, Rejection)
    assert found.constraint == constraint
    assert all(word in found.detail for word in words) and "vLLM refuses" in found.detail
    assert found.engine == SIZES | flags


@pytest.mark.parametrize(
    "flags",
    [
        {"max_num_active_seqs": 128},
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 8192},
        {"long_prefill_token_threshold": 8192},
        {"max_num_queued_reqs": 1},
    ],
)
def test_the_last_value_that_vllm_takes_runs(flags: dict[str, FlagValue]) -> None:
    assert isinstance(check(PLATFORM, SIZES | flags), Configuration)


def test_without_chunked_prefill_vllms_default_step_holds_the_longest_prompt() -> None:
    """vLLM 0.32 `EngineArgs._set_default_max_num_seqs_and_batched_tokens_args`."""

    def tokens(**flags: FlagValue) -> int:
        engine = engine_with_defaults(flags, node=PLATFORM.node, card=PLATFORM.card, tensor_parallel_size=1)
        return engine.max_num_batched_tokens

    assert tokens() == tokens(enable_chunked_prefill=False, max_model_len=8192) == 16_384
    assert tokens(enable_chunked_prefill=False) == PLATFORM.card.max_model_len
    assert tokens(enable_chunked_prefill=False, max_num_batched_tokens=2048) == 2048


def test_a_label_shows_what_differs_from_a_plans_defaults_as_a_scenario_spells_it() -> None:
    plain = check(PLATFORM, SIZES)
    changed = check(PLATFORM, SIZES | {"enable_prefix_caching": True, "watermark": 0.01, "async_scheduling": False})
    assert isinstance(plain, Configuration) and isinstance(changed, Configuration)
    assert plain.label == "8 × TP1, max_num_seqs 128, max_num_batched_tokens 4096"
    rest = changed.label.removeprefix(plain.label)
    assert rest == ", watermark 0.01, async_scheduling false, enable_prefix_caching true"
    same = check(PLATFORM, SIZES | {"enable_prefix_caching": False, "scheduling_policy": "fcfs"})
    assert isinstance(same, Configuration) and same.label == plain.label


def test_flags_list_what_differs_from_vllm_and_values_make_the_same_replica_again() -> None:
    engine = EngineConfig(tensor_parallel_size=1, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=128)
    assert engine.flags()["enable_prefix_caching"] is False
    assert "async_scheduling" not in engine.flags()
    assert flag_value(engine.flags(), "async_scheduling") is True
    assert flag_value(engine.flags(), "max_num_queued_reqs") is None
    for other in (engine, replace(engine, enable_prefix_caching=True, async_scheduling=False, max_num_queued_reqs=9)):
        again = engine_with_defaults(other.values(), node=PLATFORM.node, card=PLATFORM.card, tensor_parallel_size=4)
        assert again == other


def test_vllms_defaults_count_as_simpler() -> None:
    def simple(**flags: FlagValue) -> tuple[int, ...]:
        found = check(PLATFORM, SIZES | flags)
        assert isinstance(found, Configuration)
        return simplicity(found)

    assert simple(enable_prefix_caching=True) < simple() < simple(watermark=0.01)


def test_every_flag_of_a_scenario_is_one_of_the_engine_and_a_switch_stays_a_switch(tmp_path: Path) -> None:
    assert set(ENGINE_FLAGS) < set(EngineConfig.__dataclass_fields__)
    assert tuple(EngineFlags.model_fields) == tuple(Search.model_fields) == ENGINE_FLAGS
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: flags\nmodel: gpt-oss-120b\nhardware: [mi355x]\n"
        "workloads: {chat: {traffic: {rate_rps: 4}, isl: 256, osl: 256, slo: {ttft_ms: 500}}}\n"
        "baseline: {enable_chunked_prefill: true, watermark: 0}\n"
        "engine: {async_scheduling: false, max_num_queued_reqs: 1}\n"
        "search: {enable_prefix_caching: [true, false], scheduling_policy: [fcfs, priority]}\n",
        encoding="utf-8",
    )
    scenario = load_scenario(path).scenario
    assert scenario.baseline_flags() == {
        "enable_chunked_prefill": True,
        "watermark": 0,
        "async_scheduling": False,
        "max_num_queued_reqs": 1,
    }
    assert scenario.baseline_flags()["enable_chunked_prefill"] is True
    assert scenario.engine.given()["async_scheduling"] is False
    assert type(scenario.engine.given()["max_num_queued_reqs"]) is int
    assert scenario.search is not None
    assert scenario.search.lists()["enable_prefix_caching"] == (True, False)
    assert [flag_text(value) for value in (True, False, 1, 0.5, "auto")] == ["true", "false", "1", "0.5", "auto"]
