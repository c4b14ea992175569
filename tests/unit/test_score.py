"""Scores of hand-made logs, to the last digit: who is good, who is counted, what a percentile and a stall are.

Times are dyadic fractions (0.5, 0.25, …) wherever a limit is met exactly, so that no rounding decides a test.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isnan, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.log import PHASES, STATUSES, ReplicaTimes, RequestLog
from simulator.score import Score, Targets, WorkloadScore, required_requests, score, targets_of
from simulator.slo import Metric, PercentileTarget, Slo
from simulator.tables import ITL_EDGES_S
from simulator.traffic import Batch, RateTraffic, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request of a log; times in seconds."""

    arrival_s: float = 1.0
    ttft_s: float = 0.25
    e2e_s: float = 1.0
    tokens: int = 4
    status: str = "finished"
    phase: str = "window"
    workload: int = 0
    itl_max_s: float = nan
    preemptions: int = 0


def log_of(
    rows: Sequence[Row],
    *,
    names: tuple[str, ...] = ("chat",),
    window_s: tuple[float, float] = (0.0, 8.0),
    gaps_s: Sequence[Sequence[float]] | None = None,
    replica_times: ReplicaTimes | None = None,
    window_complete: bool = True,
) -> RequestLog:
    counts = np.zeros((len(names), len(ITL_EDGES_S) + 1), dtype=np.int64)
    for index, gaps in enumerate(gaps_s or ()):
        np.add.at(counts[index], np.searchsorted(ITL_EDGES_S, np.asarray(gaps), side="right"), 1)
    arrival_s = np.array([row.arrival_s for row in rows])
    return RequestLog(
        workload_names=names,
        workload=np.array([row.workload for row in rows], dtype=np.int64),
        phase=np.array([PHASES.index(row.phase) for row in rows], dtype=np.int64),
        arrival_s=arrival_s,
        sent_s=arrival_s,
        scheduled_s=arrival_s,
        first_token_s=arrival_s + np.array([row.ttft_s for row in rows]),
        finish_s=arrival_s + np.array([row.e2e_s for row in rows]),
        prompt_tokens=np.full(len(rows), 16, dtype=np.int64),
        cached_tokens=np.zeros(len(rows), dtype=np.int64),
        output_tokens=np.array([row.tokens for row in rows], dtype=np.int64),
        status=np.array([STATUSES.index(row.status) for row in rows], dtype=np.int64),
        replica=np.zeros(len(rows), dtype=np.int64),
        preemptions=np.array([row.preemptions for row in rows], dtype=np.int64),
        itl_max_s=np.array([row.itl_max_s for row in rows]),
        itl_edges_s=ITL_EDGES_S,
        itl_counts=counts,
        end_s=window_s[1],
        window_s=window_s,
        window_complete=window_complete,
        replica_times=replica_times,
    )


def targets(
    *,
    attainment: float = 0.75,
    percentiles: tuple[PercentileTarget, ...] = (),
    deadline_s: float | None = None,
    **per_request_s: float,
) -> Targets:
    metrics: dict[str, Metric] = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2e"}
    limits = {metrics[name]: limit_s for name, limit_s in per_request_s.items()}
    return Targets(per_request_s=limits, percentiles=percentiles, attainment=attainment, deadline_s=deadline_s)


def chat(log: RequestLog, promised: Targets) -> WorkloadScore:
    return score(log, {"chat": promised}).workload("chat")


def finite(result: Score) -> bool:
    totals = [result.goodput_tokens_per_s, result.output_tokens_per_s, result.offered_rps, result.in_flight_mean]
    return bool(np.isfinite(totals).all())


# ---- Good, attainment, goodput ----


def test_a_request_is_good_when_it_met_every_target() -> None:
    rows = [
        Row(tokens=5, ttft_s=0.25, e2e_s=1.25),  # TPOT 0.25
        Row(tokens=5, ttft_s=0.75, e2e_s=1.25),  # first token late
        Row(tokens=5, ttft_s=0.25, e2e_s=2.25),  # TPOT 0.5, too slow
        Row(tokens=33, ttft_s=0.25, e2e_s=8.25),  # 8 s in all, too long
    ]
    result = chat(log_of(rows), targets(ttft=0.5, tpot=0.25, e2e=4.0))
    assert (result.judged, result.finished, result.good) == (4, 4, 1)
    assert result.attainment == 0.25
    assert result.output_tokens_per_s == 48 / 8.0
    assert result.goodput_tokens_per_s == 5 / 8.0
    assert not result.meets


