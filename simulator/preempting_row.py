"""A benchmark row whose requests run out of KV cache: somebody is preempted, which counts do not describe.

`closed_loop.py` plays rows with the counting kernel, which with a step in flight stops at the first preemption; the
same protocol then starts again in the full kernel. Rows near a server's KV limit are of this kind.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.benchmark_rows import BenchmarkRow
from simulator.full_kernel import run_full_kernel
from simulator.full_tables import ARRIVAL, ERROR, FINISH, FIRST_TOKEN, make_full_world
from simulator.scheduler_settings import SchedulerSettings
from simulator.steptime import StepTimeModel

__all__ = ["play_with_preemption"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def play_with_preemption(
    row: BenchmarkRow,
    model: StepTimeModel,
    blocks: int,
    *,
    coefficients: Floats,
    arrival_s: Floats,
    prompt_tokens: Ints,
    output_tokens: Ints,
    released: int,
) -> Floats | None:
    """(3, requests) arrival in the engine, first token and finish in seconds; None where a request never fits."""
    requests = len(prompt_tokens)
    world = make_full_world(
        settings=SchedulerSettings(
            max_num_seqs=row.max_num_seqs,
            max_num_batched_tokens=row.max_num_batched_tokens,
            block_size=row.block_size,
            num_blocks=blocks,
            async_scheduling=row.async_scheduling,
        ),
        coefficients=coefficients,
        decode_s=model.decode_s,
        mixed_s=model.mixed_s,
        step_window_tokens=model.window_tokens,
        arrival_s=arrival_s,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        max_tokens=None,
        priority=None,
        workload=np.zeros(requests, dtype=np.int64),
        phase=np.zeros(requests, dtype=np.int64),
        contents=None,
        accepted=None,
        workloads=1,
        replicas=1,
        released=released,
        least_outstanding=True,
        closed_loop=row.concurrency is not None,
    )
    run_full_kernel(world, np.inf)
    times_s = world.rf[:, [ARRIVAL, FIRST_TOKEN, FINISH]].T
    return None if world.totals[ERROR] or bool(np.isnan(times_s).any()) else times_s
