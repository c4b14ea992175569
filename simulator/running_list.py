"""Joining and leaving: the queue, the running list and the decode batch of a replica, O(1) each.

The running list is vLLM's `Scheduler.running`, in order of admission; the queue is `Scheduler.waiting`, with preempted
requests at its head. Both are linked through the request table. A decoding request is represented by counts alone
(context, blocks due, heap entry), so entering and leaving the batch is where those counts change.
"""

import numpy as np

from simulator.compiled import inlined
from simulator.gaps import stall_since
from simulator.heap import ADMISSION_BITS, heap_remove, sift_up
from simulator.tables import (
    ADMISSION,
    ADMITTED,
    AREA,
    AREA_LAST,
    ARRIVAL,
    BLOCK_SIZE,
    CLOSED_LOOP,
    COMPUTED,
    CONTEXT,
    DECODE,
    DECODING,
    DISCARDED_TOKENS,
    EMITTED,
    FINISH,
    FINISHED,
    FREE_BLOCKS,
    GROWING,
    HEAP_COUNT,
    IN_WINDOW,
    ITL_MAX,
    JOINED_STEP,
    LAST_TOKEN,
    LATE_BLOCKS,
    LATE_SEATS,
    NEXT,
    OUTPUT,
    OUTSTANDING,
    PARTIAL,
    PENDING_TOKENS,
    PHASE,
    PREEMPTED,
    PREEMPTIONS,
    PREFILL,
    PREV,
    QUIET,
    RELEASE_DELAY_S,
    RELEASED,
    REPLICA,
    RUN_HEAD,
    RUN_TAIL,
    RUNNING,
    SCHEDULED,
    SEEN,
    STATE,
    STEP_COUNT,
    STEP_END,
    STEP_START,
    TWO_IN_FLIGHT,
    WAIT_HEAD,
    WAIT_TAIL,
    WAITING,
    WINDOW,
    WINDOW_CONTEXT,
    WINDOW_LEFT,
    WORKLOAD,
)

__all__ = ["admit", "enqueue", "finish", "free_blocks", "join_decode", "leave_decode", "preempt_last"]


@inlined
def free_blocks(r, blocks, engine, ints):
    """Blocks of a request that leaves; with two steps in flight the next one was scheduled before they were free."""
    if engine[TWO_IN_FLIGHT] == 1:
        ints[r, LATE_BLOCKS] += blocks
    else:
        ints[r, FREE_BLOCKS] += blocks


