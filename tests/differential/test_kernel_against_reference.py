"""kernel = reference: the compiled counts and the plain SimPy lists write the same log, to the last bit.

Small caches, small budgets and short gaps, so that chunking, preemption, full batches and ties of routing all happen.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine import EngineConfig
from simulator.log import RequestLog
from simulator.run import Window, simulate
from simulator.steptime import StepTimeModel
from simulator.workload import RequestStream

MAX_TOKENS = 96


def step_model(seed: int, *, window_tokens: int, overhead_s: float) -> StepTimeModel:
    rng = np.random.default_rng(seed)
    tokens = np.arange(MAX_TOKENS + 1, dtype=np.float64)
    return StepTimeModel(
        decode_s=0.01 + float(0.001 * rng.random()) * tokens,
        mixed_s=0.012 + float(0.002 * rng.random()) * tokens,
        sequence_s=1e-4 * rng.random(),
        kv_s=1e-5 * rng.random(),
        window_kv_s=1e-5 * rng.random() if window_tokens else 0.0,
        attention_s=1e-6 * rng.random(),
        window_attention_s=1e-6 * rng.random() if window_tokens else 0.0,
        prefill_request_s=1e-3 * rng.random(),
        host_s=0.02 * rng.random(),
        host_sequence_s=1e-3 * rng.random(),
        sync_s=1e-3 * rng.random(),
        request_overhead_s=overhead_s,
        window_tokens=window_tokens,
    )


def stream_of(seed: int, *, count: int, rate_rps: float, workloads: int, concurrency: int | None) -> RequestStream:
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1 / rate_rps, count))
    if count > 6:  # simultaneous arrivals
        arrival_s[3:6] = arrival_s[3]
    if concurrency is not None:
        arrival_s = np.where(np.arange(count) < concurrency, 0.0, np.nan)
    return RequestStream(
        arrival_s=arrival_s,
        prompt_tokens=rng.integers(1, 120, count),
        output_tokens=rng.integers(1, 40, count),
        workload=rng.integers(0, workloads, count).astype(np.int32),
        workload_names=tuple(f"w{i}" for i in range(workloads)),
        span_s=float(np.nanmax(arrival_s)),
        clipped_fraction=(0.0,) * workloads,
        concurrency=concurrency,
    )


def assert_equal_logs(kernel: RequestLog, reference: RequestLog) -> None:
    for column in (
        "arrival_s",
        "scheduled_s",
        "first_token_s",
        "finish_s",
        "itl_max_s",
        "prompt_tokens",
        "output_tokens",
        "workload",
        "phase",
        "status",
        "replica",
        "preemptions",
        "itl_counts",
    ):
        np.testing.assert_array_equal(getattr(kernel, column), getattr(reference, column), err_msg=column)
    assert kernel.window_complete == reference.window_complete
    assert kernel.end_s == reference.end_s


@settings(max_examples=1000, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 60),
    rate_rps=st.sampled_from([2.0, 8.0, 30.0, 200.0]),
    replicas=st.integers(1, 4),
    routing=st.sampled_from(["round_robin", "least_outstanding"]),
    max_num_seqs=st.integers(1, 12),
    budget=st.integers(12, MAX_TOKENS),
    block_size=st.sampled_from([1, 4, 16]),
    spare_blocks=st.integers(0, 30),
    window_tokens=st.sampled_from([0, 8, 64]),
    concurrency=st.sampled_from([None, None, 1, 5]),
    overhead_s=st.sampled_from([0.0, 0.05]),
)
def test_equal_logs_on_random_workloads(
    seed: int,
    count: int,
    rate_rps: float,
    replicas: int,
    routing: str,
    max_num_seqs: int,
    budget: int,
    block_size: int,
    spare_blocks: int,
    window_tokens: int,
    concurrency: int | None,
    overhead_s: float,
) -> None:
    stream = stream_of(seed, count=count, rate_rps=rate_rps, workloads=2, concurrency=concurrency)
    span_s = stream.span_s
    arguments = {
        "engine": EngineConfig(
            tensor_parallel_size=1,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_model_len=256,
            block_size=block_size,
        ),
        "model": step_model(seed, window_tokens=window_tokens, overhead_s=overhead_s),
        "num_blocks": -(-160 // block_size) + spare_blocks,
        "replicas": replicas,
        "routing": routing,
        "window": Window(start_s=0.2 * span_s, end_s=0.7 * span_s),
    }
    kernel = simulate(stream, **arguments)  # type: ignore[arg-type]
    reference = simulate(stream, backend="reference", **arguments)  # type: ignore[arg-type]
    assert_equal_logs(kernel, reference)


def test_the_random_workloads_reach_preemption_and_full_batches() -> None:
    preemptions = full = 0
    for seed in range(20):
        stream = stream_of(seed, count=60, rate_rps=200.0, workloads=1, concurrency=None)
        log = simulate(
            stream,
            engine=EngineConfig(
                tensor_parallel_size=1, max_num_seqs=6, max_num_batched_tokens=40, max_model_len=256, block_size=4
            ),
            model=step_model(seed, window_tokens=0, overhead_s=0.0),
            num_blocks=45 if seed % 2 else 400,
            replicas=1,
        )
        assert log.replica_times is not None
        preemptions += int(log.preemptions.sum())
        full += int(log.replica_times.batch_peak[0] == 6)
    assert preemptions > 20
    assert full > 5


@pytest.mark.parametrize("backend", ["kernel", "reference"])
def test_equal_inputs_give_equal_bytes(backend: str) -> None:
    stream = stream_of(3, count=50, rate_rps=20.0, workloads=2, concurrency=None)
    arguments = {
        "engine": EngineConfig(
            tensor_parallel_size=1, max_num_seqs=6, max_num_batched_tokens=40, max_model_len=256, block_size=4
        ),
        "model": step_model(3, window_tokens=8, overhead_s=0.01),
        "num_blocks": 60,
        "replicas": 2,
        "backend": backend,
    }
    first = simulate(stream, **arguments)  # type: ignore[arg-type]
    second = simulate(replace(stream), **arguments)  # type: ignore[arg-type]
    assert first.frame().to_csv() == second.frame().to_csv()
