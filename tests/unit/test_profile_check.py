"""A profile judged by rows: which it speaks of, how they are marked, what its errors do to choices and capacities."""

from dataclasses import replace

import numpy as np
import pytest

from hardware_profiles.errors import InputError
from hardware_profiles.model import load_model_card
from hardware_profiles.node import load_node
from hardware_profiles.profile import load_profile
from hardware_profiles.shipped import PACKAGE
from planner.check_points import judge, operating_points
from planner.profile_check import ProfileCheck, check_profile, error_figures
from simulator.benchmark_rows import BenchmarkRow, read_rows
from simulator.coefficients import layout_for
from simulator.unmeasured_degree import with_degree

NODE = load_node("mi355x")
CARD = load_model_card("gpt-oss-120b")
PROFILE = load_profile("mi355x/gpt-oss-120b-mxfp4-vllm")
OWN_ROWS = read_rows(PACKAGE / "measurements" / "mi355x-gpt-oss-120b-mxfp4.csv")
PLAIN = BenchmarkRow(
    gpu="mi355x",
    model="gpt-oss-120b",
    precision="fp4",
    framework="vllm",
    tensor_parallel_size=1,
    isl=1024,
    osl=1024,
    concurrency=4,
    tpot_s=0.005,
    tokens_per_s=1500.0,
    requests=8,
)
"""Eight requests, so that a prediction takes no time."""


def measured_as_predicted(check: ProfileCheck, *, tpot_factor: float = 1.0) -> list[BenchmarkRow]:
    """The rows as a server would measure them that behaves as the profile says, but for a factor on TPOT."""
    return [
        replace(row.row, tpot_s=tpot_factor * row.predicted_tpot_s, tokens_per_s=row.predicted_tokens_per_s)
        for row in check.rows
    ]


def sweep() -> list[BenchmarkRow]:
    return [
        replace(PLAIN, tensor_parallel_size=degree, concurrency=concurrency, requests=3 * concurrency)
        for degree in (1, 8)
        for concurrency in (4, 16, 64)
    ]


def test_the_rows_of_a_fit_are_recognised_and_its_errors_in_sample_come_out_again() -> None:
    check = check_profile(PROFILE, OWN_ROWS)
    assert len(check.rows) == len(OWN_ROWS) and all(row.used for row in check.rows)
    assert check.fit_known and not check.left_out and not any(row.outside for row in check.rows)
    found = error_figures(check.rows)
    assert set(found) == {"tpot", "throughput"}
    for metric, stated in PROFILE.errors["in sample"].items():
        assert found[metric].rows == stated.rows
        assert found[metric].median == pytest.approx(stated.median, rel=0.01)
        assert found[metric].p95 == pytest.approx(stated.p95, rel=0.01)


def test_a_perfect_profile_errs_nowhere_and_chooses_right() -> None:
    check = check_profile(PROFILE, measured_as_predicted(check_profile(PROFILE, sweep())))
    found = error_figures(check.rows)
    assert found["tpot"].worst == found["throughput"].worst == 0.0
    judgement = judge(check.rows)
    assert judgement.choices.made > 3
    assert (judgement.choices.violations, judgement.choices.missed, judgement.choices.worst_regret) == (0, 0, 0.0)
    errors = judgement.capacities.errors(of_load=False)
    assert len(errors) > 3 and not any(errors)


def test_a_profile_20_percent_too_fast_chooses_points_over_the_limit_and_overstates_capacity() -> None:
    rows = measured_as_predicted(check_profile(PROFILE, sweep()), tpot_factor=1.25)
    check = check_profile(PROFILE, rows)
    assert error_figures(check.rows)["tpot"].bias == pytest.approx(-0.2)
    assert error_figures(check.rows)["tpot"].median == pytest.approx(0.2)
    limits_s = [row.tpot_s / 1.1 for row in rows if row.tensor_parallel_size == 1]
    judgement = judge(check.rows, limits_s)
    assert judgement.choices.violations == len(judgement.choices.choices) == 3
    assert judgement.choices.worst_violation == pytest.approx(0.1)
    assert judgement.choices.median_regret is None
    assert min(judgement.capacities.errors(of_load=True)) > 0


def test_rows_that_the_profile_does_not_speak_of_are_counted_by_reason() -> None:
    others = [
        replace(PLAIN, gpu="h100"),
        replace(PLAIN, model="dsr1"),
        replace(PLAIN, precision="fp8"),
        replace(PLAIN, framework="sglang"),
        replace(PLAIN, framework="sglang"),
        replace(PLAIN, variant="mtp"),
        replace(PLAIN, special="disaggregated"),
        replace(PLAIN, tensor_parallel_size=16),
        replace(PLAIN, tensor_parallel_size=7),
        replace(PLAIN, kv_cache_tokens=1024),
        replace(PLAIN, max_num_batched_tokens=512),
    ]
    check = check_profile(PROFILE, [PLAIN, *others])
    assert [row.row for row in check.rows] == [PLAIN]
    assert check.left_out == {
        "of another GPU than mi355x": 1,
        "of another model than gpt-oss-120b": 1,
        "in another precision than mxfp4": 1,
        "of another engine than vllm": 2,
        "of the variant mtp": 1,
        "set aside: disaggregated": 1,
        "at TP 16, on more GPUs than a server has": 1,
        "that cannot run: tensor_parallel_size 7 does not divide the 64 attention heads of gpt-oss-120b": 1,
        "too long for its KV cache of 1,024 tokens": 1,
        "with max_num_seqs above max_num_batched_tokens": 1,
    }


