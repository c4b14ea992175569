"""Whether stated intervals are honest, from the predictions of rows left out."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import numpy as np
import pytest

from hardware_profiles.fit_evidence import HeldOutRow
from simulator.held_out import DEGREE_OUT, NORMAL_80, SHAPE_OUT, interval_scales

ROW = HeldOutRow(
    evaluation="leave one concurrency out",
    tensor_parallel_size=1,
    isl=1024,
    osl=1024,
    load="4",
    metric="tpot",
    measured=1.0,
    predicted=1.0,
    stated_sd=0.02,
    weight=1.0,
)


def drawn(evaluation: str, factor: float, seed: int) -> list[HeldOutRow]:
    """500 rows whose errors are `factor` times as wide as stated, over five loads, shapes and degrees."""
    errors = factor * ROW.stated_sd * np.random.default_rng(seed).standard_normal(500)
    return [
        replace(
            ROW,
            evaluation=evaluation,
            load=str(i % 5),
            isl=1000 + i % 7,
            tensor_parallel_size=1 + i % 3,
            osl=i,
            predicted=exp(error),
        )
        for i, error in enumerate(errors)
    ]


def test_the_factors_are_those_by_which_errors_are_wider_than_stated() -> None:
    rows = [*drawn(ROW.evaluation, 2.0, 2), *drawn(SHAPE_OUT, 2.0, 3), *drawn(DEGREE_OUT, 0.5, 4)]
    scale, degree_scale, coverage = interval_scales(rows)
    assert scale == pytest.approx(2.0, rel=0.1)
    assert degree_scale == pytest.approx(0.5, rel=0.1)
    assert all(0.77 <= found["tpot"] <= 0.83 for found in coverage.values())
    assert set(coverage) == {ROW.evaluation, SHAPE_OUT, DEGREE_OUT}


def test_no_row_judges_itself_not_even_by_way_of_another_evaluation() -> None:
    wild = [replace(ROW, evaluation=e, load="64", predicted=2.0) for e in (ROW.evaluation, SHAPE_OUT)]
    calm = [replace(ROW, evaluation=e, isl=isl) for e in (ROW.evaluation, SHAPE_OUT) for isl in (512, 2048)]
    calm = [replace(row, predicted=exp(NORMAL_80 * row.stated_sd)) for row in calm]
    _, _, coverage = interval_scales([*wild, *calm])
    assert coverage[ROW.evaluation]["tpot"] == pytest.approx(2 / 3, abs=1e-3)  # the wild row is outside
    assert coverage[SHAPE_OUT]["tpot"] == pytest.approx(2 / 3, abs=1e-3)


def test_rows_of_little_weight_and_ttft_do_not_set_the_factor() -> None:
    rows = drawn(ROW.evaluation, 1.0, 3)
    scale, _, _ = interval_scales(rows)
    noise = [replace(ROW, weight=0.1, predicted=9.0), replace(ROW, metric="ttft", predicted=9.0)]
    assert interval_scales([*rows, *noise])[0] == scale


def test_without_rows_the_factors_are_one() -> None:
    assert interval_scales([]) == (1.0, 1.0, {})
