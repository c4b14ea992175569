"""The compiled request plane with every flag of `SchedulerSettings`: what `reference.py` says, O(batch) a step.

`kernel.py` is faster (O(1) per decode step) and follows less: `RunInputs.countable` tells which of the two a run
needs. Here every request of a batch is looked at in every step, so anything may depend on it: threshold, priorities,
content of blocks, drafts, outputs that are known late, ranks that step together.

Times are seconds on the engine's clock. Ties: a request that arrives exactly when a step ends is seen by the next step
that is scheduled. All state is in `FullWorld`, so a run can stop at any time and go on.
"""

import numpy as np

from simulator.compiled import cached_kernel, inlined
from simulator.full_scheduler import add_waiting, count_in_system, schedule_rank, tokens_given
from simulator.full_tables import (
    ARRIVAL,
    BEFORE,
    BLOCK_SIZE,
    CLOSED_LOOP,
    DATA_PARALLEL,
    DECODE_BUSY,
    DECODE_STEP,
    DEPTH,
    EMITTED,
    ENDED,
    ENTRY_DRAFTS,
    ERROR,
    FINISH,
    FIRST_RANK,
    FIRST_TOKEN,
    GPU_FREE,
    ITL_MAX,
    LAST_STEP,
    LAST_TOKEN,
    LEAST_OUTSTANDING,
    LOCKSTEP,
    LOOKAHEAD,
    MAX_MODEL_LEN,
    MAX_TOKENS,
    NEXT_EVENT,
    NEXT_REQUEST,
    NUM_BLOCKS,
    OLDER,
    OUTPUT,
    PHASE,
    PLANNING,
    PREFILL_BUSY,
    PREFILL_TOKENS,
    PROMPT,
    QUEUED_REQS,
    QUEUED_TOKENS,
    RANK,
    REJECTED,
    RELEASED,
    REQ,
    ROUNDS,
    ROUTE_POINTER,
    RUNNING,
    SAMPLES,
    SCHEDULED,
    SPECULATIVE,
    STATE,
    STEP_WINDOW,
    STEPS,
    STOPPED,
    STUCK,
    TOKENS,
    UNFINISHED,
    WAIT_COUNT,
    WINDOW_LEFT,
    WINDOW_REQUESTS,
    WORKLOAD,
)
from simulator.tables import (
    ATTENTION_S,
    HOST_S,
    HOST_SEQUENCE_S,
    IN_WINDOW,
    KV_S,
    PREFILL_REQUEST_S,
    RELEASE_DELAY_S,
    SAMPLE_S,
    SYNC_S,
    WINDOW_ATTENTION_S,
    WINDOW_KV_S,
)

__all__ = ["enter_step", "plan_step", "run_full_kernel", "take_step"]


@inlined
def bin_of(w, gap_s):
    """Histogram bin of a gap: edges[i − 1] <= gap < edges[i]."""
    low, high = 0, len(w.edges_s)
    while low < high:
        middle = (low + high) >> 1
        if w.edges_s[middle] <= gap_s:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def note_gap(w, row, seconds, gap_s, bin_):
    if not seconds[ITL_MAX] >= gap_s:
        seconds[ITL_MAX] = gap_s
    if row[PHASE] == IN_WINDOW:
        w.itl_counts[row[WORKLOAD], bin_] += 1