def test_a_limit_met_exactly_is_met() -> None:
    row = Row(tokens=5, ttft_s=0.5, e2e_s=1.5)
    assert chat(log_of([row]), targets(ttft=0.5, tpot=0.25, e2e=1.5)).good == 1
    assert chat(log_of([row]), targets(ttft=np.nextafter(0.5, 0.0))).good == 0
    assert chat(log_of([row]), targets(tpot=np.nextafter(0.25, 0.0))).good == 0
    assert chat(log_of([row]), targets(e2e=np.nextafter(1.5, 0.0))).good == 0


def test_tpot_is_the_time_after_the_first_token_over_one_token_less() -> None:
    result = chat(log_of([Row(tokens=5, ttft_s=0.5, e2e_s=2.5), Row(tokens=3, ttft_s=0.5, e2e_s=1.0)]), targets(e2e=9))
    assert result.means_s["tpot"] == (0.5 + 0.25) / 2
    assert result.percentiles_s["tpot"] == (0.25, 0.5, 0.5, 0.5)


def test_attainment_equal_to_the_target_meets_it() -> None:
    rows = [Row(), Row(), Row(), Row(ttft_s=0.75)]
    assert chat(log_of(rows), targets(ttft=0.5, attainment=0.75)).meets
    assert not chat(log_of(rows), targets(ttft=0.5, attainment=0.76)).meets


def test_goodput_counts_output_tokens_of_good_requests_and_no_prompt_tokens() -> None:
    rows = [Row(tokens=100, ttft_s=0.25), Row(tokens=20, ttft_s=2.0)]
    result = score(log_of(rows, window_s=(0.0, 4.0)), {"chat": targets(ttft=0.5)})
    assert result.goodput_tokens_per_s == 25.0
    assert result.output_tokens_per_s == 30.0
    assert result.offered_rps == 0.5


def test_the_totals_are_the_sums_over_workloads() -> None:
    rows = [Row(tokens=8), Row(tokens=16, workload=1), Row(tokens=24, workload=1, ttft_s=3.0)]
    result = score(log_of(rows, names=("chat", "rag")), {"chat": targets(ttft=0.5), "rag": targets(ttft=0.5)})
    assert [w.goodput_tokens_per_s for w in result.workloads] == [1.0, 2.0]
    assert result.goodput_tokens_per_s == 3.0
    assert result.output_tokens_per_s == 6.0
    assert [w.good for w in result.workloads] == [1, 1]
    assert not result.meets  # chat does, rag does not
    assert [w.meets for w in result.workloads] == [True, False]


# ---- One-token answers: https://github.com/openshift-psap/llm-load-test/pull/54, vllm-project/vllm issue 13412 ----


def test_a_one_token_answer_is_judged_by_the_targets_that_apply() -> None:
    rows = [Row(tokens=1, ttft_s=0.25, e2e_s=0.25), Row(tokens=1, ttft_s=0.75, e2e_s=0.75)]
    result = chat(log_of(rows), targets(ttft=0.5, tpot=0.04))
    assert result.good == 1
    assert result.goodput_tokens_per_s == 1 / 8.0


def test_a_one_token_answer_is_missing_from_tpot_and_neither_zero_nor_nan_in_it() -> None:
    rows = [Row(tokens=1, ttft_s=0.25, e2e_s=0.25), Row(tokens=5, ttft_s=0.25, e2e_s=1.25)]
    result = chat(log_of(rows), targets(ttft=0.5, tpot=0.25))
    assert result.good == 2
    assert result.percentiles_s["tpot"] == (0.25, 0.25, 0.25, 0.25)
    assert result.means_s["tpot"] == 0.25
    assert result.means_s["ttft"] == 0.25


def test_a_workload_of_one_token_answers_has_no_tpot_and_no_nan_in_its_sums() -> None:
    rows = [Row(tokens=1, ttft_s=0.25, e2e_s=0.25)] * 3
    result = score(log_of(rows), {"chat": targets(ttft=0.5, tpot=0.04)})
    only = result.workload("chat")
    assert all(isnan(p) for p in only.percentiles_s["tpot"]) and isnan(only.means_s["tpot"])
    assert only.attainment == 1.0 and only.meets
    assert finite(result) and result.goodput_tokens_per_s == 3 / 8.0
    assert [p.target for p in only.pressures] == ["ttft_ms"]


