"""One run: a request stream, an engine configuration, a number of replicas, in; a checked `RequestLog`, out.

The kernel does the work; `backend="reference"` plays the same run in SimPy. Every run is checked for conservation of
requests, tokens and KV blocks and for Little's identity before anybody sees a number from it (design 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simulator.conservation import check_conservation
from simulator.engine import EngineConfig
from simulator.kernel import run_kernel
from simulator.log import ReplicaTimes, RequestLog
from simulator.reference import ReferenceFleet, Sequence
from simulator.steptime import StepTimeModel
from simulator.tables import (
    AREA,
    AREA_LAST,
    ARRIVAL,
    BATCH_PEAK,
    DECODE,
    DECODE_BUSY,
    DISCARDED_TOKENS,
    EMITTED,
    ERROR,
    FINISH,
    FINISHED,
    FIRST_TOKEN,
    FREE_BLOCKS,
    IN_WINDOW,
    ITL_EDGES_S,
    ITL_MAX,
    JOINED_STEP,
    KV_PEAK,
    LEAST_OUTSTANDING,
    NEXT_REQUEST,
    NUM_BLOCKS,
    OUTSTANDING,
    PHASE,
    PREEMPTED,
    PREEMPTIONS,
    PREFILL_BUSY,
    PROMPT,
    REJECTED,
    REPLICA,
    ROUND_ROBIN,
    RUNOUT,
    SCHEDULED,
    SCHEDULED_TOKENS,
    STACK_COUNT,
    STATE,
    STEP_COUNT,
    STOPPED,
    WARMUP,
    WINDOW_LEFT,
    World,
    make_world,
)
from simulator.workload import RequestStream

__all__ = ["SimulationError", "Window", "simulate"]

Routing = Literal["round_robin", "least_outstanding"]


class SimulationError(RuntimeError):
    """The simulator broke one of its own rules: a defect, never a result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Which arrivals are judged: those in [start_s, end_s). Earlier ones warm up, later ones keep the load on."""

    start_s: float
    end_s: float


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
    backend: Literal["kernel", "reference"] = "kernel",
) -> RequestLog:
    """Run the stream on `replicas` engines of `num_blocks` KV blocks each.

    An open loop ends before the first arrival after the window's last finish; when the stream ends earlier, the
    replicas work off what is left if `drain`, else the run ends with the last arrival. Without a window every request
    is judged.
    """
    if stream.concurrency is not None or window is None:
        window = Window(start_s=-np.inf, end_s=np.inf)
    arrival_s = stream.arrival_s + model.request_overhead_s
    if stream.concurrency is not None:
        phase = np.full(len(stream), IN_WINDOW)
    else:
        before, inside = stream.arrival_s < window.start_s, stream.arrival_s < window.end_s
        phase = np.select([before, inside], [WARMUP, IN_WINDOW], RUNOUT)
    released = len(stream) if stream.concurrency is None else min(stream.concurrency, len(stream))
    settings = np.array(
        [
            engine.max_num_seqs,
            engine.max_num_batched_tokens,
            engine.block_size,
            num_blocks,
            model.window_tokens,
            LEAST_OUTSTANDING if routing == "least_outstanding" else ROUND_ROBIN,
            int(stream.concurrency is not None),
        ],
        dtype=np.int64,
    )
    if backend == "reference":
        return _play_reference(stream, settings, model, replicas, arrival_s, phase, released, window)
    world = make_world(
        engine=settings,
        coefficients=model.coefficients(),
        decode_s=model.decode_s,
        mixed_s=model.mixed_s,
        arrival_s=arrival_s,
        prompt_tokens=stream.prompt_tokens,
        output_tokens=stream.output_tokens,
        workload=stream.workload.astype(np.int64),
        phase=phase,
        workloads=len(stream.workload_names),
        replicas=replicas,
        released=released,
    )
    run_kernel(world, np.inf if drain or stream.concurrency is not None else float(arrival_s[-1]))
    if world.totals[ERROR]:
        raise SimulationError(f"the kernel stopped with error {int(world.totals[ERROR])} (see tables.ERROR)")
    log = _read(world, stream, model, window, drain)
    check_conservation(log, num_blocks=num_blocks, request_overhead_s=model.request_overhead_s, world=world)
    return log


def _read(world: World, stream: RequestStream, model: StepTimeModel, window: Window, drain: bool) -> RequestLog:
    totals, ints, floats = world.totals, world.ints, world.floats
    arrived = int(totals[NEXT_REQUEST])
    ri, rf = world.ri[:arrived], world.rf[:arrived]
    state = ri[:, STATE]
    if totals[STOPPED]:
        end_s = float(world.rf[arrived, ARRIVAL])
    elif drain or stream.concurrency is not None:
        end_s = float(np.nanmax(rf[:, FINISH])) if bool((state == FINISHED).any()) else float(rf[-1, ARRIVAL])
    else:
        end_s = float(rf[-1, ARRIVAL])
    decoding = state == DECODE
    emitted = ri[:, EMITTED] + np.where(decoding, ints[ri[:, REPLICA], STEP_COUNT] - ri[:, JOINED_STEP], 0)
    closed = stream.concurrency is not None
    return RequestLog(
        workload_names=stream.workload_names,
        workload=stream.workload[:arrived].astype(np.int64),
        phase=ri[:, PHASE].copy(),
        arrival_s=rf[:, ARRIVAL] - model.request_overhead_s if closed else stream.arrival_s[:arrived],
        sent_s=rf[:, ARRIVAL] - model.request_overhead_s if closed else stream.arrival_s[:arrived],
        scheduled_s=rf[:, SCHEDULED].copy(),
        first_token_s=rf[:, FIRST_TOKEN].copy(),
        finish_s=rf[:, FINISH].copy(),
        prompt_tokens=ri[:, PROMPT].copy(),
        cached_tokens=np.zeros(arrived, dtype=np.int64),
        output_tokens=emitted,
        status=np.where(state == FINISHED, 0, np.where(state == REJECTED, 2, 3)),
        replica=ri[:, REPLICA].copy(),
        preemptions=ri[:, PREEMPTIONS].copy(),
        itl_max_s=_longest_gaps_s(world, arrived),
        itl_edges_s=ITL_EDGES_S,
        itl_counts=world.itl_counts,
        end_s=end_s,
        window_s=_window_span(window, stream, end_s),
        window_complete=int(totals[WINDOW_LEFT]) == 0,
        replica_times=ReplicaTimes(
            prefill_s=floats[:, PREFILL_BUSY].copy(),
            decode_s=floats[:, DECODE_BUSY].copy(),
            in_system_s=floats[:, AREA] + ints[:, OUTSTANDING] * (end_s - floats[:, AREA_LAST]),
            steps=ints[:, STEP_COUNT].copy(),
            scheduled_tokens=ints[:, SCHEDULED_TOKENS].copy(),
            discarded_tokens=ints[:, DISCARDED_TOKENS].copy(),
            preemptions=ints[:, PREEMPTED].copy(),
            batch_peak=ints[:, BATCH_PEAK].copy(),
            kv_peak_fraction=ints[:, KV_PEAK] / world.engine[NUM_BLOCKS],
            kv_blocks_held=world.engine[NUM_BLOCKS] - ints[:, FREE_BLOCKS],
        ),
    )


def _longest_gaps_s(world: World, arrived: int) -> NDArray[np.float64]:
    """Longest gap of each request; for those still decoding, the steps since they began are on the stall stack."""
    longest_s = world.rf[:arrived, ITL_MAX].copy()
    for q in np.flatnonzero(world.ri[:arrived, STATE] == DECODE):
        r = world.ri[q, REPLICA]
        count = world.ints[r, STACK_COUNT]
        later = np.searchsorted(world.stall_steps[r, :count], world.ri[q, JOINED_STEP], side="right")
        if later < count:
            longest_s[q] = np.fmax(longest_s[q], world.stall_s[r, later])
    return longest_s


def _window_span(window: Window, stream: RequestStream, end_s: float) -> tuple[float, float]:
    """The judged stretch of time: as asked, or the whole run."""
    if np.isfinite(window.start_s) and np.isfinite(window.end_s):
        return window.start_s, window.end_s
    span_s = stream.span_s if stream.span_s > 0 else end_s  # not so in a closed loop (NaN) and in a burst at 0
    return 0.0, max(span_s, end_s) if stream.concurrency is not None else span_s


def _play_reference(
    stream: RequestStream,
    settings: NDArray[np.int64],
    model: StepTimeModel,
    replicas: int,
    arrival_s: NDArray[np.float64],
    phase: NDArray[np.int64],
    released: int,
    window: Window,
) -> RequestLog:
    sequences = [
        Sequence(
            index=i,
            arrival_s=float(arrival_s[i]),
            prompt_tokens=int(stream.prompt_tokens[i]),
            output_tokens=int(stream.output_tokens[i]),
            workload=int(stream.workload[i]),
            phase=int(phase[i]),
        )
        for i in range(len(stream))
    ]
    closed = stream.concurrency is not None
    fleet = ReferenceFleet(
        model=model,
        max_num_seqs=int(settings[0]),
        max_num_batched_tokens=int(settings[1]),
        block_size=int(settings[2]),
        num_blocks=int(settings[3]),
        replicas=replicas,
        least_outstanding=bool(settings[5] == LEAST_OUTSTANDING),
        sequences=sequences,
        workloads=len(stream.workload_names),
        released=released,
        closed_loop=closed,
    )
    fleet.run()
    arrived = sequences[: fleet.arrived]
    finish_s = np.array([s.finish_s for s in arrived])
    ended_s = finish_s[~np.isnan(finish_s)]
    last_s = float(ended_s.max()) if len(ended_s) else arrived[-1].arrival_s
    end_s = sequences[fleet.arrived].arrival_s if fleet.stopped else last_s
    engine_arrival_s = np.array([s.arrival_s for s in arrived])
    sent_s = engine_arrival_s - model.request_overhead_s if closed else stream.arrival_s[: len(arrived)]
    return RequestLog(
        workload_names=stream.workload_names,
        workload=np.array([s.workload for s in arrived]),
        phase=np.array([s.phase for s in arrived]),
        arrival_s=sent_s,
        sent_s=sent_s,
        scheduled_s=np.array([s.scheduled_s for s in arrived]),
        first_token_s=np.array([s.first_token_s for s in arrived]),
        finish_s=finish_s,
        prompt_tokens=np.array([s.prompt_tokens for s in arrived]),
        cached_tokens=np.zeros(len(arrived), dtype=np.int64),
        output_tokens=np.array([s.emitted_tokens for s in arrived]),
        status=np.array([2 if s.rejected else 3 if np.isnan(s.finish_s) else 0 for s in arrived]),
        replica=np.array([s.replica for s in arrived]),
        preemptions=np.array([s.preemptions for s in arrived]),
        itl_max_s=np.array([s.itl_max_s for s in arrived]),
        itl_edges_s=ITL_EDGES_S,
        itl_counts=fleet.itl_counts,
        end_s=end_s,
        window_s=_window_span(window, stream, end_s),
        window_complete=fleet.window_left == 0,
    )
