"""What must hold in every run, whatever the load: requests, tokens, token gaps and KV blocks are conserved, and
Little's identity.

The identity is not an approximation. The engine integrates the number of requests it holds while it runs; the log sums
how long each request was there. Both are the same quantity counted twice, so they agree to rounding (1e-9), in any run,
steady or not. A difference means a lost or doubled event, and raises: a number from a broken run is never shown.
"""

from __future__ import annotations

import numpy as np

from simulator.log import STATUSES, RequestLog
from simulator.tables import (
    COMPUTED,
    DECODE,
    IN_WINDOW,
    NEXT_REQUEST,
    OUTSTANDING,
    PENDING_TOKENS,
    PREFILL,
    REPLICA,
    STATE,
    STEP_COUNT,
    World,
)

__all__ = ["ConservationError", "check_conservation"]

TOLERANCE = 1e-9


class ConservationError(RuntimeError):
    """A run lost or invented requests, tokens, blocks or time: a defect of the simulator."""


def check_conservation(log: RequestLog, *, num_blocks: int, request_overhead_s: float, world: World) -> None:
    """Raise `ConservationError` unless the run's books balance."""
    times = log.replica_times
    assert times is not None
    arrived = int(world.totals[NEXT_REQUEST])
    if len(log) != arrived:
        raise ConservationError(f"{arrived} requests arrived, {len(log)} are in the log")
    finished, failed, rejected, unfinished = (log.status == index for index in range(len(STATUSES)))
    ends = [int(rows.sum()) for rows in (finished, failed, rejected, unfinished)]
    if sum(ends) != arrived:
        raise ConservationError(f"{arrived} requests arrived, {sum(ends)} have a known status")
    held_requests = int(world.ints[:, OUTSTANDING].sum())
    if held_requests != ends[3]:
        raise ConservationError(f"the replicas hold {held_requests} requests, the log has {ends[3]} unfinished ones")
    entered = ~rejected

    ri = world.ri[:arrived]
    replica = world.ints[ri[:, REPLICA]]
    steps = replica[:, STEP_COUNT] + (replica[:, PENDING_TOKENS] > 0)
    running = [ri[:, STATE] == DECODE, ri[:, STATE] == PREFILL]
    cached = np.select(running, [ri[:, COMPUTED] + steps, ri[:, COMPUTED]], 0)
    useful = int((log.prompt_tokens[finished] + log.output_tokens[finished] - 1).sum()) + int(cached[~finished].sum())
    computed = int(times.scheduled_tokens.sum() - times.discarded_tokens.sum())
    if computed != useful:
        raise ConservationError(f"{computed} tokens were computed and kept, the requests account for {useful}")

    block_size = world.due.shape[1]
    held = int((-(-cached[~finished] // block_size)).sum())
    if held != int(times.kv_blocks_held.sum()):
        raise ConservationError(f"{int(times.kv_blocks_held.sum())} KV blocks are taken, the requests hold {held}")
    if bool((times.kv_blocks_held < 0).any()) or bool((times.kv_blocks_held > num_blocks).any()):
        raise ConservationError("a replica holds more KV blocks than it has, or fewer than none")

    gaps = int(np.maximum(log.output_tokens[log.phase == IN_WINDOW] - 1, 0).sum())
    if int(log.itl_counts.sum()) != gaps:
        raise ConservationError(
            f"{int(log.itl_counts.sum())} token gaps were counted, the window's answers have {gaps}"
        )

    left_s = np.where(finished, log.finish_s, log.end_s)[entered]
    stayed_s = float((left_s - (log.arrival_s[entered] + request_overhead_s)).sum())
    integral_s = float(times.in_system_s.sum())
    if abs(stayed_s - integral_s) > TOLERANCE * max(1.0, abs(integral_s), arrived * log.end_s * 1e-3):
        raise ConservationError(
            f"Little's identity fails: the engine held {integral_s!r} request-seconds, the requests stayed {stayed_s!r}"
        )