@inlined
def batch_s(w, r, slot):
    """Seconds of a batch (`StepTimeModel.step_s`, term by term in the same order), and those its decodes alone take."""
    coef = w.coefficients
    window = w.settings[STEP_WINDOW]
    decodes = decode_tokens = prefills = prefill_tokens = sampled = context = window_context = 0
    pairs = window_pairs = 0.0
    for i in range(w.batch_count[r, slot]):
        entry = w.batch[r, slot, i]
        before, tokens = entry[BEFORE], entry[TOKENS]
        if entry[SAMPLES] == 1:
            sampled += 1 + entry[ENTRY_DRAFTS]
        if entry[DECODE_STEP] == 1:
            decodes += 1
            decode_tokens += tokens
            context += before + tokens
            window_context += min(before + tokens, window)
        else:
            prefills += 1
            prefill_tokens += tokens
            pairs += tokens * (before + 0.5 * tokens)
            if window > 0:
                inside = max(0, min(tokens, window - before))
                window_pairs += inside * (before + 0.5 * inside) + float(tokens - inside) * window
    base = w.mixed_s[decode_tokens + prefill_tokens] if prefills > 0 else w.decode_s[decode_tokens]
    gpu_s = (
        base
        + coef[SAMPLE_S] * sampled
        + coef[KV_S] * context
        + coef[WINDOW_KV_S] * window_context
        + coef[ATTENTION_S] * pairs
        + coef[WINDOW_ATTENTION_S] * window_pairs
        + coef[PREFILL_REQUEST_S] * prefills
    )
    step_s = max(coef[HOST_S] + coef[HOST_SEQUENCE_S] * (decodes + prefills), gpu_s) + coef[SYNC_S]
    alone_s = step_s
    if prefills > 0:
        alone_s = 0.0
        if decodes > 0:
            alone_s = (
                max(
                    coef[HOST_S] + coef[HOST_SEQUENCE_S] * decodes,
                    w.decode_s[decode_tokens]
                    + coef[SAMPLE_S] * decode_tokens
                    + coef[KV_S] * context
                    + coef[WINDOW_KV_S] * window_context,
                )
                + coef[SYNC_S]
            )
            alone_s = min(alone_s, step_s)
    return step_s, alone_s


@inlined
def ranks_of(w, e):
    """The first rank of engine e, and how many step together."""
    if w.settings[LOCKSTEP] == 0:
        return e, np.int64(1)
    members = w.settings[DATA_PARALLEL]
    return e * members, members


@inlined
def plan(w, e, t):
    """Schedule a step on every rank of engine e; it starts when the one before it has ended. True if it holds work."""
    first, members = ranks_of(w, e)
    slot = (w.engine_ints[e, OLDER] + w.engine_ints[e, ROUNDS]) & 1
    step_s = 0.0
    busy = False
    preempted = 0
    for r in range(first, first + members):
        preempted += schedule_rank(w, r, slot)
        if w.batch_count[r, slot] > 0:
            rank_s, alone_s = batch_s(w, r, slot)
            w.floats[r, DECODE_BUSY] += alone_s
            w.floats[r, PREFILL_BUSY] += rank_s - alone_s
            step_s = max(step_s, rank_s)
            busy = True
    end_s = t
    if busy:
        start_s = max(t, w.engine_floats[e, GPU_FREE])
        for r in range(first, first + members):
            for i in range(w.batch_count[r, slot]):
                q = w.batch[r, slot, i, REQ]
                if np.isnan(w.rf[q, SCHEDULED]):
                    w.rf[q, SCHEDULED] = start_s
        end_s = start_s + step_s
        w.engine_floats[e, GPU_FREE] = end_s
        w.engine_ints[e, STEPS] += 1
    elif preempted == 0:  # with nothing in flight either, nothing can ever start
        in_flight = 0
        if w.engine_ints[e, ROUNDS] > 0:
            for r in range(first, first + members):
                in_flight += w.batch_count[r, w.engine_ints[e, OLDER]]
        if in_flight == 0:
            w.totals[ERROR] = STUCK
    w.round_s[e, slot, 0] = step_s
    w.round_s[e, slot, 1] = end_s
    w.round_number[e, slot] = w.engine_ints[e, STEPS]
    w.engine_ints[e, ROUNDS] += 1
    return busy


@inlined
def take(w, e, t):
    """The older round of engine e has ended: tokens, finished requests. In a closed loop True if one was released."""
    first, members = ranks_of(w, e)
    slot = w.engine_ints[e, OLDER]
    step_s = w.round_s[e, slot, 0]
    number = w.round_number[e, slot]
    step_bin = bin_of(w, step_s)
    released = False
    worked = False
    for r in range(first, first + members):
        worked |= w.batch_count[r, slot] > 0
        for i in range(w.batch_count[r, slot]):
            given = tokens_given(w, r, slot, i, t)
            if given == 0:
                continue
            q = w.batch[r, slot, i, REQ]
            row, seconds = w.ri[q], w.rf[q]
            if row[LAST_STEP] == number - 1:
                note_gap(w, row, seconds, step_s, step_bin)
            elif np.isnan(seconds[FIRST_TOKEN]):
                seconds[FIRST_TOKEN] = t
                w.ints[r, PREFILL_TOKENS] -= row[PROMPT]
            else:
                gap_s = t - seconds[LAST_TOKEN]
                note_gap(w, row, seconds, gap_s, bin_of(w, gap_s))
            for _ in range(given - 1):  # accepted drafts come with it
                note_gap(w, row, seconds, 0.0, 0)
            seconds[LAST_TOKEN] = t
            row[LAST_STEP] = number
            if row[EMITTED] == row[OUTPUT]:
                seconds[FINISH] = t
                w.ints[r, UNFINISHED] -= 1
                if row[PHASE] == IN_WINDOW:
                    w.totals[WINDOW_LEFT] -= 1
                released |= release_next(w, t)
        w.batch_count[r, slot] = 0
    w.engine_ints[e, OLDER] = 1 - slot
    w.engine_ints[e, ROUNDS] -= 1
    w.engine_ints[e, ENDED] += 1 if worked else 0
    return released


