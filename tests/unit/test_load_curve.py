"""Capacity between the points of a sweep, by hand: straight lines in logarithms."""

import numpy as np
import pytest

from simulator.load_curve import Capacity, LoadCurve, capacity, capacity_error


def sweep(
    tpot_s: list[float],
    tokens: list[float] | None = None,
    ttft_s: list[float] | None = None,
    load: list[float] | None = None,
) -> LoadCurve:
    points = len(tpot_s)
    return LoadCurve(
        load=np.array(load or [4.0, 16.0, 64.0]),
        tokens_per_s_per_gpu=np.array(tokens or [100.0, 200.0, 400.0]),
        tpot_s=np.array(tpot_s),
        ttft_s=np.array(ttft_s) if ttft_s else np.full(points, np.nan),
    )


def test_a_limit_halfway_between_two_points_gives_their_geometric_mean() -> None:
    found = capacity(sweep([0.01, 0.02, 0.08]), tpot_limit_s=0.04)
    assert found.load == pytest.approx(32.0)
    assert found.tokens_per_s_per_gpu == pytest.approx(200 * 2**0.5)
    assert found.bound is None


def test_a_point_on_the_limit_is_within_it() -> None:
    found = capacity(sweep([0.01, 0.02, 0.08]), tpot_limit_s=0.02)
    assert found == Capacity(load=16.0, tokens_per_s_per_gpu=200.0, bound=None)


def test_the_ends_of_a_sweep_bound_the_capacity() -> None:
    curve = sweep([0.01, 0.02, 0.08])
    assert capacity(curve, tpot_limit_s=0.1) == Capacity(load=64.0, tokens_per_s_per_gpu=400.0, bound="at least")
    assert capacity(curve, tpot_limit_s=0.005) == Capacity(load=4.0, tokens_per_s_per_gpu=100.0, bound="at most")


def test_the_limit_that_is_reached_first_decides() -> None:
    curve = sweep([0.01, 0.02, 0.08], ttft_s=[0.1, 0.2, 3.2])
    assert capacity(curve, tpot_limit_s=0.04, ttft_limit_s=3.2).load == pytest.approx(32.0)
    assert capacity(curve, tpot_limit_s=0.04, ttft_limit_s=0.4).load == pytest.approx(16 * 2**0.5)
    assert capacity(curve, tpot_limit_s=1.0, ttft_limit_s=0.4).load == pytest.approx(16 * 2**0.5)


def test_a_point_without_ttft_is_not_within_a_limit_on_it() -> None:
    curve = sweep([0.01, 0.02, 0.03], ttft_s=[0.1, 0.2, np.nan])
    assert capacity(curve, tpot_limit_s=0.04, ttft_limit_s=0.4) == Capacity(
        load=16.0, tokens_per_s_per_gpu=200.0, bound=None
    )


def test_more_load_may_give_less_throughput_and_the_best_within_the_limit_counts() -> None:
    found = capacity(sweep([0.01, 0.02, 0.08], tokens=[100.0, 200.0, 50.0]), tpot_limit_s=0.04)
    assert found.load == pytest.approx(32.0)
    assert found.tokens_per_s_per_gpu == 200.0


def test_a_tpot_predicted_20_percent_short_overstates_the_capacity() -> None:
    measured, predicted = sweep([0.01, 0.02, 0.04]), sweep([0.008, 0.016, 0.032])
    found = capacity_error(measured, predicted, tpot_limit_s=0.02)
    assert found is not None
    assert found.load_error == pytest.approx(1.25**2 - 1)  # doubling TPOT quadruples the load
    assert found.throughput_error == pytest.approx(0.25)
    assert not found.bounded


def test_a_perfect_prediction_has_no_capacity_error() -> None:
    curve = sweep([0.01, 0.02, 0.04])
    found = capacity_error(curve, curve, tpot_limit_s=0.03)
    assert found is not None
    assert (found.load_error, found.throughput_error) == (0.0, 0.0)


def test_limits_that_both_keep_or_both_miss_tell_nothing_and_one_end_gives_a_bound() -> None:
    measured, predicted = sweep([0.01, 0.02, 0.04]), sweep([0.008, 0.016, 0.032])
    assert capacity_error(measured, predicted, tpot_limit_s=0.05) is None
    assert capacity_error(measured, predicted, tpot_limit_s=0.001) is None
    found = capacity_error(measured, predicted, tpot_limit_s=0.035)
    assert found is not None
    assert found.bounded and found.predicted.bound == "at least" and found.throughput_error > 0


def test_throughput_that_is_not_known_leaves_the_load() -> None:
    curve = sweep([0.01, 0.02, 0.04], tokens=[np.nan] * 3)
    found = capacity_error(curve, curve, tpot_limit_s=0.03)
    assert found is not None
    assert found.load_error == 0.0 and np.isnan(found.throughput_error)


def test_loads_that_do_not_rise_are_no_sweep() -> None:
    with pytest.raises(ValueError, match="rises"):
        sweep([0.01, 0.02, 0.04], load=[4.0, 4.0, 8.0])
