"""The sweep of max_num_batched_tokens: the best fleet with other limits on a step, on one stream."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.plan_file import Plan
from planner.platforms import find_platforms
from planner.space import searched_values
from planner.sweep import MOST_VALUES, _thinned
from simulator.hardware_check import load_model_and_nodes
from simulator.scenario import load_scenario
from tests.conftest import SMALL_SCENARIO


def test_the_sweep_holds_the_searched_values_that_can_run_and_marks_the_chosen_one(small_plan: Plan) -> None:
    best = small_plan.best
    assert best is not None
    assert best.engine is not None
    points = best.batched_tokens_sweep
    values = [p.max_num_batched_tokens for p in points]
    assert values == [v for v in (128, 2048, 16384) if v >= int(best.engine["max_num_seqs"])]
    assert [p.max_num_batched_tokens for p in points if p.chosen] == [best.engine["max_num_batched_tokens"]]
    assert small_plan.screened.sweep_simulations == len(points) < small_plan.screened.simulations
    for point in points:
        assert set(point.workloads) == set(best.workloads)
        for row in point.workloads.values():
            assert 0 <= row.attainment <= 1
            assert row.stall_p50_ms is not None
            assert row.stall_p99_ms is not None
            assert row.longest_stall_ms is not None
            assert row.stall_p50_ms <= row.stall_p99_ms <= row.longest_stall_ms


def test_a_smaller_limit_bounds_the_stall(small_plan: Plan) -> None:
    assert small_plan.best is not None
    points = [p for p in small_plan.best.batched_tokens_sweep if p.max_num_batched_tokens >= 2048]
    stalls = [p.workloads["chat"].longest_stall_ms or 0.0 for p in points]
    assert stalls == sorted(stalls)


def test_the_readers_figures_are_those_of_the_confirmation(small_plan: Plan) -> None:
    assert small_plan.best is not None
    for row in small_plan.best.workloads.values():
        assert row.itl_p50_ms is not None
        assert row.itl_p99_ms is not None
        assert row.stall_p50_ms is not None
        assert row.stall_p99_ms is not None
        assert row.longest_stall_ms is not None
        assert row.itl_p50_ms <= row.itl_p99_ms
        assert row.stall_p50_ms <= row.stall_p99_ms <= row.longest_stall_ms


@pytest.mark.parametrize("count", [1, 3, MOST_VALUES, MOST_VALUES + 1, 40])
def test_thinning_keeps_both_ends_and_the_chosen_value(count: int) -> None:
    values = [1000 + i for i in range(count)]
    for chosen in values:
        kept = _thinned(values, chosen)
        assert len(kept) <= MOST_VALUES
        assert len(kept) >= min(count, MOST_VALUES - 1)
        assert {values[0], values[-1], chosen} <= set(kept) <= set(values)
        assert kept == sorted(kept)


@pytest.mark.parametrize(
    ("old", "new", "values"),
    [
        ("", "", (128, 2048, 16384)),
        ("  max_num_batched_tokens: [128, 2048, 16384]\n", "", ()),
        ("engine: {max_model_len: 8192}", "engine: {max_model_len: 8192, max_num_batched_tokens: 4096}", ()),
    ],
)
def test_the_values_searched_are_those_of_the_scenario(
    tmp_path: Path, old: str, new: str, values: tuple[int, ...]
) -> None:
    text = SMALL_SCENARIO.replace(old, new) if old else SMALL_SCENARIO
    if "4096" in new:
        text = text[: text.index("search:")] + text[text.index("fleet:") :]
    path = tmp_path / "my.yaml"
    path.write_text(text)
    loaded = load_scenario(path)
    card, nodes = load_model_and_nodes(loaded)
    platform = find_platforms(loaded, card, nodes)[0]
    assert searched_values(loaded.scenario, platform, "max_num_batched_tokens") == values
