"""A run of the full kernel, from the inputs of a run to its checked log."""

from __future__ import annotations

import numpy as np

from simulator.block_pool import load_documents
from simulator.conservation import check_full_conservation
from simulator.full_kernel import run_full_kernel
from simulator.full_tables import (
    AREA,
    AREA_LAST,
    ARRIVAL,
    BATCH_PEAK,
    CACHED,
    DECODE_BUSY,
    DISCARDED_TOKENS,
    EMITTED,
    ENDED,
    ERROR,
    FINISH,
    FINISHED,
    FIRST_TOKEN,
    ITL_MAX,
    KV_PEAK,
    NEXT_REQUEST,
    PHASE,
    PREEMPTED,
    PREEMPTIONS,
    PREFILL_BUSY,
    PROMPT,
    RANK,
    REJECTED,
    RUNNING,
    SCHEDULED,
    SCHEDULED_TOKENS,
    STATE,
    STOPPED,
    STUCK,
    WAIT_COUNT,
    WINDOW_LEFT,
    FullWorld,
    make_full_world,
)
from simulator.log import ReplicaTimes, RequestLog
from simulator.run_inputs import NOTHING_CAN_START, RunInputs, SimulationError
from simulator.tables import ITL_EDGES_S

__all__ = ["play_full"]


def play_full(inputs: RunInputs) -> RequestLog:
    """Play the run with `full_kernel.run_full_kernel`. Under data parallelism a replica of the log is a rank."""
    stream, model, engine = inputs.stream, inputs.model, inputs.engine
    arrival_s, shared = inputs.engine_arrival_s, inputs.shared_blocks()
    world = make_full_world(
        settings=inputs.settings,
        coefficients=model.coefficients(),
        decode_s=model.decode_s,
        mixed_s=model.mixed_s,
        step_window_tokens=model.window_tokens,
        arrival_s=arrival_s,
        prompt_tokens=stream.prompt_tokens,
        output_tokens=stream.output_tokens,
        max_tokens=stream.max_tokens,
        priority=stream.priority,
        workload=stream.workload.astype(np.int64),
        phase=inputs.phase,
        contents=shared,
        accepted=stream.accepted,
        workloads=len(stream.workload_names),
        replicas=inputs.replicas,
        released=inputs.released,
        least_outstanding=inputs.least_outstanding,
        closed_loop=inputs.closed,
        data_parallel_size=engine.data_parallel_size,
        in_lockstep=inputs.in_lockstep,
        max_num_queued_reqs=engine.max_num_queued_reqs,
        max_num_queued_tokens=engine.max_num_queued_tokens,
    )
    if shared is not None and inputs.starts_warm:
        load_documents(world.pool, shared.warm(len(world.contents)))
    run_full_kernel(world, np.inf if inputs.drain or inputs.closed else float(arrival_s[-1]))
    if world.totals[ERROR] == STUCK:
        raise SimulationError(NOTHING_CAN_START)
    if world.totals[ERROR]:
        raise SimulationError(f"the full kernel stopped with error {int(world.totals[ERROR])} (see full_tables.ERROR)")
    log = _read(world, inputs)
    check_full_conservation(log, world=world, request_overhead_s=model.request_overhead_s)
    return log


def _read(world: FullWorld, inputs: RunInputs) -> RequestLog:
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
    sent_s = rf[:, ARRIVAL] - inputs.model.request_overhead_s if inputs.closed else stream.arrival_s[:arrived]
    num_blocks = inputs.settings.num_blocks
    begun = rf[:, SCHEDULED] < end_s  # what is planned ahead has not
    steps = world.engine_ints[:, ENDED]
    return RequestLog(
        workload_names=stream.workload_names,
        workload=stream.workload[:arrived].astype(np.int64),
        phase=ri[:, PHASE].copy(),
        arrival_s=sent_s,
        sent_s=sent_s,
        scheduled_s=np.where(begun, rf[:, SCHEDULED], np.nan),
        first_token_s=rf[:, FIRST_TOKEN].copy(),
        finish_s=rf[:, FINISH].copy(),
        prompt_tokens=ri[:, PROMPT].copy(),
        cached_tokens=np.where(begun, ri[:, CACHED], 0),
        output_tokens=ri[:, EMITTED].copy(),
        status=np.where(state == FINISHED, 0, np.where(state == REJECTED, 2, 3)),
        replica=ri[:, RANK].copy(),
        preemptions=ri[:, PREEMPTIONS].copy(),
        itl_max_s=rf[:, ITL_MAX].copy(),
        itl_edges_s=ITL_EDGES_S,
        itl_counts=world.itl_counts,
        end_s=end_s,
        window_s=inputs.window_span(end_s),
        window_complete=int(totals[WINDOW_LEFT]) == 0,
        replica_times=ReplicaTimes(
            prefill_s=floats[:, PREFILL_BUSY].copy(),
            decode_s=floats[:, DECODE_BUSY].copy(),
            in_system_s=floats[:, AREA] + (ints[:, RUNNING] + ints[:, WAIT_COUNT]) * (end_s - floats[:, AREA_LAST]),
            steps=np.repeat(steps, len(ints) // len(steps)),
            scheduled_tokens=ints[:, SCHEDULED_TOKENS].copy(),
            discarded_tokens=ints[:, DISCARDED_TOKENS].copy(),
            preemptions=ints[:, PREEMPTED].copy(),
            batch_peak=ints[:, BATCH_PEAK].copy(),
            kv_peak_fraction=ints[:, KV_PEAK] / num_blocks,
            kv_blocks_held=num_blocks - world.pool.free,
        ),
    )
