"""What a run refuses, and what it does when it could go on for ever."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.engine import EngineConfig
from simulator.run import Backend, simulate
from simulator.workload import RequestStream
from tests.step_times import NO_TIME

ALL: tuple[Backend, ...] = ("kernel", "full-kernel", "reference")


def stream_of(prompts: list[int], answers: list[int], **more: Any) -> RequestStream:
    return RequestStream(
        arrival_s=np.zeros(len(prompts)),
        prompt_tokens=np.array(prompts, dtype=np.int64),
        output_tokens=np.array(answers, dtype=np.int64),
        workload=np.zeros(len(prompts), dtype=np.int32),
        workload_names=("chat",),
        span_s=1.0,
        clipped_fraction=(0.0,),
        **more,
    )


def engine_of(**flags: Any) -> EngineConfig:
    defaults = {"max_num_seqs": 1, "max_num_batched_tokens": 64, "max_model_len": 8192, "block_size": 2}
    return EngineConfig(tensor_parallel_size=1, **(defaults | flags))


def model_of(tokens: int, step_s: float = 1.0, slope_s: float = 0.0) -> Any:
    steps = step_s + slope_s * np.arange(tokens + 1, dtype=np.float64)
    return replace(NO_TIME, decode_s=steps, mixed_s=steps)


@pytest.mark.parametrize("backend", ["full-kernel", "reference"])
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_an_engine_that_is_stuck_says_so_and_does_not_turn_for_ever(backend: Backend, async_scheduling: bool) -> None:
    """The second request finds its prompt but for one token, is padded to 1 + k and finds a budget of 2 too small."""
    stream = stream_of([5, 5], [3, 3], document=np.zeros(2, dtype=np.int64), document_tokens=np.array([4, 4]))
    engine = engine_of(
        max_num_batched_tokens=2,
        enable_prefix_caching=True,
        num_speculative_tokens=2,
        async_scheduling=async_scheduling,
    )
    with pytest.raises(RuntimeError, match="vLLM would wait for ever"):
        simulate(stream, engine=engine, model=model_of(2), num_blocks=99, replicas=1, backend=backend)


@pytest.mark.parametrize("backend", ALL)
def test_a_request_longer_than_the_model_takes_is_a_mistake_of_the_caller(backend: Backend) -> None:
    with pytest.raises(ValueError, match="30 tokens is longer than max_model_len 16"):
        engine = engine_of(max_model_len=16)
        simulate(stream_of([10], [20]), engine=engine, model=model_of(64), num_blocks=99, replicas=1, backend=backend)


def test_a_stream_has_requests_and_they_have_tokens() -> None:
    with pytest.raises(ValueError, match="at least one request"):
        stream_of([], [])
    with pytest.raises(ValueError, match="at least one token"):
        stream_of([3], [0])


def test_a_batch_that_empties_one_by_one_keeps_every_longest_gap() -> None:
    """4,200 falling steps while one old request decodes: the stall of each is its first step."""
    seats = 4200
    stream = stream_of([1] * seats, list(range(2, seats + 2)))
    engine = engine_of(max_num_seqs=seats, max_num_batched_tokens=seats, async_scheduling=False)
    model = model_of(seats, step_s=0.01, slope_s=1e-5)
    log = simulate(stream, engine=engine, model=model, num_blocks=10_000_000, replicas=1)
    assert (log.status == 0).all()
    np.testing.assert_allclose(log.itl_max_s, 0.01 + 1e-5 * seats)
