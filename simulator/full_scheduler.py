"""The scheduler of the full kernel: what `scheduler.py` says, in arrays, line by line.

`schedule_rank` is `Scheduler.schedule`, `take_output` is `Scheduler.take_output`; comments there say why. A batch lies
in `FullWorld.batch[rank, slot]`; under asynchronous scheduling two slots are in flight.
"""

import numpy as np

from simulator.compiled import inlined
from simulator.full_blocks import allocate, find_prefix, has_room, register_blocks, release_blocks
from simulator.full_tables import (
    ACTIVE,
    ADAPTIVE,
    ANY_WINDOW,
    AREA,
    AREA_LAST,
    BATCH_PEAK,
    BEFORE,
    BLOCK_SIZE,
    BUDGET,
    CACHED,
    CACHING,
    CHUNKED,
    COMPUTED,
    DECODE_STEP,
    DECODING,
    DEPTH,
    DISCARDED_TOKENS,
    DRAFTS,
    DRAW,
    DRAWS,
    EMITTED,
    ENTRY_DRAFTS,
    ENTRY_INTS,
    FINISHED,
    HIT_TOKENS,
    IN_FLIGHT,
    KV_PEAK,
    LOOKAHEAD,
    MAX_MODEL_LEN,
    MAX_TOKENS,
    NEXT,
    NUM_BLOCKS,
    OUTPUT,
    PADDED,
    PLACEHOLDERS,
    PREEMPTED,
    PREEMPTIONS,
    PREFILLING,
    PRIORITY,
    PRIORITY_POLICY,
    PROMPT,
    REFUSED_TOKENS,
    REQ,
    RUNNING,
    SAMPLES,
    SCHEDULED_TOKENS,
    SEATS,
    SPECULATIVE,
    STALE,
    STATE,
    THRESHOLD,
    TOKENS,
    VERIFIED,
    WAIT_COUNT,
    WAIT_HEAD,
    WAIT_TAIL,
    WAITING,
)

# ---- The queue ----


@inlined
def goes_before(w, a, b):
    """Whether request a is served before b under priorities; rows are in order of arrival."""
    if w.ri[a, PRIORITY] != w.ri[b, PRIORITY]:
        return w.ri[a, PRIORITY] < w.ri[b, PRIORITY]
    return a < b


@inlined
def rise(w, r, i, q):
    """Place q at position i of the priority queue or above it."""
    while i > 0:
        parent = (i - 1) >> 1
        if goes_before(w, w.heap[r, parent], q):
            break
        w.heap[r, i] = w.heap[r, parent]
        i = parent
    w.heap[r, i] = q


@inlined
def sink(w, r, count, i, q):
    """Place q at position i of a queue of `count` or below it."""
    while True:
        child = 2 * i + 1
        if child >= count:
            break
        if child + 1 < count and goes_before(w, w.heap[r, child + 1], w.heap[r, child]):
            child += 1
        if goes_before(w, q, w.heap[r, child]):
            break
        w.heap[r, i] = w.heap[r, child]
        i = child
    w.heap[r, i] = q


@inlined
def add_waiting(w, r, q, at_head):
    w.ri[q, STATE] = WAITING
    count = w.ints[r, WAIT_COUNT]
    if w.settings[PRIORITY_POLICY] == 1:
        rise(w, r, count, q)
    elif count == 0:
        w.ri[q, NEXT] = -1
        w.ints[r, WAIT_HEAD] = q
        w.ints[r, WAIT_TAIL] = q
    elif at_head:
        w.ri[q, NEXT] = w.ints[r, WAIT_HEAD]
        w.ints[r, WAIT_HEAD] = q
    else:
        w.ri[q, NEXT] = -1
        w.ri[w.ints[r, WAIT_TAIL], NEXT] = q
        w.ints[r, WAIT_TAIL] = q
    w.ints[r, WAIT_COUNT] = count + 1


@inlined
def drop_waiting(w, r, q):
    """Take q out of the queue, wherever it stands: almost always at the head."""
    w.ints[r, WAIT_COUNT] -= 1
    last = w.ints[r, WAIT_COUNT]
    if w.settings[PRIORITY_POLICY] == 1:
        i = 0
        while w.heap[r, i] != q:
            i += 1
        if i < last:
            moved = w.heap[r, last]
            if i > 0 and goes_before(w, moved, w.heap[r, (i - 1) >> 1]):
                rise(w, r, i, moved)
            else:
                sink(w, r, last, i, moved)
        return
    before = np.int64(-1)
    at = w.ints[r, WAIT_HEAD]
    while at != q:
        before = at
        at = w.ri[at, NEXT]
    if before < 0:
        w.ints[r, WAIT_HEAD] = w.ri[q, NEXT]
    else:
        w.ri[before, NEXT] = w.ri[q, NEXT]
    if w.ints[r, WAIT_TAIL] == q:
        w.ints[r, WAIT_TAIL] = before


