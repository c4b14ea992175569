"""A probability carries its interval, and says what of the spread is the profile's and what is the traffic's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

import planner.uncertainty
from planner.feasibility import Configuration, check
from planner.plan_file import Plan
from planner.question import DRAWS, Question, make_question
from planner.report.html import render_html
from planner.summary import answer_sentence, print_plan, uncertainty_sentence
from planner.uncertainty import Chance, Uncertainty, share_of_profile, uncertainty_of
from planner.write_up import make_plan
from simulator.scenario import load_scenario
from simulator.steady import EndToEnd

STAY = EndToEnd(mean_s=1.0, p95_s=2.0, longest_s=4.0)


def configuration_of(question: Question, **profile_parts: object) -> Configuration:
    flags = {"tensor_parallel_size": 8, "max_num_seqs": 256, "max_num_batched_tokens": 2048, "max_model_len": 8192}
    platform = question.platforms[0]
    profile = replace(platform.profile, **profile_parts)  # type: ignore[arg-type]
    found = check(replace(platform, profile=profile), flags)
    assert isinstance(found, Configuration)
    return found


def found_for(
    question: Question,
    configuration: Configuration,
    *,
    load: float = 1.0,
    streams: Sequence[np.random.SeedSequence],
) -> Uncertainty:
    return uncertainty_of(
        question.screen,
        configuration,
        servers=1,
        load=load,
        routing=question.routing,
        guess=STAY,
        binding=("chat", "tpot_ms", 0.020),
        streams=streams,
        profile_seed=question.profile_seed,
        progress=lambda done: None,
    )


@pytest.mark.parametrize(
    ("met", "runs", "low", "high"),
    # https://en.wikipedia.org/wiki/Binomial_proportion_confidence_interval; 1 - 0.025^(1/10) and its mirror by hand
    [(0, 10, 0.0, 0.3084971), (10, 10, 0.6915029, 1.0), (5, 10, 0.1870860, 0.8129140)],
)
def test_the_interval_of_a_probability_is_clopper_and_pearsons(met: int, runs: int, low: float, high: float) -> None:
    interval = Chance(met=met, runs=runs).interval
    assert (interval.value, interval.low, interval.high) == pytest.approx((met / runs, low, high), abs=1e-6)


@pytest.mark.parametrize("probability", [0.02, 0.3, 0.5, 0.9, 0.99])
def test_the_interval_covers_the_true_probability_at_least_as_often_as_it_says(probability: float) -> None:
    covered = 0.0
    for met in range(DRAWS + 1):
        interval = Chance(met=met, runs=DRAWS).interval
        if interval.low <= probability <= interval.high:
            covered += float(stats.binom.pmf(met, DRAWS, probability))
    assert covered >= 0.95


def logs(sd: float, seed: int, count: int = DRAWS) -> np.ndarray:
    return sd * np.random.default_rng(seed).standard_normal(count)


@pytest.mark.parametrize(("profile_sd", "seeds_sd"), [(0.1, 0.1), (0.2, 0.1), (0.05, 0.2)])
def test_the_shares_are_those_of_the_two_variances(profile_sd: float, seeds_sd: float) -> None:
    true = profile_sd**2 / (profile_sd**2 + seeds_sd**2)
    inside = 0
    for seed in range(100):
        seeds = logs(seeds_sd, 2 * seed)
        share = share_of_profile(np.exp(seeds).tolist(), np.exp(seeds + logs(profile_sd, 2 * seed + 1)).tolist())
        assert share is not None
        inside += share.low <= true <= share.high
    assert inside >= 88  # 95 of 100 on average; fewer than 89 in 1 of 100 such tests


def test_a_profile_known_exactly_leaves_all_the_spread_to_seeds() -> None:
    values = np.exp(logs(0.2, 1)).tolist()
    share = share_of_profile(values, values)
    assert share is not None
    assert (share.value, share.low, share.high) == (0.0, 0.0, 0.0)


def test_traffic_that_never_differs_leaves_all_the_spread_to_the_profile() -> None:
    share = share_of_profile([0.03] * DRAWS, (0.03 * np.exp(logs(0.2, 1))).tolist())
    assert share is not None
    assert (share.value, share.low, share.high) == pytest.approx((1.0, 1.0, 1.0))


def test_runs_that_are_all_alike_have_no_shares() -> None:
    assert share_of_profile([0.03] * 8, [0.03] * 8) is None
    assert share_of_profile([0.03] * 8, [float("inf")] * 8) is None
    assert share_of_profile([0.03, float("nan")] * 2, [0.02, 0.05] * 2) is None


def test_a_value_without_end_counts_as_the_longest_that_ended() -> None:
    exact, drawn = [0.02, 0.03, 0.02, 0.03], [0.04, 0.02, 0.06, 0.05]
    longest = share_of_profile([*exact, 0.03], [*drawn, 0.06])
    assert share_of_profile([*exact, 0.03], [*drawn, float("inf")]) == longest


def test_without_model_error_every_draw_is_the_exact_profile(small_scenario: Path, tmp_path: Path) -> None:
    question = make_question(load_scenario(small_scenario))
    exact = configuration_of(question, residual_sd=0.0, path=tmp_path / "no-covariance.yaml")
    found = found_for(question, exact, streams=question.draw_streams[:8])
    assert not found.coefficients_drawn
    assert found.drawn_s == found.exact_s
    assert found.both == found.seeds_alone
    assert found.profile_share is not None and found.profile_share.value == 0.0


def test_one_stream_played_again_and_again_leaves_all_to_the_profile(small_scenario: Path) -> None:
    question = make_question(load_scenario(small_scenario))
    found = found_for(question, configuration_of(question), streams=question.draw_streams[:1] * 8)
    assert found.coefficients_drawn
    assert len(set(found.exact_s)) == 1 < len(set(found.drawn_s))
    assert found.profile_share is not None and found.profile_share.value == pytest.approx(1.0)


def test_a_draw_costs_what_it_says_and_finalists_see_the_same_streams(small_scenario: Path) -> None:
    question = make_question(load_scenario(small_scenario))
    configuration = configuration_of(question)
    first = found_for(question, configuration, streams=question.draw_streams[:4])
    assert question.screen.spent.simulations == 8
    assert found_for(question, configuration, streams=question.draw_streams[:4]) == first
    more = found_for(question, configuration, streams=question.draw_streams[:6])
    assert more.drawn_s[:4] == first.drawn_s
    assert first.window_s > 0


def test_the_less_is_known_of_the_machine_the_nearer_to_the_middle_is_the_probability(small_scenario: Path) -> None:
    question = make_question(load_scenario(small_scenario))
    streams = question.draw_streams[:24]
    met = {
        scale: [
            found_for(question, configuration_of(question, interval_scale=scale), load=load, streams=streams).both.met
            for load in EASY_AND_TOO_MUCH
        ]
        for scale in (0.01, 1.0, 6.0)
    }
    easy, too_much = zip(*met.values(), strict=True)
    assert (easy[0], too_much[0]) == (24, 0)
    assert easy[0] >= easy[1] > easy[2] >= 12
    assert too_much[0] <= too_much[1] < too_much[2] <= 12


def test_a_plan_states_its_probability_with_interval_and_shares(small_plan: Plan) -> None:
    best = small_plan.best
    assert best is not None and best.uncertainty is not None
    found = best.uncertainty
    assert found.profile_error == "coefficients and residual"
    for chance in (found.probability, found.probability_seeds_alone):
        assert chance.runs == DRAWS == best.probability_draws
        assert chance.value == chance.met / chance.runs
        assert 0 <= chance.low <= chance.value <= chance.high <= 1
    assert found.probability.value == best.probability_of_meeting_targets
    assert best.binding.startswith(f"{found.workload} {found.target}: ")
    assert found.profile_share is not None and found.seeds_share is not None
    assert found.profile_share.value + found.seeds_share == pytest.approx(1.0)
    for spread in (found.with_drawn_profiles, found.with_exact_profile):
        assert spread.p10_ms is not None and spread.p50_ms is not None and spread.p90_ms is not None
        assert spread.p10_ms <= spread.p50_ms <= spread.p90_ms
    assert found.with_exact_profile.p50_ms is not None and found.with_exact_profile.p50_ms <= found.limit_ms
    confirmed = small_plan.candidates[0]
    assert confirmed.probability_of_meeting_targets == found.probability.value
    assert {c.probability_of_meeting_targets for c in small_plan.candidates if c.evidence == "rank run"} <= {None}


def test_terminal_and_report_say_it_in_one_sentence_each(
    small_plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads(small_plan.model_dump_json())
    data["best"]["uncertainty"] |= {
        "probability": {"value": 0.75, "low": 0.626, "high": 0.85, "met": 48, "runs": 64},
        "probability_seeds_alone": {"value": 0.875, "low": 0.768, "high": 0.944, "met": 56, "runs": 64},
        "workload": "chat",
        "target": "tpot_ms",
        "profile_share": {"value": 0.93, "low": 0.86, "high": 0.97},
        "seeds_share": 0.07,
    }
    plan = Plan.model_validate_json(json.dumps(data))
    assert plan.best is not None
    said = uncertainty_sentence(plan.best)
    assert said == (
        "Probability 0.75 (95 %: 0.63 to 0.85), from 64 draws of profile and traffic; with the profile taken as exact "
        "0.88 (95 %: 0.77 to 0.94). Of the variance of chat tpot_ms, 93% is the profile's uncertainty and 7% which "
        "requests come when."
    )
    print_plan(plan, tmp_path, Console(width=1000))
    printed = capsys.readouterr().out
    assert said in printed and printed.startswith(answer_sentence(plan))
    page = render_html(plan).replace("\u00a0", " ")
    for shown in (
        "Clopper and Pearson",
        ">93 %</data></b> is the profile&#x27;s uncertainty",
        "which requests come when",
    ):
        assert shown in page


def test_a_plan_of_an_older_version_says_nothing_of_it(small_plan: Plan) -> None:
    data = json.loads(small_plan.model_dump_json())
    del data["best"]["uncertainty"]
    old = Plan.model_validate_json(json.dumps(data))
    assert old.best is not None and uncertainty_sentence(old.best) == ""
    assert "Clopper" not in render_html(old)


def test_a_profile_without_a_covariance_is_named_before_the_numbers(
    small_scenario: Path, small_plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner.uncertainty, "load_covariance", lambda profile: None)
    plan = make_plan(load_scenario(small_scenario))
    assert plan.best is not None and plan.best.uncertainty is not None
    assert plan.best.uncertainty.profile_error == "residual only"
    said = [note for note in plan.notes if "has no covariance file" in note]
    assert len(said) == 1 and "surer than it may be" in said[0] and plan.profile is not None and plan.profile in said[0]
    assert not any("covariance" in note for note in small_plan.notes)


EASY_AND_TOO_MUCH = (1.0, 2.0)
"""Loads at which the exact profile always meets, and never."""
