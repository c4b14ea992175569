"""Step times follow their formula, and move the right way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_profiles.model import load_model_card
from hardware_profiles.node import load_node
from hardware_profiles.profile import AllReduce, SharedTerms, TensorParallelTerms
from simulator.steptime import StepTimeModel, all_reduce_s, build_step_time, experts_touched

NODE = load_node("mi355x")
GPT_OSS = load_model_card("gpt-oss-120b")
LLAMA = load_model_card("llama-3.3-70b")
CURVE = AllReduce(
    floor_s=10e-6,
    bytes_per_s=100e9,
    to_bytes=3e6,
    large_bytes_per_s=50e9,
    large_from_bytes=8e6,
    how_known="assumed for the test",
)
TERMS = TensorParallelTerms(
    step_floor_s=2e-3,
    prefill_floor_s=5e-3,
    sequence_s=1e-5,
    weight_efficiency=0.5,
    flop_efficiency=0.25,
    kv_efficiency=0.5,
    attention_efficiency=0.2,
)
SHARED = SharedTerms(
    smooth_exponent=1.0,
    expert_popularity_shape=2.0,
    host_s=0.0,
    host_sequence_s=0.0,
    sync_s=0.0,
    request_overhead_s=0.01,
)


def built(
    degree: int = 1, *, moe: bool = True, kv_cache_dtype: str = "auto", shared: SharedTerms = SHARED
) -> StepTimeModel:
    return build_step_time(
        node=NODE,
        card=GPT_OSS if moe else LLAMA,
        precision="mxfp4" if moe else "fp8",
        tensor_parallel_size=degree,
        shared=shared,
        terms=TERMS,
        all_reduce=CURVE if degree > 1 else None,
        max_tokens=8192,
        kv_cache_dtype=kv_cache_dtype,
    )


def test_a_dense_decode_step_is_floor_plus_bytes_over_bandwidth_plus_flop_over_rate() -> None:
    weights = LLAMA.weight_bytes("fp8")
    read_s = (weights.dense_bytes + weights.embedding_bytes / 2) / (7.2e12 * 0.5)
    flop_s = 2 * (LLAMA.parameters.dense + LLAMA.vocab * LLAMA.hidden) * 16 / (3.5e15 * 0.25)
    assert built(moe=False).decode_s[16] == pytest.approx(2e-3 + read_s + flop_s, rel=1e-12)


def test_a_mixed_step_costs_its_own_floor_on_top() -> None:
    model = built()
    assert np.allclose(model.mixed_s[1:] - model.decode_s[1:], 5e-3)
    assert model.decode_s[0] == model.mixed_s[0] == 0.0


def test_the_all_reduce_is_the_measured_curve_then_a_line_then_one_bandwidth() -> None:
    seconds = all_reduce_s(CURVE, np.array([0.0, 3e6, 5.5e6, 8e6, 80e6]))
    small, large = 10e-6 + 3e6 / 100e9, 10e-6 + 8e6 / 50e9
    assert seconds == pytest.approx([10e-6, small, (small + large) / 2, large, 10e-6 + 80e6 / 50e9])
    assert built(4).decode_s[1] - built(4).decode_s[1] == 0
    exchanged = (2 * 36 + 1) * float(all_reduce_s(CURVE, np.array([64 * 2880 * 2.0]))[0])
    without = built(4).decode_s[64] - exchanged
    assert without < built(1).decode_s[64]


@given(st.floats(0.2, 50), st.floats(1e-3, 1e3))
def test_no_more_experts_are_touched_than_there_are_or_than_tokens_ask_for(shape: float, per_expert: float) -> None:
    touched = float(experts_touched(np.array([per_expert]), shape)[0])
    assert 0 < touched <= min(1.0, per_expert) + 1e-12
    assert touched <= float(experts_touched(np.array([per_expert]), None)[0]) + 1e-12


def test_the_routers_of_deepseek_r1_touch_what_a_shape_of_three_says() -> None:
    """AMD-AGI/Infera @b342f332, deepseek_v3.yaml: distinct experts against independent routing, 8 of 256, by batch."""
    coverage = {1: 1.0, 4: 0.98, 8: 0.96, 16: 0.94, 32: 0.91, 64: 0.89, 128: 0.92, 256: 0.96}
    for tokens, share in coverage.items():
        probed = share * (1 - (1 - 8 / 256) ** tokens)
        assert float(experts_touched(np.array([tokens * 8 / 256]), 3.0)[0]) == pytest.approx(probed, rel=0.025)


def test_a_sharper_exponent_hides_the_shorter_of_reading_and_multiplying() -> None:
    loose, sharp = built(), built(shared=SHARED.model_copy(update={"smooth_exponent": 8.0}))
    assert (sharp.decode_s[1:] < loose.decode_s[1:]).all()


def test_every_table_rises_with_the_tokens() -> None:
    for model in (built(), built(8), built(2, moe=False)):
        assert (np.diff(model.decode_s) > 0).all()
        assert (np.diff(model.mixed_s) > 0).all()


def test_an_fp8_cache_halves_what_a_token_of_context_costs() -> None:
    assert built(kv_cache_dtype="fp8").kv_s == pytest.approx(built().kv_s / 2)


def test_kv_heads_are_shared_out_until_there_is_one_a_gpu() -> None:
    assert built(8).kv_s == pytest.approx(built(1).kv_s / 8)


def test_half_of_gpt_oss_reads_no_more_than_its_window() -> None:
    model = built()
    assert model.window_tokens == 128
    assert model.window_kv_s == model.kv_s
    assert built(moe=False).window_tokens == 0
    assert built(moe=False).window_kv_s == 0.0


def test_a_step_is_the_sum_of_its_parts() -> None:
    model = built()
    step_s = model.step_s(
        decodes=3,
        decode_tokens=3,
        prefill_tokens=100,
        prefills=1,
        sampled=4,
        context=5000,
        window_context=384,
        pairs=5000.0,
        window_pairs=4000.0,
    )
    parts_s = (
        model.mixed_s[103]
        + 4 * model.sequence_s
        + 5000 * model.kv_s
        + 384 * model.window_kv_s
        + 5000 * model.attention_s
        + 4000 * model.window_attention_s
    )
    assert step_s == pytest.approx(parts_s, rel=1e-12)


def test_a_scaled_model_scales_every_step_but_not_the_front_end() -> None:
    model = built()
    double = model.scaled(2.0)
    parts = {
        "decodes": 3,
        "decode_tokens": 3,
        "prefill_tokens": 0,
        "prefills": 0,
        "sampled": 3,
        "context": 900,
        "window_context": 384,
    }
    assert double.step_s(**parts, pairs=0.0, window_pairs=0.0) == pytest.approx(
        2 * model.step_s(**parts, pairs=0.0, window_pairs=0.0)
    )
    assert double.request_overhead_s == model.request_overhead_s == 0.01
