"""vLLM's V1 scheduler in plain Python: which request gets how many tokens in the next step. It knows no clock.

Read `Scheduler.schedule` top to bottom: it is vLLM 0.32 `v1/core/sched/scheduler.py: Scheduler.schedule` with the names
of this project; `Scheduler.take_output` is `update_from_output`, and what asynchronous scheduling adds
(`async_scheduler.py: AsyncScheduler`) is marked. `tests/differential` holds every step of it against vLLM's own class.

Followed: chunked prefill on and off, `max_num_seqs`, `max_num_active_seqs`, `max_num_batched_tokens`,
`long_prefill_token_threshold` and its adaptive floor, the admission check of the whole sequence, the watermark,
preemption with recomputation, priorities, asynchronous scheduling with two steps in flight, prefix caching, sliding
windows, speculative decoding with k drafts.
Left out: pipeline parallelism, KV connectors, encoder inputs, LoRA limits, structured output, streaming input, pooling
models, draft counts that depend on the batch, `prefill_schedule_interval`, drafters that need query slots of their own
(a separate draft model, parallel drafting).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from simulator.kv_blocks import KVBlocks
from simulator.scheduler_settings import SchedulerSettings
from simulator.sequence import Sequence

__all__ = ["Batch", "Scheduled", "Scheduler"]


@dataclass(slots=True, kw_only=True)
class Scheduled:
    """What one request does in one step."""

    sequence: Sequence
    tokens: int
    """Tokens computed, drafts included."""
    drafts: int
    """How many of them are drafts."""
    padded: bool = False
    """The drafts are dummies that vLLM added to make all decodes alike; none of them is accepted."""
    before_tokens: int = 0
    """Its tokens in the cache before the step."""
    decode: bool = False
    """It had sampled before: not a prompt chunk."""
    samples: bool = False
    """It knows no more tokens than are computed now, so it gives one (or more, with drafts) at the end of the step."""
    given: int = 0
    """Answer tokens that its reader got when the step ended."""
    last: bool = False
    """The request ended with them."""


@dataclass(slots=True, kw_only=True)
class Batch:
    """One step as scheduled."""

    scheduled: list[Scheduled] = field(default_factory=list)
    """Running requests in order, then those admitted."""
    preempted: list[Sequence] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(entry.tokens for entry in self.scheduled)


class Waiting:
    """The queue: preempted requests at its head, or everybody by priority and order of arrival."""

    def __init__(self, priority_policy: bool) -> None:
        self.line: deque[Sequence] = deque()
        self.heap: list[tuple[int, int, Sequence]] = []
        self.priority_policy = priority_policy

    def __len__(self) -> int:
        return len(self.line) + len(self.heap)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.line
        yield from (entry[2] for entry in sorted(self.heap))

    @property
    def head(self) -> Sequence:
        return self.heap[0][2] if self.priority_policy else self.line[0]

    def add(self, sequence: Sequence, *, at_head: bool = False) -> None:
        if self.priority_policy:
            heapq.heappush(self.heap, (sequence.priority, sequence.index, sequence))
        elif at_head:
            self.line.appendleft(sequence)
        else:
            self.line.append(sequence)

    def pop(self) -> Sequence:
        return heapq.heappop(self.heap)[2] if self.priority_policy else self.line.popleft()

    def remove(self, sequence: Sequence) -> None:
        if self.priority_policy:
            self.heap.remove((sequence.priority, sequence.index, sequence))
            heapq.heapify(self.heap)
        else:
            self.line.remove(sequence)


class Scheduler:
    """A queue, a running list and a pool of KV blocks."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.blocks = KVBlocks(settings)
        self.waiting = Waiting(settings.priority_policy)
        self.running: list[Sequence] = []

    @property
    def outstanding(self) -> int:
        return len(self.waiting) + len(self.running)

    @property
    def free_blocks(self) -> int:
        return len(self.blocks.free)

    def add(self, sequence: Sequence) -> None:
        self.waiting.add(sequence)

    def schedule(self) -> Batch:
        """Plan one step: which requests, how many tokens each."""
        settings = self.settings
        budget = settings.max_num_batched_tokens
        cap_tokens = settings.long_prefill_cap_tokens(self.outstanding)
        scheduled: dict[Sequence, Scheduled] = {}
        preempted: list[Sequence] = []
        chunk_among_running = False

        # ---- 1. The running requests, in order. ----
        index = 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            tokens = self.tokens_wanted(sequence)
            if 0 < cap_tokens < tokens:
                tokens = cap_tokens
            tokens = min(tokens, budget, settings.max_model_len - sequence.computed_tokens - 1)
            if tokens <= 0:
                index += 1
                continue
            while not self.blocks.allocate(sequence, tokens):
                victim = self.victim()
                position = self.running.index(victim)
                del self.running[position]
                if position < index:
                    index -= 1
                undone = scheduled.pop(victim, None)  # priorities: it may have had its turn in this step already
                if undone is not None:
                    budget += undone.tokens
                self.preempt(victim)
                preempted.append(victim)
                if victim is sequence:
                    break
            if sequence in preempted:
                break
            drafts = max(0, sequence.computed_tokens + tokens - sequence.known_tokens - sequence.placeholders)
            scheduled[sequence] = Scheduled(sequence=sequence, tokens=tokens, drafts=min(drafts, sequence.drafts))
            sequence.drafts = 0
            chunk_among_running |= sequence.prefilling
            budget -= tokens
            index += 1

        # ---- 2. The queue, unless somebody had to be thrown out. ----
        any_running = bool(scheduled)
        while not preempted and budget > 0 and self.waiting and len(self.running) < settings.seats:
            sequence = self.waiting.head
            hit = self.blocks.find(sequence)
            hit_tokens = hit.tokens if hit else 0
            tokens = sequence.known_tokens - hit_tokens
            drafts = 0
            if tokens == 1 and settings.num_speculative_tokens and not chunk_among_running:
                # Nothing but decodes so far: vLLM pads a request that needs one token to the width of the others.
                wide = 1 + settings.num_speculative_tokens
                if (any_running or hit_tokens) and hit_tokens + wide + 1 <= settings.max_model_len:
                    if wide > budget:
                        break
                    tokens, drafts = wide, settings.num_speculative_tokens
            if 0 < cap_tokens < tokens:
                tokens = cap_tokens
            if not settings.enable_chunked_prefill and tokens > budget:
                break
            tokens = min(tokens, budget)
            if not self.blocks.allocate(sequence, tokens, hit=hit, admitting=True, others_run=bool(self.running)):
                break
            self.running.append(self.waiting.pop())
            if sequence.preemptions == 0:
                sequence.cached_tokens = hit_tokens
            sequence.computed_tokens = hit_tokens
            scheduled[sequence] = Scheduled(sequence=sequence, tokens=tokens, drafts=drafts, padded=drafts > 0)
            budget -= tokens

        for entry in scheduled.values():
            self.advance(entry)
        return Batch(scheduled=list(scheduled.values()), preempted=preempted)

    def tokens_wanted(self, sequence: Sequence) -> int:
        """Tokens that a running request has not computed yet, drafts and answers in flight included."""
        computed = sequence.computed_tokens
        if sequence.placeholders and (
            computed + 2 - sequence.placeholders >= sequence.prompt_tokens + sequence.most_output_tokens
        ):
            return 0  # asynchronous scheduling: the step in flight gives its last token, whatever is refused
        return sequence.known_tokens + sequence.drafts + sequence.placeholders - computed

    def advance(self, entry: Scheduled) -> None:
        """Count the step as computed; what is refused later is taken back (`_update_after_schedule`)."""
        sequence = entry.sequence
        entry.before_tokens = sequence.computed_tokens
        entry.decode = sequence.decoding
        sequence.computed_tokens += entry.tokens
        sequence.in_flight_tokens += entry.tokens
        sequence.prefilling = sequence.computed_tokens < sequence.known_tokens + sequence.placeholders
        entry.samples = not sequence.prefilling
        if entry.samples:
            sequence.decoding = True
            if self.settings.async_scheduling:
                sequence.placeholders += 1 + entry.drafts
                sequence.drafts = self.settings.num_speculative_tokens

    def victim(self) -> Sequence:
        """Who gives way: the last of the running list, or the least urgent one."""
        if self.settings.priority_policy:
            return max(self.running, key=lambda sequence: (sequence.priority, sequence.index))
        return self.running[-1]

    def preempt(self, sequence: Sequence) -> None:
        """Blocks freed, everything to be computed again, back to the queue (`_preempt_request`)."""
        self.blocks.release(sequence)
        sequence.computed_tokens = 0
        sequence.drafts = 0
        # Asynchronous: the answer in flight still reaches the reader. It has arrived before the queue is looked at
        # again, since two steps at most are in flight and a step that preempts admits nobody.
        sequence.stale_tokens = sequence.in_flight_tokens
        sequence.placeholders = 0
        sequence.decoding = False
        sequence.preemptions += 1
        self.waiting.add(sequence, at_head=True)

    def take_output(self, batch: Batch) -> None:
        """The step has ended: tokens reach their readers, refused drafts are taken back, finished requests leave."""
        for entry in batch.scheduled:
            sequence = entry.sequence
            sequence.in_flight_tokens -= entry.tokens
            stale = sequence.stale_tokens > 0
            if stale:
                sequence.stale_tokens -= entry.tokens
            if sequence.finished or not entry.samples:
                continue
            accepted = 0
            if entry.drafts and not entry.padded:
                draws = sequence.accepted
                accepted = min(entry.drafts, draws[sequence.verified] if sequence.verified < len(draws) else 0)
                sequence.verified += 1
            if not stale:
                refused = entry.drafts - accepted
                sequence.computed_tokens -= refused
                if sequence.placeholders:
                    sequence.placeholders -= refused
            count = min(1 + accepted, sequence.output_tokens - sequence.emitted_tokens)
            sequence.emitted_tokens += count
            if self.settings.async_scheduling and not stale:
                sequence.placeholders -= count
                if self.settings.enable_prefix_caching:
                    self.blocks.register(sequence, sequence.computed_tokens - sequence.placeholders)
            sequence.finished = sequence.emitted_tokens == sequence.output_tokens
            if sequence.finished:
                self.leave(sequence)
            elif not self.settings.async_scheduling and not stale:
                sequence.drafts = self.settings.num_speculative_tokens
            entry.given, entry.last = count, sequence.finished

    def leave(self, sequence: Sequence) -> None:
        """A finished request frees its seat and its blocks; one that was preempted meanwhile leaves the queue."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self.blocks.release(sequence)
