"""Random small runs, as the differential tests draw them, and what it means that two tellings agree on one.

Small caches, small budgets and short gaps, so that chunking, preemption, full batches and ties of routing all happen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from simulator.engine import EngineConfig
from simulator.log import STATUSES, RequestLog
from simulator.rows import Rows
from simulator.run import Backend, Window, simulate
from simulator.step_observer import StepObserver
from simulator.steptime import StepTimeModel
from simulator.workload import RequestStream

__all__ = ["MAX_TOKENS", "RandomRun", "assert_equal_logs", "assert_equal_replica_times", "cut_in_flight"]

MAX_TOKENS = 96
"""Most tokens that the step times reach."""


def step_model(seed: int, *, window_tokens: int, overhead_s: float) -> StepTimeModel:
    rng = np.random.default_rng(seed)
    tokens = np.arange(MAX_TOKENS + 1, dtype=np.float64)
    return StepTimeModel(
        decode_s=0.01 + float(0.001 * rng.random()) * tokens,
        mixed_s=0.012 + float(0.002 * rng.random()) * tokens,
        sequence_s=1e-4 * rng.random(),
        kv_s=1e-5 * rng.random(),
        window_kv_s=1e-5 * rng.random() if window_tokens else 0.0,
        attention_s=1e-6 * rng.random(),
        window_attention_s=1e-6 * rng.random() if window_tokens else 0.0,
        prefill_request_s=1e-3 * rng.random(),
        host_s=0.02 * rng.random(),
        host_sequence_s=1e-3 * rng.random(),
        sync_s=1e-3 * rng.random(),
        request_overhead_s=overhead_s,
        window_tokens=window_tokens,
    )


def stream_of(seed: int, *, count: int, rate_rps: float, workloads: int, concurrency: int | None) -> RequestStream:
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1 / rate_rps, count))
    if count > 6:  # simultaneous arrivals
        arrival_s[3:6] = arrival_s[3]
    if concurrency is not None:
        arrival_s = np.where(np.arange(count) < concurrency, 0.0, np.nan)
    return RequestStream(
        arrival_s=arrival_s,
        prompt_tokens=rng.integers(1, 120, count),
        output_tokens=rng.integers(1, 40, count),
        workload=rng.integers(0, workloads, count).astype(np.int32),
        workload_names=tuple(f"w{i}" for i in range(workloads)),
        span_s=float(np.nanmax(arrival_s)),
        clipped_fraction=(0.0,) * workloads,
        concurrency=concurrency,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomRun:
    """One run with every feature that the full kernel follows. What is not written here is drawn from the seed."""

    seed: int
    count: int
    rate_rps: float
    concurrency: int | None = None
    """Requests in flight in a closed loop; None = arrivals in time."""
    overhead_s: float = 0.0
    judged: bool = True
    """A window judges half of the stream and ends the run."""
    drain: bool = True
    """What is left when the stream ends is worked off; otherwise the run ends with the last arrival."""
    replicas: int = 1
    routing: Literal["round_robin", "least_outstanding"] = "least_outstanding"
    data_parallel_size: int = 1
    in_lockstep: bool = False
    max_num_seqs: int
    budget: int
    block_size: int
    cache_tokens: int
    """Tokens that the KV blocks of one cache group hold; requests have up to 158."""
    step_window_tokens: int = 0
    """Sliding window of the step times, which know nothing of KV cache groups."""
    async_scheduling: bool = False
    enable_prefix_caching: bool = False
    documents: bool = False
    """Most prompts begin with one of three documents."""
    warm: bool = False
    """Caches hold them at the start."""
    chunked_prefill: bool = True
    threshold: int = 0
    adaptive: bool = False
    watermark: float = 0.0
    free_seats: int | None = None
    """Seats that `max_num_active_seqs` leaves empty; None = the flag is not given."""
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    priorities: bool = False
    drafts: int = 0
    drafter: str = "ngram"
    windows: tuple[int, ...] = (0,)
    """Sliding windows of the KV cache groups; an EAGLE drafter has none."""
    open_end: bool = False
    """`max_tokens` above the answer: the engine cannot know where it ends."""

    @property
    def groups(self) -> tuple[int, ...]:
        return (0,) if self.drafts and self.drafter == "eagle" else self.windows

    @property
    def num_blocks(self) -> int:
        return -(-self.cache_tokens // self.block_size) * len(self.groups)

    @property
    def engine(self) -> EngineConfig:
        active = None if self.free_seats is None else max(1, self.max_num_seqs - self.free_seats)
        return EngineConfig(
            tensor_parallel_size=1,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.budget if self.chunked_prefill else MAX_TOKENS,
            max_model_len=256 if self.chunked_prefill else MAX_TOKENS,
            block_size=self.block_size,
            enable_chunked_prefill=self.chunked_prefill,
            long_prefill_token_threshold=self.threshold,
            long_prefill_token_threshold_adaptive=self.adaptive,
            watermark=self.watermark,
            max_num_active_seqs=active,
            max_num_queued_reqs=self.max_num_queued_reqs,
            max_num_queued_tokens=self.max_num_queued_tokens,
            scheduling_policy="priority" if self.priorities else "fcfs",
            async_scheduling=self.async_scheduling,
            enable_prefix_caching=self.enable_prefix_caching,
            data_parallel_size=self.data_parallel_size,
            num_speculative_tokens=self.drafts,
            speculative_method=self.drafter,
        )

    @property
    def stream(self) -> RequestStream:
        rng, count = np.random.default_rng([self.seed, 1]), self.count
        stream = stream_of(self.seed, count=count, rate_rps=self.rate_rps, workloads=2, concurrency=self.concurrency)
        if not self.chunked_prefill:  # a prompt and its answer must fit one step
            stream = replace(stream, prompt_tokens=np.minimum(stream.prompt_tokens, 50))
        if self.documents:
            stream = replace(stream, document=rng.integers(-1, 3, count), document_tokens=rng.integers(0, 80, count))
        if self.priorities:
            stream = replace(stream, priority=rng.integers(0, 3, count))
        if self.open_end:
            stream = replace(stream, max_tokens=stream.output_tokens + rng.integers(0, 3, count))
        if self.drafts:
            accepted = [rng.integers(0, 4, int(tokens)).tolist() for tokens in stream.output_tokens]
            stream = replace(stream, accepted=Rows.of(accepted))
        return stream

    def play(self, backend: Backend, observer: StepObserver | None = None) -> RequestLog:
        stream = self.stream
        window = Window(start_s=0.2 * stream.span_s, end_s=0.7 * stream.span_s)
        return simulate(
            stream,
            engine=self.engine,
            model=step_model(self.seed, window_tokens=self.step_window_tokens, overhead_s=self.overhead_s),
            num_blocks=self.num_blocks,
            replicas=self.replicas,
            routing=self.routing,
            window=window if self.judged and self.concurrency is None else None,
            drain=self.drain,
            sliding_windows=self.groups,
            in_lockstep=self.in_lockstep,
            warm_prefix_cache=self.warm,
            backend=backend,
            observer=observer,
        )


def cut_in_flight(log: RequestLog, *, async_scheduling: bool) -> bool:
    """Whether a run was cut with two steps in flight. The reference and the full kernel have scheduled the step after
    the one that runs by then. The counting kernel has not, and does not know whom that step preempts or admits."""
    return async_scheduling and bool((log.status == STATUSES.index("unfinished")).any())


def assert_equal_logs(one: RequestLog, other: RequestLog, *, step_in_flight: bool = False) -> None:
    """All that a log says of requests, to the last bit; `step_in_flight`: one of them is cut and counted."""
    for column in (
        "arrival_s",
        "sent_s",
        "scheduled_s",
        "first_token_s",
        "finish_s",
        "itl_max_s",
        "prompt_tokens",
        "cached_tokens",
        "output_tokens",
        "workload",
        "phase",
        "status",
        "replica",
        "preemptions",
        "itl_counts",
    ):
        if column in ("preemptions", "cached_tokens") and step_in_flight:
            continue
        np.testing.assert_array_equal(getattr(one, column), getattr(other, column), err_msg=column)
    assert one.window_complete == other.window_complete
    assert one.end_s == other.end_s
    assert one.window_s == other.window_s


def assert_equal_replica_times(one: RequestLog, other: RequestLog, *, step_in_flight: bool) -> None:
    """All that the kernels say of replicas: counts exactly, seconds to rounding, for they add in different orders.

    `step_in_flight`: what depends on the step that only the full kernel has scheduled is left out.
    """
    times, others = one.replica_times, other.replica_times
    assert times is not None and others is not None
    counts, seconds = ["steps"], ["in_system_s"]
    if not step_in_flight:
        counts += ["scheduled_tokens", "discarded_tokens", "preemptions"]
        counts += ["batch_peak", "kv_blocks_held", "kv_peak_fraction"]
        seconds += ["prefill_s", "decode_s"]
    for column in counts:
        np.testing.assert_array_equal(getattr(times, column), getattr(others, column), err_msg=column)
    for column in seconds:
        np.testing.assert_allclose(
            getattr(times, column), getattr(others, column), rtol=1e-9, atol=1e-12, err_msg=column
        )