@pytest.mark.parametrize("metric", ["tpot", "itl"])
def test_a_percentile_target_without_anything_to_apply_to_is_not_missed(metric: Metric) -> None:
    rows = [Row(tokens=1, ttft_s=0.25, e2e_s=0.25)] * 3
    promised = targets(ttft=0.5, percentiles=(PercentileTarget(metric=metric, percentile=99, limit_s=0.04),))
    result = chat(log_of(rows), promised)
    assert result.missed_percentiles == ()
    assert result.meets


# ---- Failed, rejected, unfinished ----

GONE = [
    Row(status="failed", e2e_s=nan),
    Row(status="rejected", ttft_s=nan, e2e_s=nan, tokens=0),
    Row(status="unfinished", e2e_s=nan, tokens=2),
    Row(status="unfinished", ttft_s=nan, e2e_s=nan, tokens=0),
]


@pytest.mark.parametrize("gone", GONE)
def test_a_request_that_did_not_finish_stays_in_the_denominator_and_is_not_good(gone: Row) -> None:
    result = chat(log_of([Row(), gone]), targets(ttft=0.5))
    assert (result.judged, result.finished, result.good) == (2, 1, 1)
    assert result.attainment == 0.5
    assert result.finished + result.failed + result.rejected + result.unfinished == result.judged


@pytest.mark.parametrize("gone", GONE)
def test_a_request_that_did_not_finish_is_infinite_in_every_percentile(gone: Row) -> None:
    result = chat(log_of([Row(tokens=5), gone]), targets(ttft=0.5))
    for metric in ("ttft", "tpot", "e2e"):
        assert result.percentiles_s[metric][0] < inf
        assert result.percentiles_s[metric][1:] == (inf, inf, inf)
        assert result.means_s[metric] < inf


def test_means_are_over_finished_requests() -> None:
    result = chat(log_of([Row(e2e_s=1.0), Row(e2e_s=2.0), *GONE]), targets(e2e=4.0))
    assert result.means_s["e2e"] == 1.5
    assert result.means_s["ttft"] == 0.25


def test_a_failed_request_with_an_early_first_token_does_not_help_a_ttft_percentile() -> None:
    rows = [Row()] * 9 + [Row(status="failed", ttft_s=0.0, e2e_s=nan)]
    promised = targets(attainment=0.5, percentiles=(PercentileTarget(metric="ttft", percentile=95, limit_s=0.5),))
    assert chat(log_of(rows), promised).missed_percentiles == ("ttft_p95_ms",)


# ---- Percentiles and their targets ----


def hundred() -> list[Row]:
    return [Row(arrival_s=0.0, ttft_s=i / 100, e2e_s=2.0) for i in range(1, 101)]


def test_a_percentile_is_the_smallest_value_that_this_share_does_not_exceed() -> None:
    assert chat(log_of(hundred()), targets(e2e=4.0)).percentiles_s["ttft"] == (0.5, 0.9, 0.95, 0.99)
    assert chat(log_of([Row(ttft_s=0.5)]), targets(e2e=4.0)).percentiles_s["ttft"] == (0.5, 0.5, 0.5, 0.5)


@pytest.mark.parametrize(("percentile", "limit_s", "held"), [(99, 0.99, True), (99, 0.98, False), (50, 0.5, True)])
def test_a_percentile_target_holds_for_the_workload_as_a_whole(percentile: int, limit_s: float, held: bool) -> None:
    target = PercentileTarget(metric="ttft", percentile=percentile, limit_s=limit_s)
    result = chat(log_of(hundred()), targets(percentiles=(target,)))
    assert result.good == 100  # no per-request target: finishing is enough
    assert result.meets is held
    assert result.missed_percentiles == (() if held else (f"ttft_p{percentile}_ms",))


# ---- Batch ----


def test_a_batch_request_is_good_when_it_finishes_within_its_deadline() -> None:
    rows = [Row(e2e_s=2.0), Row(e2e_s=2.5), Row(status="unfinished", e2e_s=nan)]
    result = chat(log_of(rows), targets(deadline_s=2.0))
    assert result.good == 1
    assert [p.target for p in result.pressures] == ["within_hours"]


def test_a_batch_with_targets_must_meet_those_too() -> None:
    rows = [Row(e2e_s=2.0, ttft_s=0.25), Row(e2e_s=2.0, ttft_s=1.0)]
    assert chat(log_of(rows), targets(deadline_s=2.0, ttft=0.5)).good == 1