@inlined
def release_next(w, t):
    """In a closed loop whoever leaves lets the next one in, after the front end's delay."""
    if w.settings[CLOSED_LOOP] == 0 or w.totals[RELEASED] == len(w.ri):
        return False
    w.rf[w.totals[RELEASED], ARRIVAL] = t + w.coefficients[RELEASE_DELAY_S]
    w.totals[RELEASED] += 1
    return True


@inlined
def outstanding(w, e):
    first, members = ranks_of(w, e)
    total = np.int64(0)
    for r in range(first, first + members):
        total += w.ints[r, RUNNING] + w.ints[r, WAIT_COUNT]
    return total


@inlined
def advance(w, e, until):
    """Run engine e while its next event lies before `until`; in a closed loop, only until a request is released."""
    t = w.engine_floats[e, NEXT_EVENT]
    while t < until and w.totals[ERROR] == 0:
        if w.engine_ints[e, PLANNING] == 0:
            released = take(w, e, t)
            w.engine_ints[e, PLANNING] = 1
            if released:
                break
        if outstanding(w, e) == 0 and w.engine_ints[e, ROUNDS] == 0:
            t = np.inf
            break
        while outstanding(w, e) > 0 and w.engine_ints[e, ROUNDS] < w.settings[DEPTH] and w.totals[ERROR] == 0:
            plan(w, e, t)
        w.engine_ints[e, PLANNING] = 0
        t = max(t, w.round_s[e, w.engine_ints[e, OLDER], 1])
    w.engine_floats[e, NEXT_EVENT] = t


@inlined
def fits_alone(w, q):
    """`SchedulerSettings.fits_alone`."""
    settings = w.settings
    beyond = settings[SPECULATIVE] + settings[LOOKAHEAD]
    if settings[DEPTH] == 2 and (w.ri[q, MAX_TOKENS] > w.ri[q, OUTPUT] or settings[SPECULATIVE] > 0):
        beyond += 1 + settings[SPECULATIVE]
    slots = min(w.ri[q, PROMPT] + w.ri[q, OUTPUT] - 1 + beyond, settings[MAX_MODEL_LEN])
    blocks = (slots + settings[BLOCK_SIZE] - 1) // settings[BLOCK_SIZE]
    total = np.int64(0)
    for g in range(len(w.caps)):
        total += min(blocks, w.caps[g])
    return total <= settings[NUM_BLOCKS]


@inlined
def unfinished(w, replica):
    members = w.settings[DATA_PARALLEL]
    total = np.int64(0)
    for r in range(replica * members, (replica + 1) * members):
        total += w.ints[r, UNFINISHED]
    return total


@inlined
def route(w):
    """The replica for the next request; ties go to the next one in turn."""
    replicas = len(w.ints) // w.settings[DATA_PARALLEL]
    start = w.totals[ROUTE_POINTER]
    best = start
    if w.settings[LEAST_OUTSTANDING] == 1:
        fewest = unfinished(w, best)
        for i in range(1, replicas):
            replica = start + i
            if replica >= replicas:
                replica -= replicas
            if unfinished(w, replica) < fewest:
                best = replica
                fewest = unfinished(w, replica)
    w.totals[ROUTE_POINTER] = best + 1 if best + 1 < replicas else 0
    return best