def test_rows_of_a_model_that_the_profile_serves_beside_its_own_are_its_rows() -> None:
    profile = load_profile("mi355x/llama-3.3-70b-fp8-vllm")
    row = replace(PLAIN, model="deepseek-r1-distill-llama-70b", precision="fp8")
    assert len(check_profile(profile, [row]).rows) == 1


def test_nothing_left_is_a_mistake_of_the_user_with_the_reasons() -> None:
    other_gpu = replace(PLAIN, gpu="h100")
    with pytest.raises(InputError, match="1 row of another GPU than mi355x; 2 rows of another engine than vllm"):
        check_profile(PROFILE, [*(replace(PLAIN, framework=word) for word in ("atom", "sglang")), other_gpu])
    with pytest.raises(InputError, match="1 row too long for its KV cache of 1,024 tokens"):
        check_profile(PROFILE, [replace(PLAIN, kv_cache_tokens=1024)])
    with pytest.raises(InputError, match="no row has"):
        check_profile(PROFILE, [])


def test_rows_used_in_the_fit_can_be_left_out() -> None:
    used = OWN_ROWS[0]
    other = replace(used, tpot_s=1.01 * used.tpot_s)
    check = check_profile(PROFILE, [used, other], unused_only=True)
    assert [row.row for row in check.rows] == [other]
    assert check.left_out == {"used in the fit": 1}
    with pytest.raises(InputError, match="1 row used in the fit"):
        check_profile(PROFILE, [used], unused_only=True)


def test_another_rate_or_load_is_another_row_than_that_of_the_fit() -> None:
    used = replace(OWN_ROWS[0], requests=8)
    loads = [replace(used, concurrency=5), replace(used, concurrency=None, request_rate_rps=4.0, tokens_per_s=None)]
    assert [row.used for row in check_profile(PROFILE, [used, *loads]).rows] == [True, False, False]


def test_rows_outside_the_measured_range_are_extrapolated_and_say_in_what() -> None:
    rows = {
        "in flight": replace(PLAIN, concurrency=256, requests=256, osl=1024),
        "ISL": replace(PLAIN, isl=512),
        "OSL": replace(PLAIN, osl=256),
        "context": replace(PLAIN, isl=8192, osl=8192),
        "KV cache": replace(PLAIN, kv_cache_dtype="fp8"),
        "scheduling": replace(PLAIN, async_scheduling=False),
    }
    for what, row in rows.items():
        assert [part.what for part in check_profile(PROFILE, [row]).rows[0].outside] == [what]
    assert str(check_profile(PROFILE, [rows["ISL"]]).rows[0].outside[0]) == "ISL 512, measured 1,024-8,192"
    assert check_profile(PROFILE, [PLAIN]).rows[0].outside == ()


def test_the_requests_in_flight_of_an_open_loop_come_from_its_rate() -> None:
    slow = replace(PLAIN, concurrency=None, request_rate_rps=2.0, tokens_per_s=None, requests=20)
    fast = replace(slow, request_rate_rps=100.0)
    check = check_profile(PROFILE, [slow, fast])
    assert [[part.what for part in row.outside] for row in check.rows] == [[], ["in flight"]]
    assert set(error_figures(check.rows)) == {"tpot"}


def test_figures_are_told_apart_for_rows_that_deserve_it() -> None:
    used, suspect = replace(OWN_ROWS[0], requests=8), replace(PLAIN, weight=0.1, isl=512)
    figures = check_profile(PROFILE, [used, suspect, PLAIN]).figures()
    counts = {group: metrics["tpot"].rows for group, metrics in figures.items()}
    assert counts == {"all rows": 3, "not used in the fit": 2, "within the measured range": 2, "of full weight": 2}


def test_runs_that_the_profile_cannot_tell_apart_are_one_point_with_their_median() -> None:
    runs = [replace(PLAIN, tpot_s=tpot_s, date=date) for tpot_s, date in ((0.004, "a"), (0.006, "b"), (0.005, "c"))]
    others = [replace(PLAIN, max_num_batched_tokens=2048), replace(PLAIN, length_low=1.0), replace(PLAIN, osl=256)]
    points = operating_points(check_profile(PROFILE, [*runs, *others]).rows)
    assert [(point.shape, point.rows) for point in points] == [
        ("1024/256", 1),
        ("1024/1024", 1),
        ("1024/1024", 3),
        ("1024/1024 x 1-1", 1),
    ]
    assert points[2].measured_tpot_s == 0.005
    assert np.isnan(points[2].measured_ttft_s)