def test_the_deadline_of_a_batch_is_the_last_twentieth_of_the_time_allowed() -> None:
    workload = Workload(batch=Batch(requests=1000, within_hours=8), isl=512, osl=4)
    assert targets_of(workload).deadline_s == pytest.approx(0.05 * 8 * 3600)
    online = Workload(traffic=RateTraffic(rate_rps=1.0), isl=512, osl=4, slo=Slo(ttft_ms=500, itl_p99_ms=40))
    promised = targets_of(online)
    assert promised.deadline_s is None
    assert promised.per_request_s == {"ttft": 0.5}
    assert promised.percentiles == (PercentileTarget(metric="itl", percentile=99, limit_s=0.04),)
    assert promised.attainment == 0.99


# ---- Deciding ----


@pytest.mark.parametrize(
    ("attainment", "requests"),
    [(0.5, 20), (0.9, 100), (0.95, 200), (0.97, 334), (0.99, 1000), (0.999, 10_000), (0.9999, 100_000)],
)
def test_a_decision_takes_ten_expected_misses(attainment: float, requests: int) -> None:
    assert required_requests(attainment) == requests


def test_a_workload_is_decidable_from_that_many_judged_requests_on() -> None:
    promised = targets(ttft=0.5, attainment=0.9)
    assert not chat(log_of([Row()] * 99), promised).decidable
    assert chat(log_of([Row()] * 100), promised).decidable
    assert not chat(log_of([Row()] * 99 + [Row(phase="runout")]), promised).decidable


# ---- In flight and saturation ----


def test_in_flight_mean_is_request_seconds_inside_the_window_over_its_length() -> None:
    rows = [
        Row(arrival_s=0.0, e2e_s=3.0, phase="warmup"),  # 1 s inside
        Row(arrival_s=3.0, e2e_s=2.0),  # 2 s
        Row(arrival_s=5.0, e2e_s=5.0),  # 1 s
        Row(arrival_s=5.5, ttft_s=nan, e2e_s=nan, status="unfinished", tokens=0),  # 0.5 s
        Row(arrival_s=5.0, ttft_s=nan, e2e_s=nan, status="rejected", tokens=0),  # never in
        Row(arrival_s=9.0, e2e_s=1.0, phase="runout"),  # after
    ]
    result = score(log_of(rows, window_s=(2.0, 6.0)), {"chat": targets(ttft=0.5)})
    assert result.in_flight_mean == (1 + 2 + 1 + 0.5) / 4
    assert (result.in_flight_start, result.in_flight_end) == (1, 2)


def test_a_queue_that_grows_through_the_window_is_saturated_and_meets_nothing() -> None:
    rows = [Row(arrival_s=i / 128, ttft_s=0.0, e2e_s=i / 128) for i in range(1024)]  # half of them are still there
    result = score(log_of(rows), {"chat": targets(ttft=0.5)})
    assert result.in_flight_end == pytest.approx(512, abs=2)
    assert result.saturated
    assert result.workload("chat").meets
    assert not result.meets


def test_a_constant_number_in_flight_is_not_saturated() -> None:
    rows = [Row(arrival_s=i / 128, phase="warmup" if i < 512 else "window", ttft_s=0.0) for i in range(1536)]
    result = score(log_of(rows, window_s=(4.0, 12.0)), {"chat": targets(ttft=0.5)})
    assert result.in_flight_start == result.in_flight_end == pytest.approx(128, abs=1)
    assert not result.saturated
    assert result.meets


def test_requests_that_failed_are_not_in_flight_for_ever() -> None:
    rows = [
        Row(arrival_s=i / 128, ttft_s=nan, e2e_s=nan, status="failed", tokens=0)
        if i % 4 == 0
        else Row(arrival_s=i / 128)
        for i in range(1024)
    ]
    result = score(log_of(rows), {"chat": targets(ttft=0.5)})
    assert result.in_flight_end == pytest.approx(96, abs=2)  # 128 arrivals in the last second, three quarters stay
    finished = score(log_of([row for row in rows if row.status == "finished"]), {"chat": targets(ttft=0.5)})
    assert result.in_flight_end == finished.in_flight_end
    assert result.in_flight_mean == finished.in_flight_mean


# ---- Token gaps ----


@pytest.mark.parametrize("gap_s", [1e-4, 0.00999, 0.01, 0.0105, 0.0112, 0.02, 0.1, 0.11, 1.0, 40.0])
def test_percentiles_of_equal_gaps_are_that_gap_within_six_percent(gap_s: float) -> None:
    result = chat(log_of([Row()], gaps_s=[[gap_s] * 1000]), targets(e2e=4.0))
    assert result.percentiles_s["itl"] == pytest.approx((gap_s,) * 4, rel=0.06)
    assert result.means_s["itl"] == pytest.approx(gap_s, rel=0.06)


