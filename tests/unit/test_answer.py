"""A plan is the cheapest fleet that meets every target, with evidence on both sides of its size."""

import json
from pathlib import Path

import numpy as np
import pytest

from planner.capacity import capacity_of
from planner.feasibility import Configuration, check
from planner.plan_file import RECORDED_TIMES, Plan, load_plan, plan_sha256, write_plan
from planner.question import make_question
from planner.search import bisect_load, run_funnel
from planner.sizing import bracket, evidence_of
from planner.space import combinations
from planner.write_up import make_plan
from simulator.scenario import load_scenario
from tests.conftest import SMALL_SCENARIO


def quiet(stage: str, done: int, total: int) -> None:
    pass


def write(folder: Path, text: str) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(text)
    return path


def test_the_best_meets_every_target_and_one_server_fewer_does_not(small_plan: Plan) -> None:
    best = small_plan.best
    assert small_plan.status == "answered"
    assert best is not None
    for name, attained in best.attainment.items():
        assert attained.value >= best.workloads[name].target_attainment
        assert attained.low <= attained.value <= attained.high
        assert best.workloads[name].decided
    assert best.meets_with_one_more
    assert "saturated" in best.one_server_fewer or "miss" in best.one_server_fewer or "least" in best.one_server_fewer


def test_servers_by_reason_adds_up_and_the_bill_follows_the_calendar(small_plan: Plan) -> None:
    best = small_plan.best
    assert best is not None
    assert sum(best.servers_by_reason.values()) == best.servers == best.pools[0].servers
    per_server_hour = float(small_plan.price["price"]) * 8
    assert best.cost_usd_by_month["2027-01"] == pytest.approx(best.servers * per_server_hour * 744, abs=0.005)
    assert best.cost_usd_by_month["2027-02"] == pytest.approx(best.servers * per_server_hour * 672, abs=0.005)
    assert best.cost_usd_per_month == best.cost_usd_by_month["2027-01"]


def test_unit_costs_are_the_bill_over_the_tokens(small_plan: Plan) -> None:
    best = small_plan.best
    assert best is not None and best.usd_per_million_output_tokens is not None
    tokens_per_hour = (40 * 120 + 1_000_000 / (0.95 * 8 * 3600) * 2) * 3600
    hourly = best.servers * float(small_plan.price["price"]) * 8
    assert best.usd_per_million_output_tokens == pytest.approx(hourly / tokens_per_hour * 1e6, rel=0.05)
    assert best.usd_per_million_good_tokens is not None
    assert best.usd_per_million_good_tokens >= best.usd_per_million_output_tokens


def test_candidates_come_cheapest_first_and_the_baseline_shows_the_saving(small_plan: Plan) -> None:
    costs = [c.cost_usd_per_month for c in small_plan.candidates]
    assert costs == sorted(costs)
    assert small_plan.candidates[0].evidence == "confirmed"
    base, best = small_plan.baseline, small_plan.best
    assert base is not None and best is not None and base.cost_usd_per_month is not None
    assert base.engine["tensor_parallel_size"] == 8
    assert base.saving_usd_per_month == pytest.approx(base.cost_usd_per_month - best.cost_usd_per_month)


def test_combinations_that_vllm_refuses_are_rejections_with_the_constraint(small_plan: Plan) -> None:
    refused = [r for r in small_plan.rejections if r.constraint == "max_num_batched_tokens"]
    assert {(r.engine["max_num_seqs"], r.engine["max_num_batched_tokens"]) for r in refused} == {(256, 128)}
    spent = small_plan.screened
    assert spent.configurations == 12
    assert spent.feasible + len(small_plan.rejections) == spent.configurations
    assert spent.simulated <= spent.feasible


def test_equal_inputs_give_equal_plans_apart_from_recorded_times(small_plan: Plan, small_scenario: Path) -> None:
    again = make_plan(load_scenario(small_scenario))

    def timeless(plan: Plan) -> str:
        data = plan.model_dump(mode="json")
        for name in RECORDED_TIMES:
            data["screened"][name] = 0
        return json.dumps(data)

    assert timeless(again) == timeless(small_plan)
    assert plan_sha256(again) == plan_sha256(small_plan)


def test_a_plan_survives_its_file(small_plan: Plan, tmp_path: Path) -> None:
    write_plan(small_plan, tmp_path / "plan.json")
    assert load_plan(tmp_path) == small_plan


def test_an_impossible_target_is_an_answer_that_names_what_binds(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL_SCENARIO.replace("ttft_ms: 400", "ttft_ms: 1"))
    plan = make_plan(load_scenario(path))
    assert plan.status == "nothing_meets_targets"
    assert plan.best is None and not plan.shortlist
    miss = plan.nearest_miss
    assert miss is not None
    assert (miss.workload, miss.target, miss.limit) == ("chat", "ttft_ms", 1.0)
    assert miss.value is not None and miss.value > 1.0
    assert "more servers do not help" in miss.what_would_have_to_change[0]


