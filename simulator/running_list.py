"""Joining and leaving: the queue, the running list and the decode batch of a replica, O(1) each.

The running list is vLLM's `Scheduler.running`, in order of admission; the queue is `Scheduler.waiting`, with preempted
requests at its head. Both are linked through the request table. A decoding request is represented by counts alone
(context, blocks due, heap entry), so entering and leaving the batch is where those counts change.
"""

import numpy as np

from simulator.compiled import inlined
from simulator.gaps import stall_since
from simulator.heap import ADMISSION_BITS, heap_remove, sift_up
from simulator.named_blocks import join_bucket, leave_bucket, release_late, release_named
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
    LATE_COUNT,
    LATE_SEATS,
    NAMED,
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

__all__ = ["admit", "enqueue", "finish", "free_blocks", "free_late", "join_decode", "leave_decode", "preempt_last"]


@inlined
def free_blocks(w, r, q, cached):
    """Blocks of a request that leaves; with two steps in flight the next one was scheduled before they were free."""
    blocks = (cached + w.engine[BLOCK_SIZE] - 1) // w.engine[BLOCK_SIZE]
    if w.engine[TWO_IN_FLIGHT] == 1:
        if w.engine[NAMED] == 1:
            w.late[r, w.ints[r, LATE_COUNT]] = q
            w.ints[r, LATE_COUNT] += 1
        else:
            w.ints[r, LATE_BLOCKS] += blocks
    elif w.engine[NAMED] == 1:
        release_named(w, r, q, blocks)
    else:
        w.ints[r, FREE_BLOCKS] += blocks


@inlined
def free_late(w, r):
    """What became free with the step that just ended can be seen by the next one that is scheduled."""
    if w.engine[NAMED] == 1:
        release_late(w, r)
    w.ints[r, FREE_BLOCKS] += w.ints[r, LATE_BLOCKS]
    w.ints[r, LATE_BLOCKS] = 0
    w.ints[r, LATE_SEATS] = 0


@inlined
def leave_decode(w, r, q, step):
    """Take a decoding request out of the counts of its replica: blocks and context. Returns its cached tokens."""
    block = w.engine[BLOCK_SIZE]
    window = w.engine[WINDOW]
    cached = w.ri[q, COMPUTED] + step
    w.due[r, w.ri[q, COMPUTED] % block] -= 1
    if w.engine[NAMED] == 1:
        leave_bucket(w, r, q, w.ri[q, COMPUTED] % block)
    free_blocks(w, r, q, cached)
    w.ints[r, CONTEXT] -= cached + 1
    if window > 0:
        w.ints[r, WINDOW_CONTEXT] -= min(cached + 1, window)
        if cached + 1 < window:
            w.ints[r, GROWING] -= 1
            w.crossing[r, (step + window - cached - 1) % (window + 1)] -= 1
    w.ints[r, DECODING] -= 1
    stall = stall_since(w, r, w.ri[q, JOINED_STEP])
    if stall > 0.0 and not w.rf[q, ITL_MAX] >= stall:
        w.rf[q, ITL_MAX] = stall
    w.ri[q, EMITTED] += step - w.ri[q, JOINED_STEP]
    w.ri[q, COMPUTED] = cached
    if w.ri[q, PHASE] == IN_WINDOW:
        w.window_decodes[r, w.ri[q, WORKLOAD]] -= 1
    return cached


@inlined
def join_decode(w, r, q, step):
    """A request whose prompt is complete decodes from the next step on."""
    block = w.engine[BLOCK_SIZE]
    window = w.engine[WINDOW]
    cached = w.ri[q, COMPUTED]
    w.ri[q, STATE] = DECODE
    w.ri[q, JOINED_STEP] = step
    w.ri[q, COMPUTED] = cached - step
    w.due[r, (cached - step) % block] += 1
    if w.engine[NAMED] == 1:
        join_bucket(w, r, q, (cached - step) % block)
    w.ints[r, CONTEXT] += cached + 1
    if window > 0:
        w.ints[r, WINDOW_CONTEXT] += min(cached + 1, window)
        if cached + 1 < window:
            w.ints[r, GROWING] += 1
            w.crossing[r, (step + window - cached - 1) % (window + 1)] += 1
    w.ints[r, DECODING] += 1
    if w.ri[q, PHASE] == IN_WINDOW:
        w.window_decodes[r, w.ri[q, WORKLOAD]] += 1
    finish_step = step + w.ri[q, OUTPUT] - w.ri[q, EMITTED]
    key = (finish_step << ADMISSION_BITS) | w.ri[q, ADMISSION]
    sift_up(w, r, w.ints[r, HEAP_COUNT], key, q)
    w.ints[r, HEAP_COUNT] += 1


