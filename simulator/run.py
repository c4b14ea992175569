"""One run: a request stream, an engine configuration, a number of replicas, in; a checked `RequestLog`, out.

A kernel does the work: the counting one where a batch can be described by counts, the full one otherwise and where
somebody is preempted who would find his own blocks again. `backend="reference"` plays the same run in SimPy. Every run
is checked for conservation of requests, tokens and KV blocks and for Little's identity before anybody sees a number
from it (design 5).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simulator.counted_run import play_counted
from simulator.engine import EngineConfig, scheduler_settings
from simulator.full_run import play_full
from simulator.log import RequestLog
from simulator.reference_run import play_reference
from simulator.run_inputs import Routing, RunInputs, SimulationError, Window
from simulator.step_observer import StepObserver
from simulator.steptime import StepTimeModel
from simulator.tables import IN_WINDOW, RUNOUT, WARMUP
from simulator.workload import RequestStream

__all__ = ["Backend", "Routing", "SimulationError", "Window", "simulate"]

Backend = Literal["kernel", "full-kernel", "reference"]


def simulate(
    stream: RequestStream,
    *,
    engine: EngineConfig,
    model: StepTimeModel,
    num_blocks: int,
    replicas: int,
    window: Window | None = None,
    routing: Routing = "least_outstanding",
    drain: bool = True,
    backend: Backend = "kernel",
    sliding_windows: tuple[int, ...] = (0,),
    in_lockstep: bool = False,
    warm_prefix_cache: bool = False,
    observer: StepObserver | None = None,
) -> RequestLog:
    """Run the stream on `replicas` engines of `num_blocks` KV blocks each.

    An open loop ends before the first arrival after the window's last finish; when the stream ends earlier, the
    replicas work off what is left if `drain`, else the run ends with the last arrival. Without a window every request
    is judged. `sliding_windows` are vLLM's KV cache groups, which share the blocks. `in_lockstep`: data-parallel ranks
    wait for each other at every step, as those of mixture-of-experts models do. `warm_prefix_cache`: replicas have
    served the stream's documents before, so they start with them in their caches. Only the reference can be observed.
    """
    if observer is not None and backend != "reference":
        raise ValueError("only the reference shows its steps to an observer")
    longest_tokens = int((stream.prompt_tokens + stream.output_tokens).max())
    if longest_tokens > engine.max_model_len:  # streams are cut to it when they are drawn
        raise ValueError(f"a request of {longest_tokens} tokens is longer than max_model_len {engine.max_model_len}")
    if stream.concurrency is not None or window is None:
        window = Window(start_s=-np.inf, end_s=np.inf)
    inputs = RunInputs(
        stream=stream,
        engine=engine,
        settings=scheduler_settings(engine, num_blocks=num_blocks, sliding_windows=sliding_windows),
        model=model if engine.async_scheduling else model.not_overlapped(),
        replicas=replicas,
        window=window,
        phase=_phases(stream, window),
        least_outstanding=routing == "least_outstanding",
        drain=drain,
        in_lockstep=in_lockstep,
        warm_prefix_cache=warm_prefix_cache,
    )
    if backend == "reference":
        return play_reference(inputs, observer)
    if backend == "kernel" and inputs.countable:
        log = play_counted(inputs)
        if log is not None:
            return log
    return play_full(inputs)


def _phases(stream: RequestStream, window: Window) -> NDArray[np.int64]:
    if stream.concurrency is not None:
        return np.full(len(stream), IN_WINDOW)
    before, inside = stream.arrival_s < window.start_s, stream.arrival_s < window.end_s
    return np.select([before, inside], [WARMUP, IN_WINDOW], RUNOUT)
