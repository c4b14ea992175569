"""What must hold in every run, whatever the load: requests, tokens, token gaps and KV blocks are conserved, and
Little's identity.

The identity is not an approximation. The engine integrates the number of requests it holds while it runs; the log sums
how long each request was there. Both are the same quantity counted twice, so they agree to rounding (1e-9), in any run,
steady or not. A difference means a lost or doubled event, and raises: a number from a broken run is never shown.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulator import full_tables
from simulator.full_tables import FullWorld
from simulator.log import STATUSES, ReplicaTimes, RequestLog
from simulator.tables import (
    COMPUTED,
    DECODE,
    HIT_TOKENS,
    IN_WINDOW,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    NEXT_REQUEST,
    OUTPUT,
    OUTSTANDING,
    PENDING_TOKENS,
    PREFILL,
    REPLICA,
    STATE,
    STEP_COUNT,
    STEP_END,
    World,
)

__all__ = ["ConservationError", "check_conservation", "check_full_conservation"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TOLERANCE = 1e-9
FINISHED_STATUS = STATUSES.index("finished")


class ConservationError(RuntimeError):
    """A run lost or invented requests, tokens, blocks or time: a defect of the simulator."""


def check_conservation(log: RequestLog, *, num_blocks: int, request_overhead_s: float, world: World) -> None:
    """Raise `ConservationError` unless the books of a run of the counting kernel balance."""
    times = log.replica_times
    assert times is not None
    arrived = int(world.totals[NEXT_REQUEST])
    _check_requests(log, arrived=arrived, held=int(world.ints[:, OUTSTANDING].sum()))
    finished = log.status == FINISHED_STATUS

    ri = world.ri[:arrived]
    replica = world.ints[ri[:, REPLICA]]
    steps = replica[:, STEP_COUNT] + (replica[:, PENDING_TOKENS] > 0)
    running = [ri[:, STATE] == DECODE, ri[:, STATE] == PREFILL]
    cached = np.select(running, [ri[:, COMPUTED] + steps, ri[:, COMPUTED]], 0)
    useful = int((log.prompt_tokens[finished] + log.output_tokens[finished] - 1).sum()) + int(cached[~finished].sum())
    found = int(world.ints[:, HIT_TOKENS].sum())
    _check_tokens(computed=int(times.scheduled_tokens.sum() - times.discarded_tokens.sum()) + found, useful=useful)

    block_size = world.due.shape[1]
    held = int((-(-cached[~finished] // block_size)).sum())
    if world.pool.users.size:  # blocks are shared: each user counts
        _check_users(users=int(world.pool.users.sum()), tables=held)
        held = int((world.pool.users > 0).sum())
    _check_blocks(times, held=held, num_blocks=num_blocks)
    _check_ends(log, asked_tokens=ri[:, OUTPUT], request_overhead_s=request_overhead_s)
    last_s = np.where(np.isfinite(world.floats[:, STEP_END]), world.floats[:, STEP_END], 0.0)
    _check_limits(
        times,
        busy_until_s=np.maximum(last_s, log.end_s),
        planned_steps=world.ints[:, STEP_COUNT] + 1,
        budget=int(world.engine[MAX_NUM_BATCHED_TOKENS]),
        seats=int(world.engine[MAX_NUM_SEQS]),
    )
    _check_gaps(log)
    _check_little(log, request_overhead_s=request_overhead_s)


def check_full_conservation(log: RequestLog, *, world: FullWorld, request_overhead_s: float) -> None:
    """Raise `ConservationError` unless the books of a run of the full kernel balance.

    Tokens: what was scheduled or found in the prefix cache, less what preemptions and refused drafts undid, is what the
    requests hold or held when they ended. Blocks: those in use are those that somebody uses.
    """
    times = log.replica_times
    assert times is not None
    arrived = int(world.totals[full_tables.NEXT_REQUEST])
    held = int(world.ints[:, [full_tables.RUNNING, full_tables.WAIT_COUNT]].sum())
    _check_requests(log, arrived=arrived, held=held)
    gained = world.ints[:, [full_tables.SCHEDULED_TOKENS, full_tables.HIT_TOKENS]].sum()
    lost = world.ints[:, [full_tables.DISCARDED_TOKENS, full_tables.REFUSED_TOKENS]].sum()
    _check_tokens(computed=int(gained - lost), useful=int(world.ri[:, full_tables.COMPUTED].sum()))
    running = world.ri[:, full_tables.STATE] == full_tables.ACTIVE
    held_blocks = int((world.held - world.left)[running].sum())
    if world.pool.users.size:  # blocks are shared: each user counts
        _check_users(users=int(world.pool.users.sum()), tables=held_blocks)
        held_blocks = int((world.pool.users > 0).sum())
    _check_blocks(times, held=held_blocks, num_blocks=int(world.settings[full_tables.NUM_BLOCKS]))
    asked_tokens = world.ri[:arrived, full_tables.OUTPUT]
    _check_ends(log, asked_tokens=asked_tokens, request_overhead_s=request_overhead_s)
    together = len(world.ints) // len(world.engine_ints)
    _check_limits(
        times,
        busy_until_s=np.repeat(np.maximum(world.engine_floats[:, full_tables.GPU_FREE], log.end_s), together),
        planned_steps=np.repeat(world.engine_ints[:, full_tables.STEPS], together),
        budget=int(world.settings[full_tables.BUDGET]),
        seats=int(world.settings[full_tables.SEATS]),
    )
    _check_gaps(log)
    _check_little(log, request_overhead_s=request_overhead_s)


def _check_requests(log: RequestLog, *, arrived: int, held: int) -> None:
    if len(log) != arrived:
        raise ConservationError(f"{arrived} requests arrived, {len(log)} are in the log")
    ends = [int((log.status == index).sum()) for index in range(len(STATUSES))]
    if sum(ends) != arrived:
        raise ConservationError(f"{arrived} requests arrived, {sum(ends)} have a known status")
    if held != ends[STATUSES.index("unfinished")]:
        unfinished = ends[STATUSES.index("unfinished")]
        raise ConservationError(f"the replicas hold {held} requests, the log has {unfinished} unfinished ones")


def _check_tokens(*, computed: int, useful: int) -> None:
    if computed != useful:
        raise ConservationError(f"{computed} tokens were computed and kept, the requests account for {useful}")


def _check_users(*, users: int, tables: int) -> None:
    if users != tables:
        raise ConservationError(f"KV blocks have {users} users, the running requests' tables have {tables} entries")


def _check_ends(log: RequestLog, *, asked_tokens: Ints, request_overhead_s: float) -> None:
    """Whoever finished has the whole answer, and nobody's times run backwards."""
    finished = log.status == FINISHED_STATUS
    if bool((log.output_tokens != asked_tokens)[finished].any()):
        raise ConservationError("a finished request has not the tokens that it was to have")
    stages = [log.arrival_s + request_overhead_s - TOLERANCE, log.scheduled_s, log.first_token_s, log.finish_s]
    for earlier, later in pairwise(stages):
        if bool((later < earlier).any()):  # NaN, not yet, is neither
            raise ConservationError("a request was scheduled, answered or finished before the step before that")
    one_token = finished & (asked_tokens == 1)
    if bool((log.first_token_s != log.finish_s)[one_token].any()):
        raise ConservationError("a request with one token got it twice")