@pytest.mark.parametrize("sigma", [0.05, 0.5, 1.5])
def test_percentiles_of_spread_gaps_are_within_six_percent(sigma: float) -> None:
    gaps_s = np.random.default_rng(1).lognormal(np.log(0.02), sigma, 20_000)
    result = chat(log_of([Row()], gaps_s=[gaps_s.tolist()]), targets(e2e=4.0))
    exact = np.quantile(gaps_s, [0.5, 0.9, 0.95, 0.99], method="inverted_cdf")
    assert result.percentiles_s["itl"] == pytest.approx(tuple(exact), rel=0.06)
    assert result.means_s["itl"] == pytest.approx(float(gaps_s.mean()), rel=0.06)


def test_gap_percentiles_see_the_one_percent_of_stalls_that_means_hide() -> None:
    gaps_s = [0.01] * 9800 + [3.4] * 200
    result = chat(log_of([Row()], gaps_s=[gaps_s]), targets(e2e=4.0))
    p50_s, _, p95_s, p99_s = result.percentiles_s["itl"]
    assert (p50_s, p95_s, p99_s) == pytest.approx((0.01, 0.01, 3.4), rel=0.06)


def test_a_gap_target_is_held_by_the_workloads_own_gaps() -> None:
    log = log_of([Row(), Row(workload=1)], names=("chat", "rag"), gaps_s=[[0.01] * 100, [0.1] * 100])
    promised = targets(percentiles=(PercentileTarget(metric="itl", percentile=99, limit_s=0.04),))
    result = score(log, {"chat": promised, "rag": promised})
    assert [w.missed_percentiles for w in result.workloads] == [(), ("itl_p99_ms",)]


def test_the_longest_stall_is_the_longest_gap_of_any_finished_request() -> None:
    rows = [Row(itl_max_s=0.5), Row(itl_max_s=2.0), Row(tokens=1), Row(itl_max_s=9.0, status="unfinished", e2e_s=nan)]
    assert chat(log_of(rows), targets(e2e=4.0)).longest_stall_s == 2.0
    assert isnan(chat(log_of([Row(tokens=1)]), targets(e2e=4.0)).longest_stall_s)


def test_stall_percentiles_are_over_the_finished_requests_that_have_a_gap() -> None:
    gaps_s = [float(i) for i in range(1, 201)]
    rows = [Row(itl_max_s=gap_s) for gap_s in reversed(gaps_s)]
    seen = chat(log_of([*rows, Row(tokens=1), Row(itl_max_s=900.0, status="unfinished")]), targets(e2e=4.0))
    assert (seen.stall_p50_s, seen.stall_p99_s, seen.longest_stall_s) == (100.0, 198.0, 200.0)
    alone = chat(log_of([Row(tokens=1)]), targets(e2e=4.0))
    assert isnan(alone.stall_p50_s) and isnan(alone.stall_p99_s)


# ---- Pressures ----


def test_the_tightest_target_comes_first() -> None:
    rows = [Row(tokens=5, ttft_s=0.25, e2e_s=1.25)]  # TTFT 0.25, TPOT 0.25, E2E 1.25
    promised = targets(
        ttft=0.5, tpot=1.0, e2e=1.25, percentiles=(PercentileTarget(metric="e2e", percentile=95, limit_s=0.625),)
    )
    result = score(log_of(rows), {"chat": promised})
    pressures = result.workload("chat").pressures
    assert [(p.target, p.ratio) for p in pressures] == [
        ("e2e_p95_ms", 2.0),
        ("e2e_ms", 1.0),
        ("ttft_ms", 0.5),
        ("tpot_ms", 0.25),
    ]
    assert result.tightest == ("chat", pressures[0])
    assert pressures[0].sentence == "e2e_p95_ms: 1,250 ms against 625 ms"


def test_the_tightest_target_of_the_run_is_the_tightest_over_workloads() -> None:
    rows = [Row(ttft_s=0.25), Row(ttft_s=0.75, workload=1)]
    log = log_of(rows, names=("chat", "rag"))
    result = score(log, {"chat": targets(ttft=0.5), "rag": targets(ttft=1.0)})
    assert result.tightest[0] == "rag" and result.tightest[1].ratio == 0.75


