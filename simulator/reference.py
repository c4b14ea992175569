"""The same simulation in SimPy and plain Python: slow, readable, and the authority when the kernel differs.

Read `Replica.step` first: it is vLLM's scheduler, top to bottom. One SimPy process per replica repeats it; one process
brings the requests; the router is a function. `kernel.py` computes the same with counts instead of lists, and
`tests/differential` demands that both write the same log to the last bit.

Followed: vLLM 0.32 `v1/core/sched/scheduler.py: Scheduler.schedule` (first-come-first-served, chunked prefill,
`scheduler_reserve_full_isl`), `Scheduler._preempt_request`, `v1/core/kv_cache_manager.py: allocate_slots`.
Left out: as in `kernel.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from math import isnan, nan

import numpy as np
import simpy

from simulator.steptime import StepTimeModel
from simulator.tables import IN_WINDOW, ITL_EDGES_S

__all__ = ["ReferenceFleet", "Sequence"]


@dataclass(slots=True, eq=False)
class Sequence:
    """One request on its way through an engine."""

    index: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    workload: int
    phase: int
    computed_tokens: int = 0
    """Tokens whose keys and values are cached."""
    emitted_tokens: int = 0
    """Answer tokens that the reader has."""
    scheduled_s: float = nan
    first_token_s: float = nan
    last_token_s: float = nan
    finish_s: float = nan
    itl_max_s: float = nan
    preemptions: int = 0
    replica: int = -1
    rejected: bool = False
    decoding: bool = False
    """Its last token was given at the end of the step before, so it gives one at every step."""

    @property
    def known_tokens(self) -> int:
        """Prompt and answer tokens so far: what must be cached before the next token can be sampled."""
        return self.prompt_tokens + self.emitted_tokens


def wait_until(env: simpy.Environment, time_s: float) -> Generator[simpy.Event, None, None]:
    """Wait until exactly time_s. SimPy adds a delay to its clock; the sum is exact from half the time on (Sterbenz)."""
    while env.now < time_s:
        delay_s = time_s - env.now
        yield env.timeout(delay_s if env.now >= 0.5 * time_s else 0.5 * delay_s)


class Turn(simpy.Event):
    """At one moment arrivals come first, then the replicas in the order of their numbers."""

    def __init__(self, env: simpy.Environment, number: int) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        env.schedule(self, priority=simpy.events.EventPriority(2 + number))


def blocks(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


@dataclass(slots=True, eq=False)
class Replica:
    """One engine: a queue, a running list, a pool of KV blocks."""

    fleet: ReferenceFleet
    number: int
    free_blocks: int
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    wake: simpy.Event | None = None
    steps: int = 0

    @property
    def outstanding(self) -> int:
        return len(self.waiting) + len(self.running)

    def enqueue(self, sequence: Sequence) -> None:
        sequence.replica = self.number
        self.waiting.append(sequence)
        if self.wake is not None and not self.wake.triggered:
            self.wake.succeed()

    def run(self) -> Generator[simpy.Event, None, None]:
        env = self.fleet.env
        while True:
            if self.outstanding == 0:
                self.wake = env.event()
                yield self.wake
                self.wake = None
            yield Turn(env, self.number)
            scheduled = self.step()
            if not scheduled:  # everything was preempted: plan again, with an empty cache
                continue
            step_s = self.duration_s(scheduled)
            yield from wait_until(env, env.now + step_s)
            yield Turn(env, self.number)
            self.finish_step(scheduled, step_s)

    def step(self) -> list[tuple[Sequence, int]]:
        """Plan one step: which sequences, how many tokens each (vLLM `Scheduler.schedule`)."""
        engine = self.fleet
        scheduled: list[tuple[Sequence, int]] = []
        budget = engine.max_num_batched_tokens
        preempted = False

        # First the running requests, in order of admission.
        index = 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            tokens = min(sequence.known_tokens - sequence.computed_tokens, budget)
            need = self.blocks_for(sequence, tokens)
            while need > self.free_blocks:
                victim = self.running.pop()
                self.preempt(victim)
                preempted = True
                if victim is sequence:
                    break
            else:
                self.take(sequence, tokens, scheduled)
                budget -= tokens
                index += 1
                continue
            break

        # Then the queue, unless somebody had to be thrown out.
        while not preempted and budget > 0 and self.waiting and len(self.running) < engine.max_num_seqs:
            sequence = self.waiting[0]
            if blocks(sequence.known_tokens, engine.block_size) > self.free_blocks:
                break  # `scheduler_reserve_full_isl`: the whole sequence must fit; only the chunk's blocks are taken
            tokens = min(sequence.known_tokens, budget)
            self.running.append(self.waiting.popleft())
            if isnan(sequence.scheduled_s):
                sequence.scheduled_s = self.fleet.env.now
            self.take(sequence, tokens, scheduled)
            budget -= tokens
        self.steps += 1 if scheduled else 0
        return scheduled

    def blocks_for(self, sequence: Sequence, tokens: int) -> int:
        size = self.fleet.block_size
        return blocks(sequence.computed_tokens + tokens, size) - blocks(sequence.computed_tokens, size)

    def take(self, sequence: Sequence, tokens: int, scheduled: list[tuple[Sequence, int]]) -> None:
        self.free_blocks -= self.blocks_for(sequence, tokens)
        scheduled.append((sequence, tokens))

    def release(self, sequence: Sequence) -> None:
        self.free_blocks += blocks(sequence.computed_tokens, self.fleet.block_size)

    def preempt(self, sequence: Sequence) -> None:
        """vLLM `_preempt_request`: blocks freed, everything to be computed again, back to the head of the queue."""
        self.release(sequence)
        sequence.computed_tokens = 0
        sequence.decoding = False
        sequence.preemptions += 1
        self.waiting.appendleft(sequence)

    def duration_s(self, scheduled: list[tuple[Sequence, int]]) -> float:
        """Seconds of the step: its counts, handed to `StepTimeModel.step_s`."""
        window = self.fleet.model.window_tokens
        decodes = prefills = prefill_tokens = sampled = context = window_context = 0
        pairs = window_pairs = 0.0
        for sequence, tokens in scheduled:
            before = sequence.computed_tokens
            sampled += before + tokens == sequence.known_tokens
            if sequence.decoding:
                decodes += 1
                context += before + 1
                window_context += min(before + 1, window)
            else:
                prefills += 1
                prefill_tokens += tokens
                pairs += tokens * (before + 0.5 * tokens)
                if window:
                    inside = max(0, min(tokens, window - before))
                    window_pairs += inside * (before + 0.5 * inside) + float(tokens - inside) * window
        return self.fleet.model.step_s(
            decodes=decodes,
            prefill_tokens=prefill_tokens,
            prefills=prefills,
            sampled=sampled,
            context=context,
            window_context=window_context,
            pairs=pairs,
            window_pairs=window_pairs,
        )

    def finish_step(self, scheduled: list[tuple[Sequence, int]], step_s: float) -> None:
        """Tokens are given at the end of the step; finished sequences leave, decodes first, then new prompts."""
        now_s = self.fleet.env.now
        done: list[Sequence] = []
        for sequence, tokens in sorted(scheduled, key=lambda pair: not pair[0].decoding):
            sequence.computed_tokens += tokens
            if sequence.computed_tokens < sequence.known_tokens:
                continue
            if sequence.emitted_tokens == 0:
                sequence.first_token_s = now_s
            else:
                self.fleet.note_gap(sequence, step_s if sequence.decoding else now_s - sequence.last_token_s)
            sequence.decoding = True
            sequence.emitted_tokens += 1
            sequence.last_token_s = now_s
            if sequence.emitted_tokens == sequence.output_tokens:
                sequence.finish_s = now_s
                self.running.remove(sequence)
                self.release(sequence)
                done.append(sequence)
        self.fleet.finished(done, now_s)


class ReferenceFleet:
    """Replicas behind a router, and the stream that feeds them."""

    def __init__(
        self,
        *,
        model: StepTimeModel,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        block_size: int,
        num_blocks: int,
        replicas: int,
        least_outstanding: bool,
        sequences: list[Sequence],
        workloads: int,
        released: int,
        closed_loop: bool,
    ) -> None:
        self.env = simpy.Environment()
        self.model = model
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.least_outstanding = least_outstanding
        self.sequences = sequences
        self.closed_loop = closed_loop
        self.released = released
        self.arrived = 0
        self.stopped = False
        self.window_requests = self.window_left = sum(s.phase == IN_WINDOW for s in sequences)
        self.itl_counts = np.zeros((workloads, len(ITL_EDGES_S) + 1), dtype=np.int64)
        self.replicas = [Replica(fleet=self, number=i, free_blocks=num_blocks) for i in range(replicas)]
        self.pointer = 0

    def run(self) -> None:
        """Play the whole stream; an open loop ends before the first arrival after the window's last finish."""
        for replica in self.replicas:
            self.env.process(replica.run())
        source = self.env.process(self.closed_source() if self.closed_loop else self.open_source())
        self.env.run(until=source)
        if not self.stopped:
            self.env.run()

    def open_source(self) -> Generator[simpy.Event, None, None]:
        for sequence in self.sequences:
            yield from wait_until(self.env, sequence.arrival_s)
            if self.window_requests and self.window_left == 0:
                self.stopped = True
                return
            self.arrive(sequence)

    def closed_source(self) -> Generator[simpy.Event, None, None]:
        yield from wait_until(self.env, self.sequences[0].arrival_s)
        for sequence in self.sequences[: self.released]:
            self.arrive(sequence)

    def arrive(self, sequence: Sequence) -> None:
        self.arrived += 1
        # All but the last token of the answer must fit: that one is never read again.
        if blocks(sequence.prompt_tokens + sequence.output_tokens - 1, self.block_size) > self.num_blocks:
            sequence.rejected = True
            self.window_left -= sequence.phase == IN_WINDOW
            if self.closed_loop:  # its sender learns so at once and sends the next
                self.release_next(self.env.now)
            return
        self.route().enqueue(sequence)

    def route(self) -> Replica:
        """Round robin, or the fewest requests in the replica; ties go to the next one in turn."""
        turn = self.replicas[self.pointer :] + self.replicas[: self.pointer]
        best = min(turn, key=lambda replica: replica.outstanding) if self.least_outstanding else turn[0]
        self.pointer = (best.number + 1) % len(self.replicas)
        return best

    def finished(self, done: list[Sequence], now_s: float) -> None:
        """Requests that ended; in a closed loop each releases the next one after the front end's delay."""
        for sequence in done:
            self.window_left -= sequence.phase == IN_WINDOW
        for _ in done if self.closed_loop else ():
            self.release_next(now_s)

    def release_next(self, now_s: float) -> None:
        if self.released < len(self.sequences):
            sequence = self.sequences[self.released]
            sequence.arrival_s = now_s + self.model.request_overhead_s
            self.released += 1
            self.env.process(self.arrive_later(sequence))

    def arrive_later(self, sequence: Sequence) -> Generator[simpy.Event, None, None]:
        yield from wait_until(self.env, sequence.arrival_s)
        self.arrive(sequence)

    def note_gap(self, sequence: Sequence, gap_s: float) -> None:
        if not sequence.itl_max_s >= gap_s:
            sequence.itl_max_s = gap_s
        if sequence.phase == IN_WINDOW:
            self.itl_counts[sequence.workload, int(np.searchsorted(ITL_EDGES_S, gap_s, side="right"))] += 1
