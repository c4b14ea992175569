"""kernel = reference when many things happen at one moment.

Equal replicas under equal requests do this for hours: all their steps end together. Steps here take a power of two of
seconds and arrivals fall on the same grid, so that the moments are equal to the last bit.
"""

from dataclasses import replace
from typing import Literal

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine import EngineConfig
from simulator.log import RequestLog
from simulator.run import Backend, Window, simulate
from simulator.steptime import StepTimeModel
from simulator.workload import RequestStream
from tests.differential.random_runs import assert_equal_logs, cut_in_flight
from tests.step_times import NO_TIME

STEP_S = 2.0**-6
MAX_TOKENS = 96


def step_model(*, mixed_steps: int, overhead_steps: int) -> StepTimeModel:
    return replace(
        NO_TIME,
        decode_s=np.full(MAX_TOKENS + 1, STEP_S),
        mixed_s=np.full(MAX_TOKENS + 1, STEP_S * mixed_steps),
        request_overhead_s=STEP_S * overhead_steps,
    )


def stream_of(seed: int, *, count: int, rate_rps: float, concurrency: int | None, equal: bool) -> RequestStream:
    rng = np.random.default_rng(seed)
    arrival_s = np.round(np.cumsum(rng.exponential(1 / rate_rps, count)) / STEP_S) * STEP_S
    if concurrency is not None:
        arrival_s = np.where(np.arange(count) < concurrency, 0.0, np.nan)
    return RequestStream(
        arrival_s=arrival_s,
        prompt_tokens=np.full(count, 40) if equal else rng.integers(1, 120, count),
        output_tokens=np.full(count, 8) if equal else rng.integers(1, 40, count),
        workload=np.zeros(count, dtype=np.int32),
        workload_names=("chat",),
        span_s=float(np.nanmax(arrival_s)),
        clipped_fraction=(0.0,),
        concurrency=concurrency,
    )


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 60),
    rate_rps=st.sampled_from([5.0, 30.0, 200.0]),
    concurrency=st.sampled_from([None, 1, 3, 8]),
    equal=st.booleans(),
    replicas=st.integers(1, 4),
    routing=st.sampled_from(["round_robin", "least_outstanding"]),
    max_num_seqs=st.integers(1, 12),
    budget=st.integers(12, MAX_TOKENS),
    num_blocks=st.integers(15, 60),
    mixed_steps=st.integers(1, 2),
    overhead_steps=st.integers(0, 2),
    judged=st.booleans(),
    async_scheduling=st.booleans(),
)
def test_equal_logs_when_arrivals_and_the_steps_of_all_replicas_fall_together(
    seed: int,
    count: int,
    rate_rps: float,
    concurrency: int | None,
    equal: bool,
    replicas: int,
    routing: Literal["round_robin", "least_outstanding"],
    max_num_seqs: int,
    budget: int,
    num_blocks: int,
    mixed_steps: int,
    overhead_steps: int,
    judged: bool,
    async_scheduling: bool,
) -> None:
    """The cache holds 60 to 240 tokens, requests have up to 158: some are rejected, some preempted."""
    stream = stream_of(seed, count=count, rate_rps=rate_rps, concurrency=concurrency, equal=equal)
    engine = EngineConfig(
        tensor_parallel_size=1,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=256,
        block_size=4,
        async_scheduling=async_scheduling,
    )
    model = step_model(mixed_steps=mixed_steps, overhead_steps=overhead_steps)
    window = Window(start_s=0.2 * stream.span_s, end_s=0.7 * stream.span_s) if judged else None

    def play(backend: Backend) -> RequestLog:
        return simulate(
            stream,
            engine=engine,
            model=model,
            num_blocks=num_blocks,
            replicas=replicas,
            routing=routing,
            window=window,
            backend=backend,
        )

    reference = play("reference")
    cut = cut_in_flight(reference, async_scheduling=async_scheduling)
    assert_equal_logs(play("kernel"), reference, step_in_flight=cut)
    assert_equal_logs(play("full-kernel"), reference)
