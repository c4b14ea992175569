"""Shipped profiles against the rows they were fitted from, row by row, and against measurements they never saw."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest

from hardware_profiles.fit_evidence import load_residuals
from hardware_profiles.model import load_model_card
from hardware_profiles.node import load_node
from hardware_profiles.profile import list_profiles, load_profile
from hardware_profiles.server_split import split_comparisons
from hardware_profiles.shipped import PACKAGE
from planner.refit import shipped_rows
from simulator.benchmark_rows import BenchmarkRow, read_rows
from simulator.calibration import fit_profile
from simulator.closed_loop import predict_rows
from simulator.fitted_rows import fitted_rows
from simulator.steptime import step_time_model

NODE = load_node("mi355x")
GPT_OSS = "mi355x/gpt-oss-120b-mxfp4-vllm"
LLAMA_FP8 = "mi355x/llama-3.3-70b-fp8-vllm"
LLAMA_MXFP4 = "mi355x/llama-3.3-70b-mxfp4-vllm"

SHIPPED = {rows.profile: rows for rows in shipped_rows()}
LIMITS = {
    # profile: largest median error of TPOT and throughput in sample, with a concurrency, a shape, a TP degree left out
    GPT_OSS: (0.010, 0.03, 0.06, 0.09),
    LLAMA_FP8: (0.020, 0.04, 0.06, 0.09),
}
"""The aims for clean rows. The rest is held to what its rows allow: versions mixed, or runs that differ (README)."""
OTHER_LIMITS = (0.08, 0.12, 0.25, 0.40)
EVALUATIONS = ("in sample", "leave one concurrency out", "leave one shape out", "leave one TP out")
LARGEST_BIAS = {GPT_OSS: 0.01, LLAMA_FP8: 0.01}
OTHER_BIAS = 0.15


@lru_cache
def rows_of(name: str) -> tuple[BenchmarkRow, ...]:
    shipped = SHIPPED[name]
    chosen, _ = fitted_rows(
        read_rows(shipped.path),
        node=load_node(shipped.node),
        card=load_model_card(shipped.model),
        precision=shipped.precision,
        engine=shipped.engine,
        variant=shipped.variant,
    )
    return chosen


def test_every_file_of_measured_rows_has_its_profile_and_no_profile_is_without() -> None:
    assert sorted(SHIPPED) == sorted(list_profiles())


@pytest.mark.parametrize("name", list_profiles())
def test_every_row_is_predicted_as_the_residuals_say(name: str) -> None:
    profile, rows = load_profile(name), rows_of(name)
    card = load_model_card(profile.model)
    predicted = predict_rows(profile, rows, node=load_node(profile.node), card=card)
    for row, (tpot_s, tokens_per_s, ttft_s), held in zip(rows, predicted, load_residuals(profile), strict=True):
        assert (row.tensor_parallel_size, row.isl, row.osl, row.concurrency) == (
            held.tensor_parallel_size,
            held.isl,
            held.osl,
            held.concurrency,
        )
        assert held.measured_tpot_s == pytest.approx(row.tpot_s, rel=1e-5)
        assert held.measured_tokens_per_s == pytest.approx(row.tokens_per_s, rel=1e-5)
        assert held.measured_ttft_s == (None if row.ttft_s is None else pytest.approx(row.ttft_s, rel=1e-5))
        assert held.predicted_tpot_s == pytest.approx(tpot_s, rel=1e-4)
        assert held.predicted_tokens_per_s == pytest.approx(tokens_per_s, rel=1e-4)
        if row.ttft_s is not None:
            assert held.predicted_ttft_s == pytest.approx(ttft_s, rel=1e-4)


@pytest.mark.parametrize("name", list_profiles())
def test_errors_stay_within_their_limits(name: str) -> None:
    profile = load_profile(name)
    for evaluation, limit in zip(EVALUATIONS, LIMITS.get(name, OTHER_LIMITS), strict=True):
        for metric, figures in profile.errors.get(evaluation, {}).items():
            figure = f"median {figures.median:.1%} p95 {figures.p95:.1%} bias {figures.bias:+.1%}"
            print(f"{name} {evaluation} {metric}: {figure}")
            if metric != "ttft":
                assert figures.median <= limit, (evaluation, metric)
            if evaluation == "in sample" and metric != "ttft":
                assert abs(figures.bias) <= LARGEST_BIAS.get(name, OTHER_BIAS)


@pytest.mark.parametrize("name", [GPT_OSS, LLAMA_FP8])
def test_stated_intervals_of_80_percent_cover_70_to_90_percent_of_the_rows_left_out(name: str) -> None:
    for evaluation, shares in load_profile(name).coverage.items():
        print(f"{name} {evaluation}: {shares}")
        assert all(0.70 <= share <= 0.90 for share in shares.values())


def test_the_command_at_the_head_of_a_profile_can_be_repeated() -> None:
    """One start and no held-out errors here, to be quick; the whole command takes minutes and is equally repeatable."""
    found = fit_profile(
        rows_of(GPT_OSS),
        node=NODE,
        card=load_model_card("gpt-oss-120b"),
        precision="mxfp4",
        engine="vllm",
        starts=1,
        leave_out=False,
    ).file
    shipped = load_profile(GPT_OSS)
    assert found.errors["in sample"]["tpot"].median <= LIMITS[GPT_OSS][0]
    assert found.errors["in sample"]["throughput"].worst <= 0.035
    for degree, terms in found.tensor_parallel.items():
        assert terms.step_floor_s == pytest.approx(shipped.tensor_parallel[degree].step_floor_s, rel=0.05)


@pytest.mark.parametrize(
    ("name", "limit", "least"), [(GPT_OSS, 0.05, 18), (LLAMA_FP8, 0.13, 15), (LLAMA_MXFP4, 0.13, 8)]
)
def test_one_tp8_against_two_tp4_against_eight_tp1_comes_out_as_measured(name: str, limit: float, least: int) -> None:
    found = split_comparisons(load_residuals(load_profile(name)), NODE.gpus_per_server)
    assert len(found) >= least  # rows of weight below 0.4 are no witnesses
    for split in found:
        error = split.predicted_ratio / split.measured_ratio - 1
        print(
            f"{name} {split.isl}/{split.osl} {split.concurrency} in flight: "
            f"{8 // split.many} x TP{split.many} "
            f"over {8 // split.few} x TP{split.few}: measured {split.measured_ratio:.3f}, "
            f"predicted {split.predicted_ratio:.3f} ({error:+.1%})"
        )
        assert abs(error) <= limit
        if abs(split.measured_ratio - 1) > 2 * limit:
            assert (split.predicted_ratio > 1) == (split.measured_ratio > 1)


@pytest.mark.parametrize(("context", "measured_ms"), [(1024, 10.44), (4096, 12.29)])
def test_a_decode_step_at_batch_64_costs_what_amd_measured(context: int, measured_ms: float) -> None:
    """AMD-AGI/Infera @b342f332, test_decode_context_scaling.py: gpt-oss-120b, TP1, vLLM; never fitted to."""
    predicted_ms = 1e3 * decode_step_s(64, context)
    print(f"batch 64, context {context}: predicted {predicted_ms:.2f} ms, measured {measured_ms} ms")
    assert predicted_ms == pytest.approx(measured_ms, rel=0.10)


@pytest.mark.parametrize(("context", "measured_ms"), [(16384, 23.57), (65536, 64.01)])
def test_contexts_beyond_the_measured_range_are_too_cheap_and_marked_as_extrapolated(
    context: int, measured_ms: float
) -> None:
    """The same source: its kernel reads long caches at 2.9 TB/s, half the rate that the rows show for short ones."""
    predicted_ms = 1e3 * decode_step_s(64, context)
    print(f"batch 64, context {context}: predicted {predicted_ms:.2f} ms, measured {measured_ms} ms")
    assert predicted_ms < measured_ms
    assert context > load_profile(GPT_OSS).measured.context[1]


def decode_step_s(batch: int, context: int) -> float:
    profile = load_profile(GPT_OSS)
    model = step_time_model(
        profile, node=NODE, card=load_model_card("gpt-oss-120b"), tensor_parallel_size=1, max_tokens=8192
    )
    return model.step_s(
        decodes=batch,
        decode_tokens=batch,
        prefill_tokens=0,
        prefills=0,
        sampled=batch,
        context=batch * context,
        window_context=batch * 128,
        pairs=0.0,
        window_pairs=0.0,
    )


def test_the_measurements_say_where_they_come_from() -> None:
    for path in sorted(Path(PACKAGE / "measurements").glob("*.csv")):
        head = path.read_text(encoding="utf-8").splitlines()[0]
        assert head.startswith("# "), path.name