def test_seats_that_are_never_wanted_do_not_split_a_sweep() -> None:
    rows = [replace(PLAIN, concurrency=c, max_num_seqs=c, requests=c) for c in (4, 8, 16)]
    points = operating_points(check_profile(PROFILE, [*rows, replace(rows[2], max_num_seqs=8)]).rows)
    assert len({point.sweep for point in points}) == 2
    assert sum(point.sweep == points[0].sweep for point in points) == 3


def test_a_limit_on_ttft_is_held_in_the_capacities_of_rows_that_have_one() -> None:
    check = check_profile(PROFILE, [replace(row, ttft_s=0.1) for row in sweep()])
    rows = [replace(row.row, tpot_s=row.predicted_tpot_s, ttft_s=row.predicted_ttft_s) for row in check.rows]
    check = check_profile(PROFILE, rows)
    times_s = sorted(row.predicted_ttft_s for row in check.rows if row.row.tensor_parallel_size == 1)
    found = judge(check.rows, [1.0], ttft_limit_s=(times_s[1] + times_s[2]) / 2).capacities
    first = next(sweep for sweep in found.sweeps if sweep.tensor_parallel_size == 1)
    assert 16 < first.error.measured.load < 64
    assert first.error.load_error == 0.0
    assert judge(check_profile(PROFILE, sweep()).rows, [1.0], ttft_limit_s=0.1).capacities.sweeps == ()


def test_a_degree_that_the_profile_lacks_is_predicted_from_its_typical_terms() -> None:
    lacking = replace(
        PROFILE,
        tensor_parallel={tp: terms for tp, terms in PROFILE.tensor_parallel.items() if tp != 4},
        all_reduce={tp: curve for tp, curve in PROFILE.all_reduce.items() if tp != 4},
    )
    rows = [replace(PLAIN, tensor_parallel_size=tp, concurrency=64, requests=128) for tp in (2, 4, 8)]
    found = check_profile(lacking, rows).rows
    assert [[part.what for part in row.outside] for row in found] == [[], ["TP"], []]
    assert str(found[1].outside[0]) == "TP 4, measured 1, 2, 8"
    assert found[0].predicted_tpot_s > found[1].predicted_tpot_s > found[2].predicted_tpot_s
    full = check_profile(PROFILE, rows).rows
    assert found[1].predicted_tpot_s == pytest.approx(full[1].predicted_tpot_s, rel=0.15)
    assert found[0].predicted_tpot_s == full[0].predicted_tpot_s


def test_the_all_reduce_of_an_unmeasured_degree_scales_as_the_measured_ones() -> None:
    lacking = replace(PROFILE, tensor_parallel={1: PROFILE.tensor_parallel[1], 2: PROFILE.tensor_parallel[2]},
                      all_reduce={2: PROFILE.all_reduce[2]})  # fmt: skip
    whole = with_degree(lacking, 4, node=NODE, card=CARD)
    assert whole is not None
    assert whole.tensor_parallel[4] == PROFILE.typical
    # One latency share for all degrees, so the shipped TP4 has the same; the link rate doubles from TP2 to TP4.
    assert whole.all_reduce[4].floor_s == pytest.approx(PROFILE.all_reduce[4].floor_s, rel=1e-3)
    assert whole.all_reduce[4].large_bytes_per_s == pytest.approx(2 * PROFILE.all_reduce[2].large_bytes_per_s)
    assert whole.all_reduce[4].how_known.startswith("TP 4 was not measured under load")
    assert with_degree(PROFILE, 4, node=NODE, card=CARD) is PROFILE


def test_a_profile_of_one_gpu_gets_the_all_reduce_that_a_fit_would_start_from() -> None:
    alone = replace(PROFILE, tensor_parallel={1: PROFILE.tensor_parallel[1]}, all_reduce={})
    whole = with_degree(alone, 2, node=NODE, card=CARD)
    assert whole is not None and NODE.link_bytes_per_s is not None
    starts = {t.name: t.start for t in layout_for(CARD, (2,), all_reduce_bits=16.0, with_ttft=False).terms}
    assert whole.all_reduce[2].large_bytes_per_s == pytest.approx(NODE.link_bytes_per_s * starts["large_share"])


def test_a_profile_without_typical_terms_speaks_of_its_own_degrees_only() -> None:
    bare = replace(PROFILE, typical=None, tensor_parallel={1: PROFILE.tensor_parallel[1]}, all_reduce={})
    check = check_profile(bare, [PLAIN, replace(PLAIN, tensor_parallel_size=2)])
    assert check.left_out == {"at TP 2, for which the profile has no terms": 1}
    assert with_degree(bare, 2, node=NODE, card=CARD) is None
