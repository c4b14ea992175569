"""Choices by prediction, judged by measurement: small cases worked by hand."""

import numpy as np
import pytest

from simulator.choice_quality import ChoiceQuality, choice_quality, limit_grid

TPOT_S = [0.010, 0.020, 0.030, 0.012, 0.018, 0.040]
"""TP1 at three loads, then TP2 at three loads, all of one shape."""
TOKENS = [100.0, 200.0, 300.0, 120.0, 160.0, 280.0]


def judge(
    predicted_tpot_s: list[float],
    predicted_tokens: list[float] | None = None,
    limits_s: tuple[float, ...] = (0.015, 0.025, 0.035),
) -> ChoiceQuality:
    return choice_quality(
        measured_tpot_s=TPOT_S,
        measured_tokens_per_s_per_gpu=TOKENS,
        predicted_tpot_s=predicted_tpot_s,
        predicted_tokens_per_s_per_gpu=TOKENS if predicted_tokens is None else predicted_tokens,
        shapes=["1024/1024"] * len(TPOT_S),
        limits_s=limits_s,
    )


def test_a_perfect_profile_violates_no_limit_and_regrets_nothing() -> None:
    found = judge(TPOT_S)
    assert [choice.chosen for choice in found.choices] == [3, 1, 2]
    assert [choice.best for choice in found.choices] == [3, 1, 2]
    assert (found.made, found.missed, found.violations, found.worst_violation) == (3, 0, 0, 0.0)
    assert (found.median_regret, found.worst_regret) == (0.0, 0.0)


def test_a_profile_20_percent_too_fast_violates_where_a_dearer_point_hides_behind_the_limit() -> None:
    found = judge([0.8 * tpot_s for tpot_s in TPOT_S])
    # 15 ms: 18 ms looks like 14.4; 25 ms: 30 ms looks like 24; 35 ms: 40 ms looks like 32, but gives less than 30 ms.
    assert [choice.chosen for choice in found.choices] == [4, 2, 2]
    assert [choice.violates for choice in found.choices] == [True, True, False]
    assert [choice.excess for choice in found.choices] == pytest.approx([0.2, 0.2, 0.030 / 0.035 - 1])
    assert [choice.regret for choice in found.choices] == [None, None, 0.0]
    assert (found.made, found.violations, found.worst_regret) == (3, 2, 0.0)
    assert found.worst_violation == pytest.approx(0.2)


def test_a_profile_20_percent_too_slow_regrets_and_never_violates() -> None:
    found = judge([1.2 * tpot_s for tpot_s in TPOT_S])
    # 15 ms: 10 and 12 ms look like 12 and 14.4; 25 ms: 20 ms looks like 24; 35 ms: 30 ms looks like 36.
    assert [choice.chosen for choice in found.choices] == [3, 1, 1]
    assert found.violations == 0
    assert [choice.regret for choice in found.choices] == pytest.approx([0.0, 0.0, 1 - 200 / 300])
    assert found.median_regret == 0.0
    assert found.worst_regret == pytest.approx(1 / 3)


def test_the_choice_follows_predicted_throughput_and_the_regret_measured_throughput() -> None:
    found = judge(TPOT_S, [100.0, 200.0, 300.0, 90.0, 210.0, 280.0], limits_s=(0.025,))
    assert (found.choices[0].chosen, found.choices[0].best) == (4, 1)
    assert found.choices[0].regret == pytest.approx(1 - 160 / 200)


def test_a_limit_that_only_the_measurements_meet_is_missed_and_not_a_choice() -> None:
    found = judge([2 * tpot_s for tpot_s in TPOT_S], limits_s=(0.015,))
    assert (found.choices[0].chosen, found.choices[0].best) == (None, 3)
    assert (found.made, found.missed, found.violations) == (0, 1, 0)
    assert (found.median_regret, found.worst_regret) == (None, None)


def test_a_limit_that_only_the_predictions_meet_is_violated() -> None:
    found = judge([0.5 * tpot_s for tpot_s in TPOT_S], limits_s=(0.008,))
    assert (found.choices[0].chosen, found.choices[0].best) == (3, None)
    assert found.choices[0].excess == pytest.approx(0.012 / 0.008 - 1)
    assert found.choices[0].regret is None


def test_a_limit_that_every_point_or_none_meets_tells_nothing() -> None:
    assert judge(TPOT_S, limits_s=(0.001, 0.040, 1.0)).choices == ()


def test_shapes_are_judged_apart_and_points_with_a_number_missing_are_no_candidates() -> None:
    found = choice_quality(
        measured_tpot_s=[0.01, 0.02, 0.01, 0.02, 0.015],
        measured_tokens_per_s_per_gpu=[1.0, 2.0, 1.0, 2.0, np.nan],
        predicted_tpot_s=[0.01, 0.02, 0.01, 0.02, 0.015],
        predicted_tokens_per_s_per_gpu=[1.0, 2.0, 1.0, 2.0, 9.0],
        shapes=["a", "a", "b", "b", "b"],
        limits_s=[0.016],
    )
    assert [(choice.shape, choice.chosen, choice.best) for choice in found.choices] == [("a", 0, 0), ("b", 2, 2)]


def test_no_points_are_no_choices() -> None:
    found = choice_quality(
        measured_tpot_s=[],
        measured_tokens_per_s_per_gpu=[],
        predicted_tpot_s=[],
        predicted_tokens_per_s_per_gpu=[],
        shapes=[],
        limits_s=[0.01],
    )
    assert (found.made, found.missed, found.worst_regret) == (0, 0, None)


def test_the_limits_are_round_and_lie_between_the_fastest_and_the_slowest_point() -> None:
    assert limit_grid([0.0042, 0.0161]) == (0.005, 0.0063, 0.008, 0.01, 0.0125, 0.016)
    assert limit_grid([0.004, np.nan, 0.005]) == (0.004,)
    assert limit_grid([]) == ()