def _check_limits(times: ReplicaTimes, *, busy_until_s: Floats, planned_steps: Ints, budget: int, seats: int) -> None:
    """No replica works two steps at a time, or more in a step than its flags allow."""
    if bool((times.prefill_s + times.decode_s > busy_until_s * (1.0 + TOLERANCE) + TOLERANCE).any()):
        raise ConservationError("a replica was busy for longer than the run lasted")
    if bool((times.scheduled_tokens > planned_steps * budget).any()):
        raise ConservationError(f"a replica computed more than {budget} tokens a step")
    if bool((times.batch_peak > seats).any()):
        raise ConservationError(f"more than {seats} requests ran at once")


def _check_blocks(times: ReplicaTimes, *, held: int, num_blocks: int) -> None:
    if held != int(times.kv_blocks_held.sum()):
        raise ConservationError(f"{int(times.kv_blocks_held.sum())} KV blocks are taken, the requests hold {held}")
    if bool((times.kv_blocks_held < 0).any()) or bool((times.kv_blocks_held > num_blocks).any()):
        raise ConservationError("a replica holds more KV blocks than it has, or fewer than none")


def _check_gaps(log: RequestLog) -> None:
    gaps = int(np.maximum(log.output_tokens[log.phase == IN_WINDOW] - 1, 0).sum())
    if int(log.itl_counts.sum()) != gaps:
        raise ConservationError(
            f"{int(log.itl_counts.sum())} token gaps were counted, the window's answers have {gaps}"
        )


def _check_little(log: RequestLog, *, request_overhead_s: float) -> None:
    assert log.replica_times is not None
    entered = log.status != STATUSES.index("rejected")
    left_s = np.where(log.status == FINISHED_STATUS, log.finish_s, log.end_s)[entered]
    stayed_s = float((left_s - (log.arrival_s[entered] + request_overhead_s)).sum())
    integral_s = float(log.replica_times.in_system_s.sum())
    if abs(stayed_s - integral_s) > TOLERANCE * max(1.0, abs(integral_s), len(log) * log.end_s * 1e-3):
        raise ConservationError(
            f"Little's identity fails: the engine held {integral_s!r} request-seconds, the requests stayed {stayed_s!r}"
        )
