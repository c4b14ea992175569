"""Token gaps as readers feel them: the ITL histogram and the longest stall of each request, O(1) per step.

Every decoding request of a replica sees the same gap at a step: the step's duration. So one histogram count per step
and workload suffices, and the longest gap of a request is the maximum of the step times since it began to decode.
That maximum is read from a stack of falling step times: the first entry later than the request's first token.
"""

from simulator.compiled import inlined
from simulator.tables import (
    DECODE,
    ERROR,
    GAP_BIN,
    JOINED_STEP,
    NEXT,
    RUN_HEAD,
    STACK_COUNT,
    STALL_STACK_FULL,
    STATE,
)


@inlined
def note_stall(w, r, step, gap_s):
    """Push a step of gap_s seconds; shorter entries before it can no longer be anybody's maximum."""
    top = w.ints[r, STACK_COUNT]
    while top > 0 and w.stall_s[r, top - 1] <= gap_s:
        top -= 1
    if top == w.stall_steps.shape[1]:  # forget what ended before the oldest running decode began
        oldest = step
        q = w.ints[r, RUN_HEAD]
        while q >= 0:
            if w.ri[q, STATE] == DECODE and w.ri[q, JOINED_STEP] < oldest:
                oldest = w.ri[q, JOINED_STEP]
            q = w.ri[q, NEXT]
        drop = 0
        while drop < top and w.stall_steps[r, drop] <= oldest:
            drop += 1
        for i in range(drop, top):
            w.stall_steps[r, i - drop] = w.stall_steps[r, i]
            w.stall_s[r, i - drop] = w.stall_s[r, i]
        top -= drop
        if top == w.stall_steps.shape[1]:
            w.totals[ERROR] = STALL_STACK_FULL
            return
    w.stall_steps[r, top] = step
    w.stall_s[r, top] = gap_s
    w.ints[r, STACK_COUNT] = top + 1


@inlined
def stall_since(w, r, joined):
    """Longest step after step number `joined`, seconds; 0 when there was none."""
    count = w.ints[r, STACK_COUNT]
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if w.stall_steps[r, middle] > joined:
            high = middle
        else:
            low = middle + 1
    return w.stall_s[r, low] if low < count else 0.0


@inlined
def gap_bin(w, r, gap_s):
    """Histogram bin of a gap; consecutive steps of a replica mostly fall into the same one, so that is tried first."""
    low = w.ints[r, GAP_BIN]
    if (low == 0 or w.edges_s[low - 1] <= gap_s) and (low == len(w.edges_s) or gap_s < w.edges_s[low]):
        return low
    low, high = 0, len(w.edges_s)
    while low < high:
        middle = (low + high) >> 1
        if w.edges_s[middle] <= gap_s:
            low = middle + 1
        else:
            high = middle
    w.ints[r, GAP_BIN] = low
    return low