@inlined
def unlink(w, r, q):
    before, after = w.ri[q, PREV], w.ri[q, NEXT]
    if before >= 0:
        w.ri[before, NEXT] = after
    else:
        w.ints[r, RUN_HEAD] = after
    if after >= 0:
        w.ri[after, PREV] = before
    else:
        w.ints[r, RUN_TAIL] = before
    w.ints[r, RUNNING] -= 1


@inlined
def finish(w, r, q, t):
    """The last token left at t. In a closed loop the next request is released: returns True then."""
    w.ri[q, STATE] = FINISHED
    w.rf[q, FINISH] = t
    unlink(w, r, q)
    if w.engine[TWO_IN_FLIGHT] == 1:
        w.ints[r, LATE_SEATS] += 1
    w.floats[r, AREA] += w.ints[r, OUTSTANDING] * (t - w.floats[r, AREA_LAST])
    w.floats[r, AREA_LAST] = t
    w.ints[r, OUTSTANDING] -= 1
    if w.ri[q, PHASE] == IN_WINDOW:
        w.totals[WINDOW_LEFT] -= 1
    if w.engine[CLOSED_LOOP] == 0 or w.totals[RELEASED] == len(w.ri):
        return False
    w.rf[w.totals[RELEASED], ARRIVAL] = t + w.coefficients[RELEASE_DELAY_S]
    w.totals[RELEASED] += 1
    return True


@inlined
def preempt_last(w, r, t):
    """vLLM `_preempt_request`: the last running request loses its blocks and waits at the head of the queue."""
    q = w.ints[r, RUN_TAIL]
    if w.ri[q, STATE] == DECODE:
        cached = leave_decode(w, r, q, w.ints[r, STEP_COUNT])
        w.ints[r, HEAP_COUNT] -= 1
        heap_remove(w, r, w.ints[r, HEAP_COUNT], q)
        w.rf[q, LAST_TOKEN] = t
    else:
        cached = w.ri[q, COMPUTED]
        free_blocks(w, r, q, cached)
        w.ints[r, PARTIAL] = -1
    w.ints[r, DISCARDED_TOKENS] += cached
    w.ints[r, PREEMPTED] += 1
    unlink(w, r, q)
    w.ri[q, STATE] = WAITING
    w.ri[q, COMPUTED] = 0
    w.ri[q, PREEMPTIONS] += 1
    w.ri[q, NEXT] = w.ints[r, WAIT_HEAD]
    if w.ints[r, WAIT_HEAD] < 0:
        w.ints[r, WAIT_TAIL] = q
    w.ints[r, WAIT_HEAD] = q


@inlined
def admit(w, r, q, t):
    """Move the head of the queue to the end of the running list."""
    w.ints[r, WAIT_HEAD] = w.ri[q, NEXT]
    if w.ints[r, WAIT_HEAD] < 0:
        w.ints[r, WAIT_TAIL] = -1
    w.ri[q, STATE] = PREFILL
    w.ri[q, ADMISSION] = w.ints[r, ADMITTED]
    w.ints[r, ADMITTED] += 1
    w.ri[q, NEXT] = -1
    w.ri[q, PREV] = w.ints[r, RUN_TAIL]
    if w.ints[r, RUN_TAIL] >= 0:
        w.ri[w.ints[r, RUN_TAIL], NEXT] = q
    else:
        w.ints[r, RUN_HEAD] = q
    w.ints[r, RUN_TAIL] = q
    w.ints[r, RUNNING] += 1
    if np.isnan(w.rf[q, SCHEDULED]):
        w.rf[q, SCHEDULED] = t


@inlined
def enqueue(w, r, q, now):
    w.ri[q, STATE] = WAITING
    w.ri[q, REPLICA] = r
    w.ri[q, NEXT] = -1
    if w.ints[r, WAIT_TAIL] < 0:
        w.ints[r, WAIT_HEAD] = q
        w.ints[r, QUIET] = 0
    else:
        w.ri[w.ints[r, WAIT_TAIL], NEXT] = q
    w.ints[r, WAIT_TAIL] = q
    w.floats[r, AREA] += w.ints[r, OUTSTANDING] * (now - w.floats[r, AREA_LAST])
    w.floats[r, AREA_LAST] = now
    w.ints[r, OUTSTANDING] += 1
    w.rf[q, SEEN] = now
    if w.ints[r, PENDING_TOKENS] > 0 and w.floats[r, STEP_START] == now:
        w.rf[q, SEEN] = np.nextafter(now, np.inf)
    if w.floats[r, STEP_END] == np.inf:  # idle: an empty step that ends now wakes the replica
        w.floats[r, STEP_END] = now
        w.floats[r, STEP_START] = now
