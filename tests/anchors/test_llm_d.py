"""Llama-3.3-70B FP8 at TP 8 on MI355X as llm-d measured it: another vLLM build, 16-bit KV cache, no fit ever saw it.

The rows are the best of 51 settings, and their prompts run to twice the longest measured one. So the errors are large;
what must hold is that the profile says *extrapolated* of every one, and how far off it is (docs/methods/accuracy.md).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hardware_profiles.profile import load_profile
from planner.profile_check import ProfileCheck, check_profile
from simulator.benchmark_rows import read_rows

DATA = Path(__file__).parent / "data" / "llm-d-llama-3.3-70b-mi355x.csv"


def checked() -> ProfileCheck:
    return check_profile(load_profile("mi355x/llama-3.3-70b-fp8-vllm"), read_rows(DATA))


def test_no_row_was_used_in_the_fit_and_every_one_is_called_extrapolated() -> None:
    check = checked()
    assert len(check.rows) == 9
    assert not any(row.used for row in check.rows)
    assert all(row.outside for row in check.rows)


def test_predictions_stand_beside_the_measurements_within_wide_bands() -> None:
    errors = {}
    for found in checked().rows:
        row = found.row
        errors[row.isl, row.concurrency] = error = found.predicted_tpot_s / row.tpot_s - 1
        trusted = "" if row.weight == 1 else f"  ({row.note})"
        print(f"{row.isl}/{row.osl} {row.load}: TPOT {1e3 * row.tpot_s:.1f} ms, predicted {error:+.0%}{trusted}")
    in_range = [error for (isl, _), error in errors.items() if isl == 4096]
    beyond = [errors[16384, concurrency] for concurrency in (16, 32)]
    assert np.abs(in_range).max() < 0.25
    assert np.abs(beyond).max() < 0.40