@inlined
def rank_of(w, replica):
    """The rank that the front end of a replica chooses (`reference.ReferenceFleet.choose_rank`)."""
    members = w.settings[DATA_PARALLEL]
    first = replica * members
    if members == 1:
        return first
    start = w.ints[first, FIRST_RANK]
    w.ints[first, FIRST_RANK] = start + 1 if start + 1 < members else 0
    best = first
    least = np.inf
    for i in range(start, start + members):
        r = first + i if i < members else first + i - members
        used = 1.0 - w.pool.free[r] / w.settings[NUM_BLOCKS]
        load = w.ints[r, UNFINISHED] + w.ints[r, WAIT_COUNT] * 6.0 * max(0.0, used - 0.5)
        if load < least:
            least = load
            best = r
    return best


@inlined
def queue_is_full(w, replica):
    members = w.settings[DATA_PARALLEL]
    if unfinished(w, replica) + 1 > w.settings[QUEUED_REQS]:
        return True
    tokens = np.int64(0)
    for r in range(replica * members, (replica + 1) * members):
        tokens += w.ints[r, PREFILL_TOKENS]
    return tokens >= w.settings[QUEUED_TOKENS]


@inlined
def enter(w, r, q, t):
    """A request reaches the queue of rank r."""
    w.ri[q, RANK] = r
    w.ints[r, UNFINISHED] += 1
    w.ints[r, PREFILL_TOKENS] += w.ri[q, PROMPT]
    count_in_system(w, r, t)
    add_waiting(w, r, q, False)


@inlined
def take_arrival(w, t):
    """Route the next request, or turn it away: it could never fit, or the queue is full."""
    q = w.totals[NEXT_REQUEST]
    w.totals[NEXT_REQUEST] += 1
    welcome = fits_alone(w, q)
    if welcome:
        replica = route(w)
        welcome = not queue_is_full(w, replica)
        if welcome:
            r = rank_of(w, replica)
            enter(w, r, q, t)
            e = r // w.settings[DATA_PARALLEL] if w.settings[LOCKSTEP] == 1 else r
            if w.engine_floats[e, NEXT_EVENT] == np.inf:
                w.engine_floats[e, NEXT_EVENT] = t
                w.engine_ints[e, PLANNING] = 1
    if not welcome:
        w.ri[q, STATE] = REJECTED
        if w.ri[q, PHASE] == IN_WINDOW:
            w.totals[WINDOW_LEFT] -= 1
        release_next(w, t)


@cached_kernel
def run_full_kernel(w, until_s):
    """Run the whole request plane up to until_s; the rules are those of `kernel.run_kernel`."""
    engines = len(w.engine_ints)
    closed = w.settings[CLOSED_LOOP] == 1
    while w.totals[ERROR] == 0:
        q = w.totals[NEXT_REQUEST]
        arrival = w.rf[q, ARRIVAL] if q < w.totals[RELEASED] else np.inf
        horizon = min(arrival, until_s)
        start, stop, bound = 0, engines, horizon
        if closed:  # releases must come in the order of time, so only the engine whose event comes first may move
            second = np.inf
            for e in range(1, engines):
                if w.engine_floats[e, NEXT_EVENT] < w.engine_floats[start, NEXT_EVENT]:
                    second = w.engine_floats[start, NEXT_EVENT]
                    start = e
                elif w.engine_floats[e, NEXT_EVENT] < second:
                    second = w.engine_floats[e, NEXT_EVENT]
            stop = start + 1
            bound = min(horizon, max(second, np.nextafter(w.engine_floats[start, NEXT_EVENT], np.inf)))
        moved = False
        for e in range(start, stop):
            if w.engine_floats[e, NEXT_EVENT] < horizon:
                moved = True
                advance(w, e, bound)
        if closed and moved:
            continue
        if arrival > until_s or arrival == np.inf:
            return
        if not closed and w.totals[WINDOW_REQUESTS] > 0 and w.totals[WINDOW_LEFT] == 0:
            w.totals[STOPPED] = 1
            return
        take_arrival(w, arrival)


@cached_kernel
def plan_step(w):
    """One call of the scheduler of a single rank, without a clock: for comparison with vLLM's."""
    plan(w, 0, 0.0)
    w.totals[ERROR] = 0


@cached_kernel
def take_step(w):
    """The oldest step of a single rank has ended, without a clock."""
    take(w, 0, 0.0)


@cached_kernel
def enter_step(w, q):
    """Request q reaches a single rank, without a clock."""
    enter(w, 0, q, 0.0)
