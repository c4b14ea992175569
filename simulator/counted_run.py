"""A run of the counting kernel, from the inputs of a run to its checked log."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.block_pool import load_documents
from simulator.conservation import check_conservation
from simulator.kernel import run_kernel
from simulator.log import ReplicaTimes, RequestLog
from simulator.run_inputs import RunInputs, SimulationError
from simulator.tables import (
    AREA,
    AREA_LAST,
    ARRIVAL,
    BATCH_PEAK,
    CACHED,
    DECODE,
    DECODE_BUSY,
    DISCARDED_TOKENS,
    EMITTED,
    ERROR,
    FINISH,
    FINISHED,
    FIRST_TOKEN,
    FREE_BLOCKS,
    ITL_EDGES_S,
    ITL_MAX,
    JOINED_STEP,
    KV_PEAK,
    NEEDS_FULL_KERNEL,
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
    SCHEDULED,
    SCHEDULED_TOKENS,
    STACK_COUNT,
    STALL_STACK_FULL,
    STATE,
    STEP_COUNT,
    STOPPED,
    WINDOW_LEFT,
    World,
    engine_settings,
    make_world,
)

__all__ = ["play_counted"]


def play_counted(inputs: RunInputs) -> RequestLog | None:
    """Play the run with `kernel.run_kernel`; None where counts are not enough, and the full kernel must play it."""
    stream, model, settings = inputs.stream, inputs.model, inputs.settings
    arrival_s, shared = inputs.engine_arrival_s, inputs.shared_blocks()
    world = make_world(
        engine=engine_settings(
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            block_size=settings.block_size,
            num_blocks=settings.num_blocks,
            window_tokens=model.window_tokens,
            least_outstanding=inputs.least_outstanding,
            closed_loop=inputs.closed,
            two_in_flight=settings.async_scheduling,
            named=settings.enable_prefix_caching,
        ),
        coefficients=model.coefficients(),
        decode_s=model.decode_s,
        mixed_s=model.mixed_s,
        arrival_s=arrival_s,
        prompt_tokens=stream.prompt_tokens,
        output_tokens=stream.output_tokens,
        workload=stream.workload.astype(np.int64),
        phase=inputs.phase,
        workloads=len(stream.workload_names),
        replicas=inputs.replicas,
        released=inputs.released,
        contents=shared,
    )
    if shared is not None and inputs.starts_warm:
        load_documents(world.pool, shared.warm(len(world.contents)))
    run_kernel(world, np.inf if inputs.drain or inputs.closed else float(arrival_s[-1]))
    if world.totals[ERROR] in (NEEDS_FULL_KERNEL, STALL_STACK_FULL):
        return None
    if world.totals[ERROR]:
        raise SimulationError(f"the kernel stopped with error {int(world.totals[ERROR])} (see tables.ERROR)")
    log = _read(world, inputs)
    check_conservation(log, num_blocks=settings.num_blocks, request_overhead_s=model.request_overhead_s, world=world)
    return log


def _read(world: World, inputs: RunInputs) -> RequestLog:
    totals, ints, floats, stream = world.totals, world.ints, world.floats, inputs.stream
    arrived = int(totals[NEXT_REQUEST])
    ri, rf = world.ri[:arrived], world.rf[:arrived]
    state = ri[:, STATE]
    if totals[STOPPED]:
        end_s = float(world.rf[arrived, ARRIVAL])
    elif inputs.drain or inputs.closed:
        end_s = float(np.nanmax(rf[:, FINISH])) if bool((state == FINISHED).any()) else float(rf[-1, ARRIVAL])
    else:
        end_s = float(rf[-1, ARRIVAL])
    emitted = ri[:, EMITTED] + np.where(state == DECODE, ints[ri[:, REPLICA], STEP_COUNT] - ri[:, JOINED_STEP], 0)
    sent_s = rf[:, ARRIVAL] - inputs.model.request_overhead_s if inputs.closed else stream.arrival_s[:arrived]
    return RequestLog(
        workload_names=stream.workload_names,
        workload=stream.workload[:arrived].astype(np.int64),
        phase=ri[:, PHASE].copy(),
        arrival_s=sent_s,
        sent_s=sent_s,
        scheduled_s=rf[:, SCHEDULED].copy(),
        first_token_s=rf[:, FIRST_TOKEN].copy(),
        finish_s=rf[:, FINISH].copy(),
        prompt_tokens=ri[:, PROMPT].copy(),
        cached_tokens=ri[:, CACHED].copy(),
        output_tokens=emitted,
        status=np.where(state == FINISHED, 0, np.where(state == REJECTED, 2, 3)),
        replica=ri[:, REPLICA].copy(),
        preemptions=ri[:, PREEMPTIONS].copy(),
        itl_max_s=_longest_gaps_s(world, arrived),
        itl_edges_s=ITL_EDGES_S,
        itl_counts=world.itl_counts,
        end_s=end_s,
        window_s=inputs.window_span(end_s),
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
