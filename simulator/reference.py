"""The same simulation in SimPy and plain Python: slow, readable, and the authority when a kernel differs.

Read `scheduler.Scheduler.schedule` first: it is vLLM's scheduler, top to bottom, without a clock. Here is the clock:
one SimPy process per engine schedules steps and waits for their end (`Engine.run`), one process brings the requests,
the router is a function. `kernel.py` and `full_kernel.py` compute the same with arrays instead of lists, and
`tests/differential` demands that all write the same log to the last bit.

With asynchronous scheduling two steps are in flight (vLLM 0.32 `v1/engine/core.py: EngineCore.step_with_batch_queue`):
while a step runs, the next one has been scheduled already, so a new request waits a step longer. Data-parallel ranks
are engines behind one front end; where their layers wait for each other (mixture-of-experts models) they step together,
and a rank without work steps along (`DPEngineCoreProc.run_busy_loop`).

Left out: the millisecond that vLLM sleeps after a step that held nothing while requests wait (`run_busy_loop`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, field
from math import isnan

import numpy as np
import simpy

from simulator.scheduler import Batch, Scheduler
from simulator.scheduler_settings import SchedulerSettings
from simulator.sequence import Sequence
from simulator.step_observer import StepObserver
from simulator.steptime import StepTimeModel
from simulator.tables import IN_WINDOW, ITL_EDGES_S

__all__ = ["Rank", "ReferenceFleet"]


def wait_until(env: simpy.Environment, time_s: float) -> Generator[simpy.Event, None, None]:
    """Wait until exactly time_s. SimPy adds a delay to its clock; the sum is exact from half the time on (Sterbenz)."""
    while env.now < time_s:
        delay_s = time_s - env.now
        yield env.timeout(delay_s if env.now >= 0.5 * time_s else 0.5 * delay_s)


class Halted(Exception):
    """The observer has seen enough."""


class Turn(simpy.Event):
    """At one moment arrivals come first, then the engines in the order of their numbers."""

    def __init__(self, env: simpy.Environment, number: int) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        env.schedule(self, priority=simpy.events.EventPriority(2 + number))


@dataclass(slots=True, eq=False)
class Rank:
    """One scheduler with its KV blocks: a replica, or one of its data-parallel ranks."""

    number: int
    scheduler: Scheduler
    unfinished: int = 0
    """Requests that have not ended, as the front end counts them."""
    prefill_tokens: int = 0
    """Prompt tokens of those that have no token yet (`OutputProcessor.get_num_queued_tokens`)."""
    thrown_out: list[Sequence] = field(default_factory=list)
    """Preempted since the last step that an observer saw."""

    def load(self) -> float:
        """The front end's score of a rank (vLLM 0.32 `DPLBAsyncMPClient.get_core_engine_for_request`): the fewest win.

        vLLM reads queue lengths from a snapshot that is up to 100 ms old; here they are those of the moment.
        """
        settings, waiting = self.scheduler.settings, len(self.scheduler.waiting)
        used_fraction = 1.0 - self.scheduler.free_blocks / settings.num_blocks
        return self.unfinished + waiting * 6.0 * max(0.0, used_fraction - 0.5)


@dataclass(slots=True, kw_only=True)
class Round:
    """One step of an engine: the batch of each of its ranks, and when it ends."""

    batches: list[Batch]
    step_s: float
    start_s: float
    end_s: float
    number: int
    held: list[tuple[int, int, int]]
    """Waiting and running requests and free blocks of each rank, once it was scheduled."""

    @property
    def is_empty(self) -> bool:
        """Nothing is computed, and nobody lost his blocks, which might help the next one."""
        return not any(batch.scheduled or batch.preempted for batch in self.batches)


@dataclass(slots=True, eq=False)
class Engine:
    """Ranks that step together: mostly one."""

    fleet: ReferenceFleet
    number: int
    ranks: list[Rank]
    rounds: deque[Round] = field(default_factory=deque)
    gpu_free_s: float = 0.0
    steps: int = 0
    wake: simpy.Event | None = None

    @property
    def outstanding(self) -> int:
        return sum(rank.scheduler.outstanding for rank in self.ranks)

    def awake(self) -> None:
        if self.wake is not None and not self.wake.triggered:
            self.wake.succeed()

    def run(self) -> Generator[simpy.Event, None, None]:
        env = self.fleet.env
        depth = 2 if self.ranks[0].scheduler.settings.async_scheduling else 1
        while True:
            if not self.outstanding and not self.rounds:
                self.wake = env.event()
                yield self.wake
                self.wake = None
            yield Turn(env, self.number)
            # Filling the line of steps comes before waiting for an output.
            while self.outstanding and len(self.rounds) < depth:
                planned = self.plan()
                if planned.is_empty and all(other.is_empty for other in self.rounds):
                    raise RuntimeError("nothing is in flight and nothing can be scheduled: vLLM would wait for ever")
                self.rounds.append(planned)
            ended = self.rounds.popleft()
            if ended.end_s > env.now:
                yield from wait_until(env, ended.end_s)
                yield Turn(env, self.number)
            self.finish(ended)

    def plan(self) -> Round:
        """Schedule a step on every rank; it starts when the one before it has ended."""
        now_s = self.fleet.env.now
        batches = [rank.scheduler.schedule() for rank in self.ranks]
        busy = [self.duration_s(batch) for batch in batches if batch.scheduled]
        held = [(len(r.scheduler.waiting), len(r.scheduler.running), r.scheduler.free_blocks) for r in self.ranks]
        if not busy:  # everything was preempted, or waits for what is in flight
            return Round(batches=batches, step_s=0.0, start_s=now_s, end_s=now_s, number=self.steps, held=held)
        step_s = max(busy)
        start_s = max(now_s, self.gpu_free_s)
        for batch in batches:
            for entry in batch.scheduled:
                if isnan(entry.sequence.scheduled_s):
                    entry.sequence.scheduled_s = start_s
        self.gpu_free_s = start_s + step_s
        self.steps += 1
        end_s = self.gpu_free_s
        return Round(batches=batches, step_s=step_s, start_s=start_s, end_s=end_s, number=self.steps, held=held)

    def duration_s(self, batch: Batch) -> float:
        """Seconds of a batch: its counts, handed to `StepTimeModel.step_s`."""
        window = self.fleet.model.window_tokens
        decodes = decode_tokens = prefills = prefill_tokens = sampled = context = window_context = 0
        pairs = window_pairs = 0.0
        for entry in batch.scheduled:
            before, tokens = entry.before_tokens, entry.tokens
            if entry.samples:
                sampled += 1 + entry.drafts
            if entry.decode:
                decodes += 1
                decode_tokens += tokens
                context += before + tokens
                window_context += min(before + tokens, window)
            else:
                prefills += 1
                prefill_tokens += tokens
                pairs += tokens * (before + 0.5 * tokens)
                if window:
                    inside = max(0, min(tokens, window - before))
                    window_pairs += inside * (before + 0.5 * inside) + float(tokens - inside) * window
        return self.fleet.model.step_s(
            decodes=decodes,
            decode_tokens=decode_tokens,
            prefill_tokens=prefill_tokens,
            prefills=prefills,
            sampled=sampled,
            context=context,
            window_context=window_context,
            pairs=pairs,
            window_pairs=window_pairs,
        )

    def finish(self, ended: Round) -> None:
        """Tokens are given at the end of the step; finished sequences leave."""
        now_s = self.fleet.env.now
        done: list[Sequence] = []
        for rank, batch in zip(self.ranks, ended.batches, strict=True):
            rank.scheduler.take_output(batch)
            for entry in batch.scheduled:
                if not entry.given:
                    continue
                sequence = entry.sequence
                if isnan(sequence.first_token_s):
                    sequence.first_token_s = now_s
                    rank.prefill_tokens -= sequence.prompt_tokens
                else:
                    every_step = sequence.last_token_step == ended.number - 1
                    self.fleet.note_gap(sequence, ended.step_s if every_step else now_s - sequence.last_token_s)
                for _ in range(entry.given - 1):  # accepted drafts come with it
                    self.fleet.note_gap(sequence, 0.0)
                sequence.last_token_s = now_s
                sequence.last_token_step = ended.number
                if entry.last:
                    sequence.finish_s = now_s
                    rank.unfinished -= 1
                    done.append(sequence)
        self.show(ended)
        self.fleet.finished(done, now_s)

    def show(self, ended: Round) -> None:
        """Tell who watches of each rank that did something; those thrown out in empty steps come with the next one."""
        observer = self.fleet.observer
        if observer is None:
            return
        for rank, batch, (waiting, running, free_blocks) in zip(self.ranks, ended.batches, ended.held, strict=True):
            rank.thrown_out += batch.preempted
            if not batch.scheduled:
                continue
            go_on = observer.step(
                replica=rank.number,
                start_s=ended.start_s,
                end_s=ended.end_s,
                work=batch.scheduled,
                preempted=rank.thrown_out,
                waiting=waiting,
                running=running,
                free_blocks=free_blocks,
            )
            if not go_on:
                raise Halted
            rank.thrown_out = []


class ReferenceFleet:
    """Replicas behind a router, and the stream that feeds them."""

    def __init__(
        self,
        *,
        model: StepTimeModel,
        settings: SchedulerSettings,
        replicas: int,
        least_outstanding: bool,
        sequences: list[Sequence],
        workloads: int,
        released: int,
        closed_loop: bool,
        data_parallel_size: int = 1,
        in_lockstep: bool = False,
        max_num_queued_reqs: int | None = None,
        max_num_queued_tokens: int | None = None,
        drain: bool = True,
        observer: StepObserver | None = None,
    ) -> None:
        self.env = simpy.Environment()
        self.model = model
        self.settings = settings
        self.least_outstanding = least_outstanding
        self.sequences = sequences
        self.closed_loop = closed_loop
        self.drain = drain
        self.released = released
        self.max_num_queued_reqs = max_num_queued_reqs
        self.max_num_queued_tokens = max_num_queued_tokens
        self.observer = observer
        self.arrived = 0
        self.stopped = False
        self.window_requests = self.window_left = sum(s.phase == IN_WINDOW for s in sequences)
        self.itl_counts = np.zeros((workloads, len(ITL_EDGES_S) + 1), dtype=np.int64)
        ranks = [Rank(number=i, scheduler=Scheduler(settings)) for i in range(replicas * data_parallel_size)]
        self.replicas = [ranks[i : i + data_parallel_size] for i in range(0, len(ranks), data_parallel_size)]
        together = self.replicas if in_lockstep else [[rank] for rank in ranks]
        self.engines = [Engine(fleet=self, number=i, ranks=members) for i, members in enumerate(together)]
        self.engine_of = {rank: engine for engine in self.engines for rank in engine.ranks}
        self.pointer = 0
        self.first_rank = [0] * replicas

    def run(self) -> None:
        """Play the whole stream; an open loop ends before the first arrival after the window's last finish.

        Without `drain` it ends with its last arrival: steps that end at that moment do not end any more.
        """
        for engine in self.engines:
            self.env.process(engine.run())
        source = self.env.process(self.closed_source() if self.closed_loop else self.open_source())
        with suppress(Halted):
            self.env.run(until=source)
            if not self.stopped and (self.drain or self.closed_loop):
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
        fits = self.settings.fits_alone(
            prompt_tokens=sequence.prompt_tokens,
            output_tokens=sequence.output_tokens,
            open_end=sequence.most_output_tokens > sequence.output_tokens,
        )
        if not fits:  # vLLM answers 400
            self.turn_away(sequence)
            return
        number = self.route()
        if self.queue_is_full(self.replicas[number]):
            self.turn_away(sequence)
            return
        rank = self.choose_rank(number)
        sequence.replica = rank.number
        rank.unfinished += 1
        rank.prefill_tokens += sequence.prompt_tokens
        rank.scheduler.add(sequence)
        self.engine_of[rank].awake()

    def turn_away(self, sequence: Sequence) -> None:
        sequence.rejected = True
        self.window_left -= sequence.phase == IN_WINDOW
        if self.closed_loop:  # its sender learns so at once and sends the next
            self.release_next(self.env.now)

    def queue_is_full(self, replica: list[Rank]) -> bool:
        """The front end answers 503 (`v1/engine/async_llm.py: AsyncLLM.check_admission`)."""
        requests, tokens = self.max_num_queued_reqs, self.max_num_queued_tokens
        if requests is not None and sum(rank.unfinished for rank in replica) + 1 > requests:
            return True
        return tokens is not None and sum(rank.prefill_tokens for rank in replica) >= tokens

    def choose_rank(self, number: int) -> Rank:
        """The rank of a replica with the least load. The search starts one further with each request: ties go round."""
        ranks, start = self.replicas[number], self.first_rank[number]
        self.first_rank[number] = (start + 1) % len(ranks)
        return min([*ranks[start:], *ranks[:start]], key=Rank.load)

    def route(self) -> int:
        """Round robin, or the fewest requests in the replica; ties go to the next one in turn."""
        order: list[int] = [*range(self.pointer, len(self.replicas)), *range(self.pointer)]
        if self.least_outstanding:
            best = min(order, key=lambda i: sum(rank.unfinished for rank in self.replicas[i]))
        else:
            best = order[0]
        self.pointer = (best + 1) % len(self.replicas)
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
