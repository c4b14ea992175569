"""A plan with shared prefixes says what the prefix cache was worth, and how that is known."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from hardware_profiles.errors import InputError
from planner.bound import load_bound
from planner.feasibility import Configuration, check
from planner.plan_file import Plan
from planner.prefix_cache import most_cached_fraction
from planner.question import Question, make_question
from planner.report.html import render_html
from planner.report.names import candidate_names
from planner.search import bisect_load
from planner.simulation import simulate_fleet
from planner.summary import print_plan
from planner.write_up import make_plan
from simulator.engine import EngineConfig
from simulator.flags import FlagValue
from simulator.scenario import load_scenario


def write(folder: Path, text: str) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(text)
    return path


RAG_SCENARIO = """\
name: rag
model: gpt-oss-120b
hardware: [mi355x]
workloads:
  rag:
    traffic: {rate_rps: 40}
    isl: 4096
    osl: 32
    prefix: {documents: 20, tokens: 3072}
    slo: {ttft_ms: 1500, attainment: 0.95}
engine: {max_model_len: 8192}
search: {tensor_parallel_size: [1], max_num_seqs: [64, 96, 128], enable_prefix_caching: [true, false]}
as_of: 2026-12-01
"""


@pytest.fixture(scope="module")
def rag_plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return make_plan(load_scenario(write(tmp_path_factory.mktemp("rag"), RAG_SCENARIO)))


def test_shared_prefixes_make_prefix_caching_worth_more_than_nothing(rag_plan: Plan) -> None:
    best = rag_plan.best
    assert best is not None and best.engine is not None
    on = rag_plan.candidates[0]
    off = next(c for c in rag_plan.candidates if c.engine.get("enable_prefix_caching") is False)
    assert "enable_prefix_caching" not in best.engine and "enable_prefix_caching true" in best.label
    assert "enable_prefix_caching" not in on.engine
    assert on.load_per_server > 1.5 * off.load_per_server
    assert best.cached_fraction is not None and best.most_cached_fraction == 0.75
    assert 0.7 < best.cached_fraction <= 0.75  # replicas start with the documents in their caches
    assert best.workloads["rag"].cached_fraction == best.cached_fraction
    assert any("The plan counts on prefix caching, the baseline runs without it" in note for note in rag_plan.notes)
    page = render_html(rag_plan)
    assert "Prefix caching is on: replicas that had served these documents before found " in page
    assert "rag: 20 documents of 3072 tokens, zipf" in page


def test_the_summary_begins_with_what_the_prefix_cache_found(
    rag_plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rag_plan.best is not None and rag_plan.best.cached_fraction is not None
    found = f"Prefix caching is on: {rag_plan.best.cached_fraction:.1%} of the prompt tokens were found by replicas"
    assert rag_plan.notes[0].startswith(found)
    print_plan(rag_plan, tmp_path, Console(width=300))
    assert capsys.readouterr().out.splitlines()[1].startswith(f"- {found}")


def test_a_searched_flag_stands_in_every_label(rag_plan: Plan) -> None:
    for candidate in rag_plan.candidates:
        value = "false" if candidate.engine.get("enable_prefix_caching") is False else "true"
        assert candidate.label.endswith(f"enable_prefix_caching {value}")
    assert len({c.label for c in rag_plan.candidates}) == len(rag_plan.candidates)
    assert candidate_names(rag_plan) == tuple(c.label for c in rag_plan.candidates)


def test_shared_prefixes_without_a_cache_are_noted_with_the_way_to_see_its_worth(tmp_path: Path) -> None:
    text = RAG_SCENARIO.replace(", enable_prefix_caching: [true, false]", "").replace("[64, 96, 128]", "[128]")
    plan = make_plan(load_scenario(write(tmp_path, text)))
    assert plan.notes[0] == (
        "Workload rag shares prefixes, but prefix caching is off: no prompt is found again; search "
        "enable_prefix_caching: [true, false] to see what it is worth."
    )
    assert sum("prefix caching" in note for note in plan.notes) == 1


def test_a_plan_without_prefix_caching_says_so(small_plan: Plan) -> None:
    assert small_plan.best is not None and small_plan.best.cached_fraction is None
    assert "Prefix caching is off: every prompt is computed whole." in render_html(small_plan)


@pytest.mark.parametrize("flags", [{"enable_prefix_caching": True}, {"max_num_queued_reqs": 1}, {}])
def test_the_bound_is_never_below_what_a_run_carries(flags: dict[str, FlagValue], tmp_path: Path) -> None:
    """With answers of 503 a replica drops up to 5 % of the requests and still meets an attainment of 0.95.

    A run of a thousand requests can carry a little more than any number of hours could: a queue that grows slowly ends
    with it, and its lengths are drawn.
    """
    question = make_question(load_scenario(write(tmp_path, RAG_SCENARIO)))
    found = check(
        question.platforms[0], {"tensor_parallel_size": 1, "max_num_seqs": 128, "max_model_len": 8192} | flags
    )
    assert isinstance(found, Configuration)
    bound = load_bound(found, question.screen.model(found), question.mix)
    assert 0 < bisect_load(question.screen, found, start=0.0, ceiling=4 * bound, probes=5).load <= 1.05 * bound


def recorded_question(folder: Path) -> Question:
    """Forty requests a second, all of 4,096 tokens, of which 3,072 are one of twenty beginnings."""
    drawn = np.random.default_rng(1).integers(20, size=2000)
    lines = [
        {
            "timestamp": 25 * i,
            "input_length": 4096,
            "output_length": 32,
            "hash_ids": [10 * int(beginning) + k for k in range(6)] + [1000 + 2 * i, 1001 + 2 * i],
        }
        for i, beginning in enumerate(drawn)
    ]
    (folder / "calls.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    traffic = "traffic: {trace: calls.jsonl, format: mooncake}"
    own = "    isl: 4096\n    osl: 32\n    prefix: {documents: 20, tokens: 3072}\n"
    return make_question(
        load_scenario(write(folder, RAG_SCENARIO.replace("traffic: {rate_rps: 40}", traffic).replace(own, "")))
    )


def test_the_bound_counts_what_a_recording_finds_again(tmp_path: Path) -> None:
    question = recorded_question(tmp_path)
    loads = {}
    for caching in (True, False):
        flags: dict[str, FlagValue] = {"tensor_parallel_size": 1, "max_num_seqs": 128, "max_model_len": 8192}
        found = check(question.platforms[0], flags | {"enable_prefix_caching": caching})
        assert isinstance(found, Configuration)
        bound = load_bound(found, question.screen.model(found), question.mix)
        loads[caching] = bisect_load(question.screen, found, start=0.0, ceiling=4 * bound, probes=5).load
        assert 0 < loads[caching] <= 1.05 * bound
    assert loads[True] > 2 * loads[False]


def test_a_cache_of_every_document_finds_their_whole_blocks(tmp_path: Path) -> None:
    text = RAG_SCENARIO.replace("tokens: 3072", "tokens: 3080")
    question = make_question(load_scenario(write(tmp_path, text)))
    seed = question.replications[0]
    engine = EngineConfig(tensor_parallel_size=1, max_num_seqs=1, max_num_batched_tokens=1, max_model_len=8192)
    assert most_cached_fraction(question.mix, engine, seed=seed) is None
    on = replace(engine, enable_prefix_caching=True)
    assert most_cached_fraction(question.mix, on, seed=seed) == 0.75  # 192 blocks of 16, not 192.5
    assert most_cached_fraction(question.mix, replace(on, block_size=8), seed=seed) == 3080 / 4096


def test_simulate_says_what_was_found_and_who_was_turned_away(tmp_path: Path) -> None:
    flags = "engine: {enable_prefix_caching: true, max_num_queued_reqs: 1, max_model_len: 8192}"
    text = RAG_SCENARIO.replace("engine: {max_model_len: 8192}", flags)
    text = text.replace(", enable_prefix_caching: [true, false]", "")
    found = simulate_fleet(load_scenario(write(tmp_path, text)), 1, multiplier=2.0, replications=1)
    told = found.as_dict()
    row = told["workloads"]["rag"]
    assert 0.5 < told["cached_fraction"] == row["cached_fraction"] <= 0.75
    assert 0 < row["rejected"] < row["judged"]
    assert "enable_prefix_caching" not in told["engine"] and told["engine"]["max_num_queued_reqs"] == 1
    assert found.caching().startswith("Prefix caching is on: ")


def test_a_fleet_that_vllm_would_refuse_is_a_mistake_at_its_flag(tmp_path: Path) -> None:
    text = RAG_SCENARIO.replace("max_model_len: 8192", "max_model_len: 8192, long_prefill_token_threshold: 9999")
    with pytest.raises(InputError) as caught:
        simulate_fleet(load_scenario(write(tmp_path, text)), 1)
    assert (caught.value.line, caught.value.key) == (11, "engine.long_prefill_token_threshold")
    assert "9999 is above max_model_len 8192" in caught.value.problem
