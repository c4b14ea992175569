"""What every engine step schedules, for a workload by steps: the lines that vLLM's own scheduler is compared with.

    python -m simulator.schedule_trace workload.json --engine reference
    {"step": 0, "scheduled": [["a", 16]], "preempted": [], "free_blocks": 398}

`scheduled` is ordered as vLLM orders it (running requests, then admitted ones); `free_blocks` is counted after
scheduling and without the null block. Nothing is decided here: `Replica.step` is called step by step, or the kernel is
run under steps of one second and looked at in the middle of each. Steps in which the engine holds no request are not
printed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from hardware_profiles.errors import InputError
from simulator.kernel import run_kernel
from simulator.reference import ReferenceFleet
from simulator.reference import Sequence as EngineSequence
from simulator.schedule_workload import ScheduleWorkload, load_schedule_workload
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
    ROUND_ROBIN,
    RUN_HEAD,
    STATE,
    STEP_COUNT,
    World,
    make_world,
)

__all__ = ["ENGINES", "ScheduledStep", "kernel_steps", "main", "reference_steps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledStep:
    """One call of the scheduler."""

    step: int
    """Its number; steps are counted while the engine is idle, too."""
    scheduled: tuple[tuple[str, int], ...]
    """(request, tokens) in the order of scheduling."""
    preempted: tuple[str, ...]
    """Requests that lost their blocks, sorted by name."""
    free_blocks: int
    """KV blocks left after scheduling."""

    def line(self) -> str:
        """As the oracle prints it."""
        return json.dumps(asdict(self))


def reference_steps(workload: ScheduleWorkload) -> Iterator[ScheduledStep]:
    """Call the reference's `Replica.step` and `finish_step` in turn. Its clock stands still: a step has no duration."""
    requests = workload.by_arrival
    sequences = [
        EngineSequence(
            index=index,
            arrival_s=0.0,
            prompt_tokens=request.prompt_length_tokens,
            output_tokens=workload.output_tokens(request),
            workload=0,
            phase=IN_WINDOW,
        )
        for index, request in enumerate(requests)
    ]
    fleet = ReferenceFleet(
        model=unit_steps(workload),
        max_num_seqs=workload.flags.max_num_seqs,
        max_num_batched_tokens=workload.flags.max_num_batched_tokens,
        block_size=workload.flags.block_size,
        num_blocks=workload.usable_blocks,
        replicas=1,
        least_outstanding=False,
        sequences=sequences,
        workloads=1,
        released=len(sequences),
        closed_loop=False,
    )
    replica = fleet.replicas[0]
    step = arrived = 0
    while arrived < len(sequences) or replica.outstanding:
        if not replica.outstanding:
            step = max(step, requests[arrived].arrival_step)
        while arrived < len(sequences) and requests[arrived].arrival_step <= step:
            replica.enqueue(sequences[arrived])
            arrived += 1
        before = list(replica.running)
        scheduled = replica.step()
        yield ScheduledStep(
            step=step,
            scheduled=tuple((requests[sequence.index].id, tokens) for sequence, tokens in scheduled),
            preempted=tuple(sorted(requests[s.index].id for s in before if s not in replica.running)),
            free_blocks=replica.free_blocks,
        )
        replica.finish_step(scheduled, 1.0)
        step += 1


def kernel_steps(workload: ScheduleWorkload) -> Iterator[ScheduledStep]:
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


ENGINES: dict[str, Callable[[ScheduleWorkload], Iterator[ScheduledStep]]] = {
    "reference": reference_steps,
    "kernel": kernel_steps,
}
"""The two tellings of the scheduler, by name."""


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
        engine=np.array(
            [
                flags.max_num_seqs,
                flags.max_num_batched_tokens,
                flags.block_size,
                workload.usable_blocks,
                model.window_tokens,
                ROUND_ROBIN,
                0,
            ]
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the steps of a workload file; 0, or 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m simulator.schedule_trace", description=__doc__.splitlines()[0])
    parser.add_argument("workload", type=Path, help="JSON file: flags, num_blocks, requests")
    parser.add_argument("--engine", choices=list(ENGINES), default="reference", help="which telling of the scheduler")
    chosen = parser.parse_args(arguments)
    try:
        workload = load_schedule_workload(chosen.workload)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        for step in ENGINES[chosen.engine](workload):
            print(step.line())
    except BrokenPipeError:  # the reader of a pipe has gone; nothing is wrong
        sys.stderr.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