@inlined
def leave_decode(r, q, step, engine, ri, rf, ints, due, crossing, stall_steps, stall_s, window_decodes):
    """Take a decoding request out of the counts of its replica: blocks and context. Returns its cached tokens."""
    block = engine[BLOCK_SIZE]
    window = engine[WINDOW]
    cached = ri[q, COMPUTED] + step
    due[r, ri[q, COMPUTED] % block] -= 1
    free_blocks(r, (cached + block - 1) // block, engine, ints)
    ints[r, CONTEXT] -= cached + 1
    if window > 0:
        ints[r, WINDOW_CONTEXT] -= min(cached + 1, window)
        if cached + 1 < window:
            ints[r, GROWING] -= 1
            crossing[r, (step + window - cached - 1) % (window + 1)] -= 1
    ints[r, DECODING] -= 1
    stall = stall_since(r, ri[q, JOINED_STEP], ints, stall_steps, stall_s)
    if stall > 0.0 and not rf[q, ITL_MAX] >= stall:
        rf[q, ITL_MAX] = stall
    ri[q, EMITTED] += step - ri[q, JOINED_STEP]
    ri[q, COMPUTED] = cached
    if ri[q, PHASE] == IN_WINDOW:
        window_decodes[r, ri[q, WORKLOAD]] -= 1
    return cached


@inlined
def join_decode(r, q, step, engine, ri, ints, heap_keys, heap_values, due, crossing, window_decodes):
    """A request whose prompt is complete decodes from the next step on."""
    block = engine[BLOCK_SIZE]
    window = engine[WINDOW]
    cached = ri[q, COMPUTED]
    ri[q, STATE] = DECODE
    ri[q, JOINED_STEP] = step
    ri[q, COMPUTED] = cached - step
    due[r, (cached - step) % block] += 1
    ints[r, CONTEXT] += cached + 1
    if window > 0:
        ints[r, WINDOW_CONTEXT] += min(cached + 1, window)
        if cached + 1 < window:
            ints[r, GROWING] += 1
            crossing[r, (step + window - cached - 1) % (window + 1)] += 1
    ints[r, DECODING] += 1
    if ri[q, PHASE] == IN_WINDOW:
        window_decodes[r, ri[q, WORKLOAD]] += 1
    finish_step = step + ri[q, OUTPUT] - ri[q, EMITTED]
    key = (finish_step << ADMISSION_BITS) | ri[q, ADMISSION]
    sift_up(heap_keys, heap_values, r, ints[r, HEAP_COUNT], key, q)
    ints[r, HEAP_COUNT] += 1


@inlined
def unlink(r, q, ri, ints):
    before, after = ri[q, PREV], ri[q, NEXT]
    if before >= 0:
        ri[before, NEXT] = after
    else:
        ints[r, RUN_HEAD] = after
    if after >= 0:
        ri[after, PREV] = before
    else:
        ints[r, RUN_TAIL] = before
    ints[r, RUNNING] -= 1


@inlined
def finish(r, q, t, engine, coef, ri, rf, ints, floats, totals):
    """The last token left at t. In a closed loop the next request is released: returns True then."""
    ri[q, STATE] = FINISHED
    rf[q, FINISH] = t
    unlink(r, q, ri, ints)
    if engine[TWO_IN_FLIGHT] == 1:
        ints[r, LATE_SEATS] += 1
    floats[r, AREA] += ints[r, OUTSTANDING] * (t - floats[r, AREA_LAST])
    floats[r, AREA_LAST] = t
    ints[r, OUTSTANDING] -= 1
    if ri[q, PHASE] == IN_WINDOW:
        totals[WINDOW_LEFT] -= 1
    if engine[CLOSED_LOOP] == 0 or totals[RELEASED] == len(ri):
        return False
    rf[totals[RELEASED], ARRIVAL] = t + coef[RELEASE_DELAY_S]
    totals[RELEASED] += 1
    return True


@inlined
def preempt_last(
    r, t, engine, ri, rf, ints, heap_keys, heap_values, due, crossing, stall_steps, stall_s, window_decodes
):
    """vLLM `_preempt_request`: the last running request loses its blocks and waits at the head of the queue."""
    q = ints[r, RUN_TAIL]
    if ri[q, STATE] == DECODE:
        cached = leave_decode(
            r, q, ints[r, STEP_COUNT], engine, ri, rf, ints, due, crossing, stall_steps, stall_s, window_decodes
        )
        ints[r, HEAP_COUNT] -= 1
        heap_remove(heap_keys, heap_values, r, ints[r, HEAP_COUNT], q)
        rf[q, LAST_TOKEN] = t
    else:
        cached = ri[q, COMPUTED]
        block = engine[BLOCK_SIZE]
        ints[r, FREE_BLOCKS] += (cached + block - 1) // block
        ints[r, PARTIAL] = -1
    ints[r, DISCARDED_TOKENS] += cached
    ints[r, PREEMPTED] += 1
    unlink(r, q, ri, ints)
    ri[q, STATE] = WAITING
    ri[q, COMPUTED] = 0
    ri[q, PREEMPTIONS] += 1
    ri[q, NEXT] = ints[r, WAIT_HEAD]
    if ints[r, WAIT_HEAD] < 0:
        ints[r, WAIT_TAIL] = q
    ints[r, WAIT_HEAD] = q


@inlined
def admit(r, q, t, ri, rf, ints):
    """Move the head of the queue to the end of the running list."""
    ints[r, WAIT_HEAD] = ri[q, NEXT]
    if ints[r, WAIT_HEAD] < 0:
        ints[r, WAIT_TAIL] = -1
    ri[q, STATE] = PREFILL
    ri[q, ADMISSION] = ints[r, ADMITTED]
    ints[r, ADMITTED] += 1
    ri[q, NEXT] = -1
    ri[q, PREV] = ints[r, RUN_TAIL]
    if ints[r, RUN_TAIL] >= 0:
        ri[ints[r, RUN_TAIL], NEXT] = q
    else:
        ints[r, RUN_HEAD] = q
    ints[r, RUN_TAIL] = q
    ints[r, RUNNING] += 1
    if np.isnan(rf[q, SCHEDULED]):
        rf[q, SCHEDULED] = t


@inlined
def enqueue(r, q, now, ri, rf, ints, floats):
    ri[q, STATE] = WAITING
    ri[q, REPLICA] = r
    ri[q, NEXT] = -1
    if ints[r, WAIT_TAIL] < 0:
        ints[r, WAIT_HEAD] = q
        ints[r, QUIET] = 0
    else:
        ri[ints[r, WAIT_TAIL], NEXT] = q
    ints[r, WAIT_TAIL] = q
    floats[r, AREA] += ints[r, OUTSTANDING] * (now - floats[r, AREA_LAST])
    floats[r, AREA_LAST] = now
    ints[r, OUTSTANDING] += 1
    rf[q, SEEN] = now
    if ints[r, PENDING_TOKENS] > 0 and floats[r, STEP_START] == now:
        rf[q, SEEN] = np.nextafter(now, np.inf)
    if floats[r, STEP_END] == np.inf:  # idle: an empty step that ends now wakes the replica
        floats[r, STEP_END] = now
        floats[r, STEP_START] = now