def test_a_request_that_never_finished_breaks_every_target_it_weighs_on() -> None:
    result = chat(log_of([Row(), Row(status="failed", ttft_s=nan, e2e_s=nan)]), targets(ttft=0.5, attainment=0.9))
    assert result.pressures[0].ratio == inf


@given(
    ttft_s=st.lists(st.floats(0.001, 1.0), min_size=1, max_size=60),
    attainment=st.sampled_from([0.5, 0.75, 0.9, 0.95, 0.99, 0.999]),
)
def test_a_single_target_is_met_exactly_when_its_pressure_is_at_most_one(
    ttft_s: list[float], attainment: float
) -> None:
    rows = [Row(arrival_s=0.0, ttft_s=value_s) for value_s in ttft_s]
    result = chat(log_of(rows), targets(ttft=0.5, attainment=attainment))
    assert result.meets is (result.pressures[0].ratio <= 1.0)


@pytest.mark.parametrize("attainment", [0.9, 0.95, 0.99, 0.999])
def test_pressure_and_attainment_agree_at_the_edge_for_every_number_of_requests(attainment: float) -> None:
    for judged in [*range(1, 130), 1000, 2000, 9999, 10_000]:
        needed = next(k for k in range(int(judged * attainment) - 1, judged + 1) if k / judged >= attainment)
        for good in {max(needed - 1, 0), needed}:
            rows = [Row(arrival_s=0.0, ttft_s=0.25)] * good + [Row(arrival_s=0.0, ttft_s=1.0)] * (judged - good)
            result = chat(log_of(rows), targets(ttft=0.5, attainment=attainment))
            assert result.meets is (good == needed)
            assert (result.pressures[0].ratio <= 1.0) is result.meets, (judged, good)


# ---- Which requests are judged ----


def test_only_requests_that_arrived_in_the_window_are_judged() -> None:
    rows = [Row(phase="warmup", ttft_s=5.0), Row(phase="window"), Row(phase="runout", ttft_s=5.0, tokens=1000)]
    result = score(log_of(rows, window_complete=False), {"chat": targets(ttft=0.5)})
    assert result.workload("chat").judged == 1
    assert result.workload("chat").attainment == 1.0
    assert result.output_tokens_per_s == 4 / 8.0
    assert result.offered_rps == 1 / 8.0
    assert result.window_s == 8.0
    assert not result.window_complete


def test_preemptions_are_counted_for_the_run_and_for_the_window_of_each_workload() -> None:
    rows = [Row(phase="warmup", preemptions=3), Row(preemptions=2)]
    result = score(log_of(rows), {"chat": targets(ttft=0.5)})
    assert (result.preemptions, result.workload("chat").preemptions) == (5, 2)


def test_a_workload_without_requests_in_the_window_is_undecided_and_puts_no_nan_into_sums() -> None:
    log = log_of([Row(), Row(workload=1, phase="warmup")], names=("chat", "rag"))
    promised = targets(
        ttft=0.5, tpot=0.5, e2e=2.0, percentiles=(PercentileTarget(metric="itl", percentile=99, limit_s=1.0),)
    )
    result = score(log, {"chat": promised, "rag": promised})
    empty = result.workload("rag")
    assert empty.judged == empty.good == 0
    assert isnan(empty.attainment)
    assert not empty.meets and not empty.decidable and not result.meets
    assert empty.pressures == ()
    assert finite(result)
    assert result.tightest[0] == "chat"


def test_the_shares_of_replica_time_are_sums_over_replicas_and_unknown_for_a_measured_run() -> None:
    times = ReplicaTimes(
        prefill_s=np.array([1.0, 3.0]),
        decode_s=np.array([2.0, 6.0]),
        in_system_s=np.zeros(2),
        steps=np.zeros(2, dtype=np.int64),
        scheduled_tokens=np.zeros(2, dtype=np.int64),
        discarded_tokens=np.zeros(2, dtype=np.int64),
        preemptions=np.zeros(2, dtype=np.int64),
        batch_peak=np.zeros(2, dtype=np.int64),
        kv_peak_fraction=np.zeros(2),
        kv_blocks_held=np.zeros(2, dtype=np.int64),
    )
    simulated = score(log_of([Row()], replica_times=times), {"chat": targets(ttft=0.5)})
    assert (simulated.prefill_fraction, simulated.decode_fraction) == (0.25, 0.5)
    measured = score(log_of([Row()]), {"chat": targets(ttft=0.5)})
    assert isnan(measured.prefill_fraction) and isnan(measured.decode_fraction)