def test_too_few_allowed_servers_is_an_answer_that_says_how_many_it_would_take(tmp_path: Path) -> None:
    text = SMALL_SCENARIO.replace("rate_rps: 40", "rate_rps: 4000").replace("max_servers: 16", "max_servers: 1")
    plan = make_plan(load_scenario(write(tmp_path, text)))
    assert plan.status == "nothing_meets_targets"
    assert plan.nearest_miss is not None
    assert "raise fleet.max_servers" in plan.nearest_miss.what_would_have_to_change[0]


def test_weights_larger_than_the_memory_are_rejections_not_errors(tmp_path: Path) -> None:
    text = SMALL_SCENARIO.replace("{max_model_len: 8192}", "{max_model_len: 8192, gpu_memory_utilization: 0.1}")
    text = text.replace("tensor_parallel_size: [1, 8]", "tensor_parallel_size: [1]")
    plan = make_plan(load_scenario(write(tmp_path, text)))
    assert plan.status == "nothing_meets_targets"
    assert plan.nearest_miss is not None and plan.nearest_miss.target == "memory"
    assert {r.constraint for r in plan.rejections} == {"memory", "max_num_batched_tokens"}


def test_a_cache_smaller_than_one_request_is_a_rejection(tmp_path: Path) -> None:
    text = SMALL_SCENARIO.replace("{max_model_len: 8192}", "{max_model_len: 8192, num_gpu_blocks_override: 100}")
    plan = make_plan(load_scenario(write(tmp_path, text)))
    assert plan.status == "nothing_meets_targets"
    assert "kv_cache" in {r.constraint for r in plan.rejections}


def test_the_funnel_finds_what_exhaustive_bisection_finds(small_scenario: Path) -> None:
    question = make_question(load_scenario(small_scenario))
    platform = question.platforms[0]
    found = [check(platform, flags) for flags in combinations(question.loaded.scenario, platform)]
    feasible = [c for c in found if isinstance(c, Configuration)]
    funnel = run_funnel(question.screen, feasible, routing=question.routing, progress=quiet)
    every = {
        c: bisect_load(
            question.screen, c, start=0.0, ceiling=100.0, probes=6, whole_server=True, routing=question.routing
        ).load
        for c in feasible
    }
    top = max(every.values())
    assert funnel.ranked[0].load == pytest.approx(top, rel=0.04)
    assert every[funnel.ranked[0].configuration] >= 0.96 * top


def test_more_servers_carry_at_least_as_much_and_the_plan_fits_its_own_capacity(small_scenario: Path) -> None:
    loaded = load_scenario(small_scenario)
    one, two = capacity_of(loaded, 1), capacity_of(loaded, 2)
    assert 0 < one.multiplier < two.multiplier
    assert two.multiplier > 1.7 * one.multiplier
    assert one.certified and one.binding
    for name in one.attainment:
        assert one.attainment[name] >= 0.95 or name == "labels"


def test_the_bracket_finds_the_same_size_from_any_guess(small_scenario: Path) -> None:
    question = make_question(load_scenario(small_scenario))
    platform = question.platforms[0]
    flags = {"tensor_parallel_size": 8, "max_num_seqs": 256, "max_num_batched_tokens": 2048, "max_model_len": 8192}
    configuration = check(platform, flags)
    assert isinstance(configuration, Configuration)
    sizes = []
    for guess in (1, 3, 9, 16):
        sized = bracket(
            question.screen,
            configuration,
            load=6.0,
            guess=guess,
            limit=16,
            seeds=question.replications[:2],
            routing=question.routing,
            stay=None,
            progress=lambda servers: None,
        )
        assert hasattr(sized, "meets") and sized.meets
        sizes.append(sized.servers)
    assert len(set(sizes)) == 1


def test_attainment_intervals_come_from_replications(small_scenario: Path) -> None:
    question = make_question(load_scenario(small_scenario))
    configuration = check(question.platforms[0], {"tensor_parallel_size": 1, "max_model_len": 8192})
    assert isinstance(configuration, Configuration)
    evidence = evidence_of(
        question.screen,
        configuration,
        servers=1,
        load=2.0,
        seeds=question.replications[:4],
        routing=question.routing,
        certify=False,
    )
    values = [s.workload("chat").attainment for s in evidence.scores]
    assert evidence.attainment["chat"].value == pytest.approx(float(np.mean(values)))
    assert evidence.attainment["chat"].low <= min(1.0, float(np.mean(values)))


def test_a_configuration_outside_the_sample_is_found_when_the_sample_meets_nothing(small_scenario: Path) -> None:
    question = make_question(load_scenario(small_scenario))
    platform = question.platforms[0]

    def of(seqs: int, tokens: int) -> Configuration:
        flags = {"tensor_parallel_size": 1, "max_num_seqs": seqs, "max_num_batched_tokens": tokens}
        found = check(platform, {**flags, "max_model_len": 8192})
        assert isinstance(found, Configuration)
        return found

    hopeless = [of(1, tokens) for tokens in range(8, 8 + 64)]  # one token of prompt per step is far too slow
    feasible = [*hopeless[:3], of(256, 8192), *hopeless[3:]]
    funnel = run_funnel(question.screen, feasible, routing=question.routing, progress=quiet)
    assert funnel.known_load > 0
    assert funnel.ranked[0].configuration.engine.max_num_seqs == 256
