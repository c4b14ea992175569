"""What the counting kernel schedules in each step, seen from outside.

It has no call per step: it runs through stretches of decode steps without looking up. Under steps of one second it is
stopped in the middle of each, and what grew since the step before is what that step scheduled.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.kernel import run_kernel
from simulator.schedule_workload import ScheduleWorkload
from simulator.stepped import ScheduledStep
from simulator.steptime import StepTimeModel
from simulator.tables import (
    COMPUTED,
    DECODE,
    ERROR,
    FREE_BLOCKS,
    IN_WINDOW,
    NEXT,
    NEXT_REQUEST,
    PENDING_TOKENS,
    PREEMPTIONS,
    RUN_HEAD,
    STATE,
    STEP_COUNT,
    World,
    engine_settings,
    make_world,
)

__all__ = ["counted_steps"]


def counted_steps(workload: ScheduleWorkload) -> Iterator[ScheduledStep]:
    """Run the compiled kernel with steps of one second, stop in the middle of each and see what grew."""
    requests = workload.by_arrival
    world = unit_world(workload)
    step = requests[0].arrival_step
    cached_before, preemptions_before = cached_tokens(world), world.ri[:, PREEMPTIONS].copy()
    while True:
        run_kernel(world, step + 0.5)
        if world.totals[ERROR]:
            raise RuntimeError(f"the kernel stopped with error {int(world.totals[ERROR])} (see tables.ERROR)")
        if world.ints[0, PENDING_TOKENS] == 0:  # idle
            arrived = int(world.totals[NEXT_REQUEST])
            if arrived == len(requests):
                return
            step = requests[arrived].arrival_step
            continue
        cached, preemptions = cached_tokens(world), world.ri[:, PREEMPTIONS].copy()
        grown = cached - cached_before
        yield ScheduledStep(
            step=step,
            scheduled=tuple((requests[q].id, int(grown[q])) for q in running_list(world) if grown[q] > 0),
            preempted=tuple(sorted(requests[q].id for q in np.flatnonzero(preemptions > preemptions_before))),
            free_blocks=int(world.ints[0, FREE_BLOCKS]),
        )
        cached_before, preemptions_before = cached, preemptions
        step += 1


def unit_steps(workload: ScheduleWorkload) -> StepTimeModel:
    """One second for every step, whatever it holds, so that times are step numbers."""
    ones = np.ones(workload.flags.max_num_batched_tokens + 1)
    return StepTimeModel(
        decode_s=ones,
        mixed_s=ones,
        sequence_s=0.0,
        kv_s=0.0,
        window_kv_s=0.0,
        attention_s=0.0,
        window_attention_s=0.0,
        prefill_request_s=0.0,
        host_s=0.0,
        host_sequence_s=0.0,
        sync_s=0.0,
        request_overhead_s=0.0,
        window_tokens=0,
    )


def unit_world(workload: ScheduleWorkload) -> World:
    """The kernel's tables for one replica under unit steps."""
    model, flags, requests = unit_steps(workload), workload.flags, workload.by_arrival
    return make_world(
        engine=engine_settings(
            max_num_seqs=flags.max_num_seqs,
            max_num_batched_tokens=flags.max_num_batched_tokens,
            block_size=flags.block_size,
            num_blocks=workload.usable_blocks,
            window_tokens=0,
            least_outstanding=False,
            closed_loop=False,
        ),
        coefficients=model.coefficients(),
        decode_s=model.decode_s,
        mixed_s=model.mixed_s,
        arrival_s=np.array([float(request.arrival_step) for request in requests]),
        prompt_tokens=np.array([request.prompt_length_tokens for request in requests]),
        output_tokens=np.array([workload.output_tokens(request) for request in requests]),
        workload=np.zeros(len(requests), dtype=np.int64),
        phase=np.full(len(requests), IN_WINDOW),
        workloads=1,
        replicas=1,
        released=len(requests),
    )


def cached_tokens(world: World) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Tokens of each request that are in the cache when the pending step ends; one replica."""
    steps = world.ints[0, STEP_COUNT] + (world.ints[0, PENDING_TOKENS] > 0)
    cached = world.ri[:, COMPUTED] + np.where(world.ri[:, STATE] == DECODE, steps, 0)
    return np.asarray(cached, dtype=np.int64)


def running_list(world: World) -> Iterator[int]:
    """Rows of the running requests, in order of admission."""
    q = int(world.ints[0, RUN_HEAD])
    while q >= 0:
        yield q
        q = int(world.ri[q, NEXT])
