"""Requests longer than a profile was measured with are told of, by the lengths that are drawn and not by their mean."""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from planner.extrapolation import LENGTHS, host_time_missing, long_requests
from planner.feasibility import Configuration, check
from planner.plan_file import Plan
from planner.question import make_question
from planner.write_up import make_plan
from simulator.lengths import Lengths, LognormalLengths
from simulator.mix import Mix
from simulator.scenario import load_scenario
from simulator.slo import Slo
from simulator.traces import Trace
from simulator.traffic import RateTraffic, TraceTraffic, Workload
from tests.conftest import SMALL_SCENARIO

MEASURED = 9216


def sending(rate_rps: float, isl: Lengths, osl: Lengths = 200) -> Workload:
    return Workload(traffic=RateTraffic(rate_rps=rate_rps), isl=isl, osl=osl, slo=Slo(ttft_ms=500))


def told(*, traces: dict[str, Trace] | None = None, max_model_len: int = 131_072, **workloads: Workload) -> str | None:
    mix = Mix(workloads=workloads, traces=traces or {}, max_model_len=max_model_len)
    return long_requests(mix, MEASURED, load=1.2, seed=np.random.SeedSequence(5))


def told_of_recorded(prompt_tokens: list[int]) -> str | None:
    """The same for a trace of such prompts, one a second, each with an answer of 50 tokens."""
    trace = Trace(
        path=Path("t.csv"),
        format="csv",
        sha256="",
        arrival_s=np.arange(float(len(prompt_tokens))),
        prompt_tokens=np.array(prompt_tokens),
        output_tokens=np.full(len(prompt_tokens), 50),
        rows_read=len(prompt_tokens),
        dropped={},
        out_of_order=0,
    )
    chat = Workload(traffic=TraceTraffic(trace="t.csv"), slo=Slo(ttft_ms=500))
    return told(chat=chat, traces={"chat": trace})


def shares_of(note: str | None) -> list[float]:
    """Every share of the sentence: of the requests, of each workload named, of the prompt tokens."""
    assert note is not None
    return [float(number) / 100 for number in re.findall(r"([\d.]+) %", note)]


def test_each_workload_weighs_what_it_sends() -> None:
    note = told(chat=sending(30, 1000), docs=sending(10, 9100))
    assert note is not None
    assert note.startswith("Extrapolated: 25 % of the requests (100 % of docs), with 75.2 % of the prompt tokens, are ")
    assert "longer than the 9,216 tokens" in note


def test_a_request_as_long_as_the_longest_measured_is_not_beyond_it() -> None:
    assert told(docs=sending(1, 9016, 200)) is None
    assert shares_of(told(docs=sending(1, 9017, 200))) == [1.0, 1.0]


@pytest.mark.parametrize("cv", [0.5, 0.8, 1.5])
def test_a_tail_is_told_of_though_the_mean_is_well_within_what_was_measured(cv: float) -> None:
    mean, spread = 5000.0, np.sqrt(np.log(1 + cv**2))
    limit = np.log((MEASURED - 200) / mean)
    of_requests = stats.norm.sf(limit / spread + spread / 2)
    of_tokens = stats.norm.sf(limit / spread - spread / 2)  # a lognormal's share of its own mean
    requests, tokens = shares_of(told(chat=sending(40, LognormalLengths(mean=mean, cv=cv))))
    four_sd = 4 * np.sqrt(of_requests * (1 - of_requests) / LENGTHS)
    assert requests == pytest.approx(of_requests, abs=four_sd)
    assert tokens == pytest.approx(of_tokens, rel=0.1)


def test_requests_are_told_of_as_they_are_cut_to_the_context() -> None:
    chat = sending(40, LognormalLengths(mean=5000, cv=1.5))
    assert told(chat=chat, max_model_len=MEASURED) is None
    assert told(chat=chat, max_model_len=MEASURED + 1) is not None


def test_next_to_none_are_not_told_of() -> None:
    assert told_of_recorded([4_000] * 997 + [9_300] * 3) is None  # 0.3 % of the requests, 0.7 % of the prompt tokens


def test_a_workload_that_is_long_throughout_is_told_of_however_rarely_it_sends() -> None:
    note = told(chat=sending(10_000, 300), books=sending(0.01, 30_000))
    assert note is not None and "100 % of books" in note and "0.0001 % of the requests" in note


def test_a_few_very_long_prompts_are_told_of_by_their_share_of_the_tokens() -> None:
    requests, tokens = shares_of(told_of_recorded([100] * 995 + [60_000] * 5))
    assert requests == pytest.approx(0.005, rel=0.05)
    assert tokens == pytest.approx(300_000 / 399_500, rel=0.05)


def test_a_plan_carries_the_sentence_where_there_is_a_tail_and_only_there(small_plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "tail.yaml"
    text = SMALL_SCENARIO.replace("{mean: 400, cv: 0.5}", "{mean: 4000, cv: 1.0}").replace(
        "rate_rps: 40", "rate_rps: 4"
    )
    path.write_text(
        text.replace("max_model_len: 8192", "max_model_len: 32768").replace("ttft_ms: 400", "ttft_ms: 4000")
    )
    plan = make_plan(load_scenario(path))
    assert plan.best is not None
    assert [note for note in plan.notes if "of the requests (" in note and "% of chat)" in note]
    assert not [note for note in small_plan.notes if "of the requests" in note]


def test_a_profile_without_host_time_says_what_it_cannot_tell_of_synchronous_steps(small_scenario: Path) -> None:
    question = make_question(load_scenario(small_scenario))
    on, off = (
        check(question.platforms[0], {"tensor_parallel_size": 1, "async_scheduling": value}) for value in (True, False)
    )
    assert isinstance(on, Configuration) and isinstance(off, Configuration)
    assert host_time_missing(on) is None
    told = host_time_missing(off)
    assert told is not None and "knows no host time" in told
