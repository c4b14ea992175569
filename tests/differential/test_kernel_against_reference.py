"""kernel = reference: the compiled counts and the plain SimPy lists write the same log, to the last bit.

The runs are those that the counting kernel may try; where counts turn out not to be enough, `simulate` takes the full
kernel, so that one is compared with both.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.counted_run import play_counted
from simulator.log import RequestLog
from simulator.run import Backend
from simulator.run_inputs import RunInputs
from tests.differential.random_runs import (
    MAX_TOKENS,
    RandomRun,
    assert_equal_logs,
    assert_equal_replica_times,
    cut_in_flight,
)

COUNTABLE = st.builds(
    RandomRun,
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 60),
    rate_rps=st.sampled_from([2.0, 8.0, 30.0, 200.0]),
    concurrency=st.sampled_from([None, None, 1, 5]),
    overhead_s=st.sampled_from([0.0, 0.05]),
    judged=st.booleans(),
    drain=st.booleans(),
    replicas=st.integers(1, 4),
    routing=st.sampled_from(["round_robin", "least_outstanding"]),
    max_num_seqs=st.integers(1, 12),
    budget=st.integers(12, MAX_TOKENS),
    block_size=st.sampled_from([1, 4, 16]),
    cache_tokens=st.integers(120, 400),
    step_window_tokens=st.sampled_from([0, 8, 64]),
    async_scheduling=st.booleans(),
    enable_prefix_caching=st.booleans(),
    documents=st.booleans(),
    warm=st.booleans(),
)
"""Runs that counts can describe; with two steps in flight, at least until somebody is preempted."""


@settings(max_examples=1000, deadline=None)
@given(run=COUNTABLE)
def test_equal_logs_on_random_runs(run: RandomRun) -> None:
    kernel, full = run.play("kernel"), run.play("full-kernel")
    cut = cut_in_flight(full, async_scheduling=run.async_scheduling)
    assert_equal_replica_times(kernel, full, step_in_flight=cut)
    reference = run.play("reference")
    assert_equal_logs(kernel, reference, step_in_flight=cut)
    assert_equal_logs(full, reference)


def roomy(seed: int, *, cache_tokens: int, **flags: bool) -> RandomRun:
    return RandomRun(
        seed=seed,
        count=60,
        rate_rps=200.0,
        max_num_seqs=6,
        budget=40,
        block_size=4,
        cache_tokens=cache_tokens,
        **flags,  # type: ignore[arg-type]
    )


def test_the_random_runs_reach_preemption_and_full_batches() -> None:
    preemptions = full = 0
    for seed in range(20):
        log = roomy(seed, cache_tokens=180 if seed % 2 else 1600).play("kernel")
        assert log.replica_times is not None
        preemptions += int(log.preemptions.sum())
        full += int(log.replica_times.batch_peak[0] == 6)
    assert preemptions > 20
    assert full > 5


@pytest.mark.parametrize("flags", [{}, {"async_scheduling": True}, {"enable_prefix_caching": True, "documents": True}])
def test_counts_are_enough_unless_somebody_is_preempted_with_two_steps_in_flight(
    flags: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the comparison above is of two kernels, not of the full one with itself."""
    counted: list[RequestLog | None] = []

    def play(inputs: RunInputs) -> RequestLog | None:
        counted.append(play_counted(inputs))
        return counted[-1]

    monkeypatch.setattr("simulator.run.play_counted", play)
    quiet = [roomy(seed, cache_tokens=1600, **flags).play("kernel") for seed in range(5)]
    assert not any(log.preemptions.any() for log in quiet)
    assert all(log is not None for log in counted)
    counted.clear()
    pressed = [roomy(seed, cache_tokens=180, **flags).play("kernel") for seed in range(5)]
    assert all(log.preemptions.any() for log in pressed)
    assert [log is None for log in counted] == ["async_scheduling" in flags] * 5


@pytest.mark.parametrize("backend", ["kernel", "full-kernel", "reference"])
def test_equal_inputs_give_equal_bytes(backend: Backend) -> None:
    run = replace(roomy(3, cache_tokens=240), rate_rps=20.0, replicas=2, step_window_tokens=8, overhead_s=0.01)
    first, second = run.play(backend), run.play(backend)
    assert first.frame().to_csv() == second.frame().to_csv()
    np.testing.assert_array_equal(first.itl_counts, second.itl_counts)