@inlined
def count_in_system(w, r, t):
    """Keep the integral of requests in the system up to date before their number changes."""
    w.floats[r, AREA] += (w.ints[r, RUNNING] + w.ints[r, WAIT_COUNT]) * (t - w.floats[r, AREA_LAST])
    w.floats[r, AREA_LAST] = t


# ---- Giving way ----


@inlined
def remove_running(w, r, position):
    count = w.ints[r, RUNNING] - 1
    for i in range(position, count):
        w.running[r, i] = w.running[r, i + 1]
    w.ints[r, RUNNING] = count


@inlined
def victim_position(w, r):
    count = w.ints[r, RUNNING]
    if w.settings[PRIORITY_POLICY] == 0:
        return count - 1
    worst = 0
    for i in range(1, count):
        if goes_before(w, w.running[r, worst], w.running[r, i]):
            worst = i
    return worst


@inlined
def preempt(w, r, q):
    release_blocks(w, r, q)
    w.ints[r, DISCARDED_TOKENS] += w.ri[q, COMPUTED]
    w.ints[r, PREEMPTED] += 1
    w.ri[q, COMPUTED] = 0
    w.ri[q, DRAFTS] = 0
    w.ri[q, STALE] = w.ri[q, IN_FLIGHT]
    w.ri[q, PLACEHOLDERS] = 0
    w.ri[q, DECODING] = 0
    w.ri[q, PREEMPTIONS] += 1
    add_waiting(w, r, q, True)


# ---- One step ----


@inlined
def tokens_wanted(w, q):
    row = w.ri[q]
    computed, placeholders = row[COMPUTED], row[PLACEHOLDERS]
    if placeholders > 0 and computed + 2 - placeholders >= row[PROMPT] + row[MAX_TOKENS]:
        return 0
    return row[PROMPT] + row[EMITTED] + row[DRAFTS] + placeholders - computed


