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
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from hardware_profiles.errors import InputError
from simulator import full_tables
from simulator.full_kernel import enter_step, plan_step, take_step
from simulator.full_tables import make_full_world
from simulator.kernel import run_kernel
from simulator.prefix_blocks import block_contents
from simulator.rows import Rows
from simulator.schedule_workload import ScheduleWorkload, load_schedule_workload
from simulator.scheduler import Batch, Scheduler
from simulator.scheduler_settings import SchedulerSettings
from simulator.sequence import Sequence
from simulator.steptime import StepTimeModel
from simulator.tables import (
    COEFFICIENTS,
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


class SteppedEngine(Protocol):
    """An engine without a clock: the oracle's loop drives it call by call."""

    @property
    def outstanding(self) -> int: ...

    def add(self, row: int) -> None: ...

    def schedule(self) -> tuple[list[tuple[int, int]], list[int], int]:
        """(request row, tokens) in order, rows preempted, free blocks."""
        ...

    def take_output(self) -> None:
        """The oldest step in flight has ended."""
        ...


def drive(workload: ScheduleWorkload, engine: SteppedEngine) -> Iterator[ScheduledStep]:
    """Call an engine as `v1/engine/core.py: EngineCore.step` (or `step_with_batch_queue`) calls vLLM's scheduler."""
    requests = workload.by_arrival
    depth = 2 if workload.flags.async_scheduling else 1
    step = arrived = in_flight = 0
    while arrived < len(requests) or engine.outstanding or in_flight:
        due = arrived < len(requests) and requests[arrived].arrival_step <= step
        if engine.outstanding or due:
            while arrived < len(requests) and requests[arrived].arrival_step <= step:
                engine.add(arrived)
                arrived += 1
            scheduled, preempted, free_blocks = engine.schedule()
            yield ScheduledStep(
                step=step,
                scheduled=tuple((requests[row].id, tokens) for row, tokens in scheduled),
                preempted=tuple(sorted(requests[row].id for row in preempted)),
                free_blocks=free_blocks,
            )
            in_flight += 1
            step += 1
            if in_flight < depth and (scheduled or engine.outstanding):
                continue  # filling the line of steps comes before waiting for an output
        elif not in_flight:
            step = max(step, requests[arrived].arrival_step)
            continue
        engine.take_output()
        in_flight -= 1


class SteppedReference:
    """`Scheduler` itself."""

    def __init__(self, workload: ScheduleWorkload) -> None:
        contents = contents_of(workload)
        content_rows = contents.lists() if contents is not None else [()] * len(workload.requests)
        self.sequences = [
            Sequence(
                index=row,
                arrival_s=0.0,
                prompt_tokens=request.prompt_length_tokens,
                output_tokens=workload.output_tokens(request),
                max_tokens=request.max_tokens,
                workload=0,
                phase=IN_WINDOW,
                priority=request.priority,
                contents=content_rows[row],
                accepted=request.accepted,
            )
            for row, request in enumerate(workload.by_arrival)
        ]
        self.scheduler = Scheduler(settings_of(workload))
        self.batches: deque[Batch] = deque()

    @property
    def outstanding(self) -> int:
        return self.scheduler.outstanding

    def add(self, row: int) -> None:
        self.scheduler.add(self.sequences[row])

    def schedule(self) -> tuple[list[tuple[int, int]], list[int], int]:
        batch = self.scheduler.schedule()
        self.batches.append(batch)
        scheduled = [(entry.sequence.index, entry.tokens) for entry in batch.scheduled]
        return scheduled, [sequence.index for sequence in batch.preempted], self.scheduler.free_blocks

    def take_output(self) -> None:
        self.scheduler.take_output(self.batches.popleft())


def reference_steps(workload: ScheduleWorkload) -> Iterator[ScheduledStep]:
    """What `scheduler.Scheduler` schedules."""
    return drive(workload, SteppedReference(workload))


def settings_of(workload: ScheduleWorkload) -> SchedulerSettings:
    """The workload's flags as the scheduler reads them."""
    flags = workload.flags
    return SchedulerSettings(
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        block_size=flags.block_size,
        num_blocks=workload.usable_blocks,
        max_model_len=flags.max_model_len,
        enable_chunked_prefill=flags.enable_chunked_prefill,
        long_prefill_token_threshold=flags.long_prefill_token_threshold,
        long_prefill_token_threshold_adaptive=flags.long_prefill_token_threshold_adaptive,
        watermark=flags.watermark,
        max_num_active_seqs=flags.max_num_active_seqs,
        priority_policy=flags.scheduling_policy == "priority",
        scheduler_reserve_full_isl=flags.scheduler_reserve_full_isl,
        async_scheduling=flags.async_scheduling,
        enable_prefix_caching=flags.enable_prefix_caching,
        num_speculative_tokens=flags.drafts_per_step,
        speculative_lookahead=flags.lookahead_tokens > 0,
        sliding_windows=tuple(window or 0 for window in workload.sliding_windows),
    )


def contents_of(workload: ScheduleWorkload) -> Rows | None:
    """What the full blocks of each request hold, in order of arrival; None where nobody looks."""
    if not workload.flags.enable_prefix_caching:
        return None
    return block_contents(map(workload.token_ids, workload.by_arrival), workload.flags.block_size)


class SteppedFullKernel:
    """The full kernel's scheduler, called step by step."""

    def __init__(self, workload: ScheduleWorkload) -> None:
        requests = workload.by_arrival
        ones = np.ones(workload.flags.max_num_batched_tokens + 1)
        self.world = make_full_world(
            settings=settings_of(workload),
            coefficients=np.zeros(COEFFICIENTS),
            decode_s=ones,
            mixed_s=ones,
            step_window_tokens=0,
            arrival_s=np.zeros(len(requests)),
            prompt_tokens=np.array([request.prompt_length_tokens for request in requests]),
            output_tokens=np.array([workload.output_tokens(request) for request in requests]),
            max_tokens=np.array([request.max_tokens for request in requests]),
            priority=np.array([request.priority for request in requests]),
            workload=np.zeros(len(requests), dtype=np.int64),
            phase=np.full(len(requests), IN_WINDOW),
            contents=contents_of(workload),
            accepted=Rows.of([request.accepted for request in requests]),
            workloads=1,
            replicas=1,
            released=len(requests),
            least_outstanding=False,
            closed_loop=False,
        )

    @property
    def outstanding(self) -> int:
        return int(self.world.ints[0, full_tables.RUNNING] + self.world.ints[0, full_tables.WAIT_COUNT])

    def add(self, row: int) -> None:
        enter_step(self.world, row)

    def schedule(self) -> tuple[list[tuple[int, int]], list[int], int]:
        world = self.world
        before = world.ri[:, full_tables.PREEMPTIONS].copy()
        slot = (world.engine_ints[0, full_tables.OLDER] + world.engine_ints[0, full_tables.ROUNDS]) & 1
        plan_step(world)
        batch = world.batch[0, slot, : world.batch_count[0, slot]]
        scheduled = [(int(row[full_tables.REQ]), int(row[full_tables.TOKENS])) for row in batch]
        preempted = np.flatnonzero(world.ri[:, full_tables.PREEMPTIONS] > before).tolist()
        return scheduled, preempted, int(world.pool.free[0])

    def take_output(self) -> None:
        take_step(self.world)


def full_kernel_steps(workload: ScheduleWorkload) -> Iterator[ScheduledStep]:
    """What `full_kernel` schedules."""
    return drive(workload, SteppedFullKernel(workload))


def kernel_steps(workload: ScheduleWorkload) -> Iterator[ScheduledStep]:
    """What the kernel schedules that a run with these flags would take."""
    settings = settings_of(workload)
    counts_do = settings.countable and not settings.async_scheduling and not settings.enable_prefix_caching
    ends_known = all(request.eos_after is None for request in workload.requests)
    return counted_steps(workload) if counts_do and ends_known else full_kernel_steps(workload)


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


ENGINES: dict[str, Callable[[ScheduleWorkload], Iterator[ScheduledStep]]] = {
    "reference": reference_steps,
    "kernel": kernel_steps,
    "full-kernel": full_kernel_steps,
}
"""The tellings of the scheduler, by name."""


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


def main(arguments: list[str] | None = None) -> int:
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
