"""What one run is given, ready for any of the three tellings of the simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simulator.engine import EngineConfig
from simulator.prefix_blocks import SharedBlocks
from simulator.recorded_blocks import RecordedBlocks
from simulator.scheduler_settings import SchedulerSettings
from simulator.steptime import StepTimeModel
from simulator.workload import RequestStream

__all__ = ["NOTHING_CAN_START", "Routing", "RunInputs", "SimulationError", "Window"]

Routing = Literal["round_robin", "least_outstanding"]


class SimulationError(RuntimeError):
    """The simulator broke one of its own rules: a defect, never a result."""


NOTHING_CAN_START = (
    "requests wait, nothing is in flight and nothing can start: vLLM would wait for ever. A step must hold a token and "
    "its drafts (max_num_batched_tokens), the cache a whole request"
)
"""What is said of an engine that is stuck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Which arrivals are judged: those in [start_s, end_s). Earlier ones warm up, later ones keep the load on."""

    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunInputs:
    """A stream, the engines that serve it, and what of it is judged."""

    stream: RequestStream
    engine: EngineConfig
    settings: SchedulerSettings
    model: StepTimeModel
    replicas: int
    window: Window
    phase: NDArray[np.int64]
    """(N,) index into PHASES."""
    least_outstanding: bool
    drain: bool
    in_lockstep: bool
    warm_prefix_cache: bool = False
    """Replicas start with the documents of the stream in their caches, those asked for most often last."""

    @property
    def closed(self) -> bool:
        return self.stream.concurrency is not None

    @property
    def released(self) -> int:
        """Requests whose arrival is known beforehand."""
        count = len(self.stream)
        return count if self.stream.concurrency is None else min(self.stream.concurrency, count)

    @property
    def engine_arrival_s(self) -> NDArray[np.float64]:
        """(N,) arrival in the engine, behind the front end."""
        return self.stream.arrival_s + self.model.request_overhead_s

    @property
    def countable(self) -> bool:
        """Whether the counting kernel may try: see `SchedulerSettings.countable`."""
        engine, stream = self.engine, self.stream
        return (
            self.settings.countable
            and engine.data_parallel_size == 1
            and engine.max_num_queued_reqs is None
            and engine.max_num_queued_tokens is None
            and stream.max_tokens is None
        )

    def shared_blocks(self) -> SharedBlocks | RecordedBlocks | None:
        """What requests have in common; None where nobody looks or nothing is shared."""
        stream = self.stream
        if self.settings.enable_prefix_caching and stream.prefix_ids is not None:
            assert stream.prefix_block_tokens is not None
            return RecordedBlocks.of(
                prompt_tokens=stream.prompt_tokens,
                prefix_ids=stream.prefix_ids,
                prefix_block_tokens=stream.prefix_block_tokens,
                block_size=self.settings.block_size,
                document=stream.document,
                document_tokens=stream.document_tokens,
            )
        if not self.settings.enable_prefix_caching or stream.document is None or stream.document_tokens is None:
            return None
        return SharedBlocks.of(
            total_tokens=stream.prompt_tokens + stream.output_tokens,
            document=stream.document,
            document_tokens=np.minimum(stream.document_tokens, stream.prompt_tokens),
            block_size=self.settings.block_size,
        )

    @property
    def starts_warm(self) -> bool:
        """Whether caches hold the documents at the start. Left out with sliding windows."""
        return self.warm_prefix_cache and self.settings.sliding_windows == (0,)

    def window_span(self, end_s: float) -> tuple[float, float]:
        """The judged stretch of time: as asked, or the whole run."""
        if np.isfinite(self.window.start_s) and np.isfinite(self.window.end_s):
            return self.window.start_s, self.window.end_s
        span_s = self.stream.span_s if self.stream.span_s > 0 else end_s  # not so in a closed loop (NaN), a burst at 0
        return 0.0, max(span_s, end_s) if self.closed else span_s