@inlined
def schedule_rank(w, r, slot):
    """Plan one step of rank r into its batch `slot`; returns how many requests were preempted."""
    settings = w.settings
    batch = w.batch
    budget = settings[BUDGET]
    cap = np.int64(0)
    eligible = w.ints[r, RUNNING] + w.ints[r, WAIT_COUNT]
    if settings[THRESHOLD] > 0 and eligible > 1:
        cap = settings[THRESHOLD]
        if settings[ADAPTIVE] == 1:
            cap = max(cap, budget // eligible)
    count = 0
    preempted = 0
    chunk_among_running = False
    max_model_len = settings[MAX_MODEL_LEN]
    size, lookahead = settings[BLOCK_SIZE], settings[LOOKAHEAD]
    caching, simple = settings[CACHING] == 1, settings[ANY_WINDOW] == 0

    # 1. The running requests, in order.
    index = 0
    while index < w.ints[r, RUNNING] and budget > 0:
        q = w.running[r, index]
        tokens = tokens_wanted(w, q)
        if 0 < cap < tokens:
            tokens = cap
        tokens = min(tokens, budget, max_model_len - w.ri[q, COMPUTED] - 1)
        if tokens <= 0:
            index += 1
            continue
        gave_way_itself = False
        room = simple and has_room(w, r, q, tokens, size, max_model_len, lookahead, caching)
        while not room and not allocate(w, r, q, tokens, 0, False, True):
            position = victim_position(w, r)
            victim = w.running[r, position]
            remove_running(w, r, position)
            if position < index:
                index -= 1
            if settings[PRIORITY_POLICY] == 1:
                for i in range(count):
                    if batch[r, slot, i, REQ] == victim:
                        budget += batch[r, slot, i, TOKENS]
                        for j in range(i, count - 1):
                            for column in range(ENTRY_INTS):
                                batch[r, slot, j, column] = batch[r, slot, j + 1, column]
                        count -= 1
                        break
            preempt(w, r, victim)
            preempted += 1
            if victim == q:
                gave_way_itself = True
                break
        if gave_way_itself:
            break
        row = w.ri[q]
        drafts = row[COMPUTED] + tokens - row[PROMPT] - row[EMITTED] - row[PLACEHOLDERS]
        entry = batch[r, slot, count]
        entry[REQ] = q
        entry[TOKENS] = tokens
        entry[ENTRY_DRAFTS] = min(max(0, drafts), row[DRAFTS])
        entry[PADDED] = 0
        count += 1
        row[DRAFTS] = 0
        chunk_among_running |= row[PREFILLING] == 1
        budget -= tokens
        index += 1

    # 2. The queue, unless somebody had to be thrown out.
    any_running = count > 0
    speculative = settings[SPECULATIVE]
    while preempted == 0 and budget > 0 and w.ints[r, WAIT_COUNT] > 0 and w.ints[r, RUNNING] < settings[SEATS]:
        q = w.heap[r, 0] if settings[PRIORITY_POLICY] == 1 else w.ints[r, WAIT_HEAD]
        hit = find_prefix(w, r, q)
        hit_tokens = hit * settings[BLOCK_SIZE]
        tokens = w.ri[q, PROMPT] + w.ri[q, EMITTED] - hit_tokens
        drafts = np.int64(0)
        if tokens == 1 and speculative > 0 and not chunk_among_running:
            wide = 1 + speculative
            if (any_running or hit_tokens > 0) and hit_tokens + wide + 1 <= max_model_len:
                if wide > budget:
                    break
                tokens = wide
                drafts = speculative
        if 0 < cap < tokens:
            tokens = cap
        if settings[CHUNKED] == 0 and tokens > budget:
            break
        tokens = min(tokens, budget)
        if not allocate(w, r, q, tokens, hit, True, w.ints[r, RUNNING] > 0):
            break
        drop_waiting(w, r, q)
        w.running[r, w.ints[r, RUNNING]] = q
        w.ints[r, RUNNING] += 1
        w.ri[q, STATE] = ACTIVE
        if w.ri[q, PREEMPTIONS] == 0:
            w.ri[q, CACHED] = hit_tokens
        w.ri[q, COMPUTED] = hit_tokens
        w.ints[r, HIT_TOKENS] += hit_tokens
        batch[r, slot, count, REQ] = q
        batch[r, slot, count, TOKENS] = tokens
        batch[r, slot, count, ENTRY_DRAFTS] = drafts
        batch[r, slot, count, PADDED] = 1 if drafts > 0 else 0
        count += 1
        budget -= tokens

    # 3. Count the step as computed.
    total = 0
    later = settings[DEPTH] == 2
    for i in range(count):
        entry = batch[r, slot, i]
        row = w.ri[entry[REQ]]
        tokens = entry[TOKENS]
        before = row[COMPUTED]
        entry[BEFORE] = before
        entry[DECODE_STEP] = row[DECODING]
        row[COMPUTED] = before + tokens
        row[IN_FLIGHT] += tokens
        total += tokens
        if before + tokens < row[PROMPT] + row[EMITTED] + row[PLACEHOLDERS]:
            row[PREFILLING] = 1
            entry[SAMPLES] = 0
        else:
            row[PREFILLING] = 0
            entry[SAMPLES] = 1
            row[DECODING] = 1
            if later:
                row[PLACEHOLDERS] += 1 + entry[ENTRY_DRAFTS]
                row[DRAFTS] = speculative
    w.batch_count[r, slot] = count
    w.ints[r, SCHEDULED_TOKENS] += total
    w.ints[r, BATCH_PEAK] = max(w.ints[r, BATCH_PEAK], w.ints[r, RUNNING])
    w.ints[r, KV_PEAK] = max(w.ints[r, KV_PEAK], settings[NUM_BLOCKS] - w.pool.free[r])
    return preempted


@inlined
def tokens_given(w, r, slot, i, t):
    """Entry i of a batch that has ended: how many answer tokens its request gets. A finished one leaves its seat."""
    entry = w.batch[r, slot, i]
    q = entry[REQ]
    tokens = entry[TOKENS]
    row = w.ri[q]
    row[IN_FLIGHT] -= tokens
    stale = row[STALE] > 0
    if stale:
        row[STALE] -= tokens
    if row[STATE] == FINISHED or entry[SAMPLES] == 0:
        return 0
    later = w.settings[DEPTH] == 2
    drafts = entry[ENTRY_DRAFTS]
    accepted = np.int64(0)
    if drafts > 0:
        if entry[PADDED] == 0:
            if row[VERIFIED] < row[DRAWS]:
                accepted = min(drafts, w.draws[row[DRAW] + row[VERIFIED]])
            row[VERIFIED] += 1
        if not stale:
            row[COMPUTED] -= drafts - accepted
            w.ints[r, REFUSED_TOKENS] += drafts - accepted
            if row[PLACEHOLDERS] > 0:
                row[PLACEHOLDERS] -= drafts - accepted
    count = min(1 + accepted, row[OUTPUT] - row[EMITTED])
    row[EMITTED] += count
    if later and not stale:
        row[PLACEHOLDERS] -= count
        if w.settings[CACHING] == 1:
            register_blocks(w, r, q, row[COMPUTED] - row[PLACEHOLDERS])
    if row[EMITTED] == row[OUTPUT]:
        count_in_system(w, r, t)
        if row[STATE] == ACTIVE:
            position = 0
            while w.running[r, position] != q:
                position += 1
            remove_running(w, r, position)
        else:
            drop_waiting(w, r, q)
        release_blocks(w, r, q)
        row[STATE] = FINISHED
    elif not later and not stale:
        row[DRAFTS] = w.settings[SPECULATIVE]
    return count
