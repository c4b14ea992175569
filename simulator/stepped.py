"""The scheduler without a clock: three tellings that can be called step by step, as vLLM's engine core calls its own.

`drive` is the loop of `v1/engine/core.py: EngineCore`; what it drives is the reference's `Scheduler` or the full
kernel's. The counting kernel has no call per step: `counted_steps.py` looks at it from outside.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np

from simulator import full_tables
from simulator.full_kernel import enter_step, plan_step, take_step
from simulator.full_tables import make_full_world
from simulator.prefix_blocks import block_contents
from simulator.rows import Rows
from simulator.schedule_workload import ScheduleWorkload
from simulator.scheduler import Batch, Scheduler
from simulator.scheduler_settings import SchedulerSettings
from simulator.sequence import Sequence
from simulator.tables import COEFFICIENTS, IN_WINDOW

__all__ = ["ScheduledStep", "SteppedEngine", "SteppedFullKernel", "SteppedReference", "drive", "settings_of"]


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
