"""The compiled request plane: arrivals, a router, and replicas that follow vLLM's V1 scheduler token by token.

A step is what vLLM 0.32 `v1/core/sched/scheduler.py: Scheduler.schedule` does once: the running requests first, in
order of admission, one token each once their prompt is complete; then waiting requests while nothing was preempted,
tokens of `max_num_batched_tokens` are left, fewer than `max_num_seqs` run and the KV blocks of the whole known
sequence are free. `reference.py` says the same in plain Python and is the authority; `tests/differential` demands
equal logs.

Two facts make this fast. Under first-come-first-served every running request but the last has its prompt complete, so
a step is described by counts (how many decode, how much context they hold) and one partial prefill. And between two
events (an arrival, a finish, a full cache) the decode batch does not change: all its members advance together, so a
step costs a few additions. Finishes wait in a heap keyed by the count of steps; new blocks fall due by the position of
a sequence modulo the block size, so they are counted in `block_size` buckets; the longest stall of each request is read
from a stack of falling step times when it ends.

With two steps in flight (asynchronous scheduling) the step behind the pending one is scheduled when the pending one
begins. Here that is done when it has ended, with what could be seen then: later arrivals are passed over, and seats and
blocks that became free since are given back afterwards. Where a request would be preempted while its answer is under
way the run stops with NEEDS_FULL_KERNEL. Prefix caching: `named_blocks`.

Left to the full kernel: `long_prefill_token_threshold`, `watermark`, chunked prefill off, priorities, fewer seats than
`max_num_seqs`, speculative decoding, answers whose end is not known, queue limits, data-parallel ranks, and the release
of blocks behind a sliding window (the memory ledger reserves those blocks instead: `hardware_profiles.memory`).

Times are seconds on the engine's clock: a request enters the engine `request_overhead_s` after it was sent, and the
caller shifts. Ties: a request that arrives exactly when a step ends is seen by the next step. All state is in
`tables.World`, so a run can stop at any time and go on.
"""

import numpy as np

from simulator.compiled import cached_kernel, inlined
from simulator.gaps import gap_bin, note_stall
from simulator.heap import ADMISSION_BITS, sift_down
from simulator.named_blocks import adopt_hits, find_named, know_due, know_named, take_due, take_named, unused_hits
from simulator.running_list import (
    admit,
    enqueue,
    finish,
    free_blocks,
    free_late,
    join_decode,
    leave_decode,
    preempt_last,
)
from simulator.tables import (
    ARRIVAL,
    ATTENTION_S,
    BATCH_PEAK,
    BLOCK_SIZE,
    CACHED,
    CLOSED_LOOP,
    COMPLETING,
    COMPUTED,
    CONTEXT,
    DECODE_BUSY,
    DECODING,
    EMITTED,
    ERROR,
    FIRST_TOKEN,
    FREE_BLOCKS,
    GROWING,
    HEAP_COUNT,
    HIT_TOKENS,
    HOST_S,
    HOST_SEQUENCE_S,
    IN_WINDOW,
    ITL_MAX,
    KV_PEAK,
    KV_S,
    LAST_TOKEN,
    LATE_SEATS,
    LEAST_OUTSTANDING,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    NAMED,
    NEEDS_FULL_KERNEL,
    NEXT_REQUEST,
    NOTHING_SCHEDULABLE,
    NUM_BLOCKS,
    OUTPUT,
    OUTSTANDING,
    PARTIAL,
    PENDING_TOKENS,
    PHASE,
    PREEMPTIONS,
    PREFILL_BUSY,
    PREFILL_REQUEST_S,
    PROMPT,
    QUIET,
    REJECTED,
    RELEASE_DELAY_S,
    RELEASED,
    ROUTE_POINTER,
    ROUTING,
    RUNNING,
    SAMPLE_S,
    SCHEDULED_TOKENS,
    SEEN,
    STACK_COUNT,
    STATE,
    STEP_COUNT,
    STEP_END,
    STEP_S,
    STEP_START,
    STOPPED,
    SYNC_S,
    TWO_IN_FLIGHT,
    WAIT_HEAD,
    WINDOW,
    WINDOW_ATTENTION_S,
    WINDOW_CONTEXT,
    WINDOW_KV_S,
    WINDOW_LEFT,
    WINDOW_REQUESTS,
    WORKLOAD,
)

__all__ = ["run_kernel"]


@inlined
def _window_pairs(window, context, chunk):
    """Pairs of (query, key) of `chunk` new tokens behind `context` under a sliding window."""
    if context >= window:
        return float(chunk) * window
    inside = min(chunk, window - context)
    return inside * (context + 0.5 * inside) + float(chunk - inside) * window


@inlined
def _advance(w, r, until):
    """Run replica r while its pending step ends before `until`; in a closed loop, only until a request is released."""
    engine, coef, decode_s, mixed_s, edges_s = w.engine, w.coefficients, w.decode_s, w.mixed_s, w.edges_s
    ri, rf, ints, floats, totals = w.ri, w.rf, w.ints, w.floats, w.totals
    heap_keys, heap_values, due, crossing = w.heap_keys, w.heap_values, w.due, w.crossing
    completing, window_decodes, itl_counts = w.completing, w.window_decodes, w.itl_counts
    block = engine[BLOCK_SIZE]
    window = engine[WINDOW]
    max_num_seqs = engine[MAX_NUM_SEQS]
    workloads = itl_counts.shape[0]
    num_blocks = engine[NUM_BLOCKS]
    two_in_flight = engine[TWO_IN_FLIGHT] == 1
    named = engine[NAMED] == 1
    t = floats[r, STEP_END]

    while t < until:
        # ---- 1. A stretch of decode steps: nothing can join, so only contexts grow until the next event. ----
        if ints[r, QUIET] == 1 and ints[r, PENDING_TOKENS] > 0:
            decodes = ints[r, DECODING]
            fixed_s = decode_s[decodes] + coef[SAMPLE_S] * decodes
            host_s = coef[HOST_S] + coef[HOST_SEQUENCE_S] * decodes
            kv_s, window_kv_s, sync_s = coef[KV_S], coef[WINDOW_KV_S], coef[SYNC_S]
            context, window_context, growing = ints[r, CONTEXT], ints[r, WINDOW_CONTEXT], ints[r, GROWING]
            free = ints[r, FREE_BLOCKS]
            first_step = ints[r, STEP_COUNT]
            step = first_step
            last_step = (heap_keys[r, 0] >> ADMISSION_BITS) - 1
            position = (-step) % block
            step_s = floats[r, STEP_S]
            start_s = floats[r, STEP_START]
            busy_s = floats[r, DECODE_BUSY]
            bin_ = 0
            low_s, high_s = np.inf, -np.inf
            gaps = 0
            last_gap_s = 0.0
            while t < until and step < last_step:
                step += 1
                context += decodes
                if growing > 0:
                    window_context += growing
                    slot = step % (window + 1)
                    growing -= crossing[r, slot]
                    crossing[r, slot] = 0
                if step_s >= high_s or step_s < low_s:
                    for k in range(workloads):
                        itl_counts[k, bin_] += gaps * window_decodes[r, k]
                    gaps = 0
                    bin_ = gap_bin(w, r, step_s)
                    low_s = edges_s[bin_ - 1] if bin_ > 0 else -np.inf
                    high_s = edges_s[bin_] if bin_ < len(edges_s) else np.inf
                gaps += 1
                last_gap_s = step_s
                position = position - 1 if position > 0 else block - 1
                if due[r, position] > free:  # the cache is full: the ended step counts, the next is scheduled above
                    ints[r, PENDING_TOKENS] = 0
                    break
                free -= due[r, position]
                if named:
                    take_due(w, r, step)
                    know_due(w, r, step, two_in_flight)
                step_s = max(host_s, fixed_s + kv_s * context + window_kv_s * window_context) + sync_s
                busy_s += step_s
                start_s = t
                t += step_s
            ended = step - first_step
            if ended > 0:
                for k in range(workloads):
                    itl_counts[k, bin_] += gaps * window_decodes[r, k]
                note_stall(w, r, step, last_gap_s)
                ints[r, STEP_COUNT] = step
                ints[r, CONTEXT] = context
                ints[r, WINDOW_CONTEXT] = window_context
                ints[r, GROWING] = growing
                ints[r, FREE_BLOCKS] = free
                ints[r, KV_PEAK] = max(ints[r, KV_PEAK], num_blocks - free)
                ints[r, SCHEDULED_TOKENS] += (ended if ints[r, PENDING_TOKENS] > 0 else ended - 1) * decodes
                floats[r, DECODE_BUSY] = busy_s
                floats[r, STEP_S] = step_s
                floats[r, STEP_START] = start_s
            if t >= until:
                break

        # ---- 2. The pending step ends at t: gaps, finished sequences, first tokens. ----
        if ints[r, PENDING_TOKENS] > 0:
            released = False
            ints[r, PENDING_TOKENS] = 0
            ints[r, STEP_COUNT] += 1
            step = ints[r, STEP_COUNT]
            if ints[r, DECODING] > 0:
                ints[r, CONTEXT] += ints[r, DECODING]
                if ints[r, GROWING] > 0:
                    ints[r, WINDOW_CONTEXT] += ints[r, GROWING]
                    slot = step % (window + 1)
                    ints[r, GROWING] -= crossing[r, slot]
                    crossing[r, slot] = 0
                bin_ = gap_bin(w, r, floats[r, STEP_S])
                for k in range(workloads):
                    itl_counts[k, bin_] += window_decodes[r, k]
                note_stall(w, r, step, floats[r, STEP_S])
            while ints[r, HEAP_COUNT] > 0 and (heap_keys[r, 0] >> ADMISSION_BITS) == step:
                q = heap_values[r, 0]
                ints[r, HEAP_COUNT] -= 1
                last = ints[r, HEAP_COUNT]
                if last > 0:
                    sift_down(w, r, last, 0, heap_keys[r, last], heap_values[r, last])
                leave_decode(w, r, q, step)
                released |= finish(w, r, q, t)
            for i in range(ints[r, COMPLETING]):
                q = completing[r, i]
                if ri[q, EMITTED] == 0:
                    rf[q, FIRST_TOKEN] = t
                else:  # recomputed after a preemption: the reader waited since the last token before it
                    gap_s = t - rf[q, LAST_TOKEN]
                    if not rf[q, ITL_MAX] >= gap_s:
                        rf[q, ITL_MAX] = gap_s
                    if ri[q, PHASE] == IN_WINDOW:
                        itl_counts[ri[q, WORKLOAD], gap_bin(w, r, gap_s)] += 1
                ri[q, EMITTED] += 1
                if ri[q, EMITTED] == ri[q, OUTPUT]:
                    free_blocks(w, r, q, ri[q, COMPUTED])
                    released |= finish(w, r, q, t)
                else:
                    join_decode(w, r, q, step)
            ints[r, COMPLETING] = 0
            if ints[r, DECODING] == 0:
                ints[r, STACK_COUNT] = 0
            if released:
                floats[r, STEP_END] = t
                return

        if ints[r, OUTSTANDING] == 0:
            free_late(w, r)
            floats[r, STEP_END] = np.inf
            return

        # ---- 3. Schedule: running requests first, then the queue. ----
        # With two steps in flight this was decided when the step that just ended began: what has arrived or become
        # free since then is not seen, unless nothing could be scheduled then.
        planned_s = floats[r, STEP_START] if two_in_flight else t
        tokens = 0
        while tokens == 0:
            step = ints[r, STEP_COUNT]
            preempted = False
            while due[r, (-step) % block] > ints[r, FREE_BLOCKS]:
                if two_in_flight:
                    totals[ERROR] = NEEDS_FULL_KERNEL
                    return
                preempt_last(w, r, t)
                preempted = True
            ints[r, FREE_BLOCKS] -= due[r, (-step) % block]
            if named:
                take_due(w, r, step)
                know_due(w, r, step, two_in_flight)
            decodes = ints[r, DECODING]
            tokens = decodes
            budget = engine[MAX_NUM_BATCHED_TOKENS] - decodes
            pairs = 0.0
            window_pairs = 0.0
            prefills = 0
            q = ints[r, PARTIAL]
            if q >= 0 and budget > 0:
                context = ri[q, COMPUTED]
                known = ri[q, PROMPT] + ri[q, EMITTED]
                chunk = min(known - context, budget)
                need = (context + chunk + block - 1) // block - (context + block - 1) // block
                if need > ints[r, FREE_BLOCKS]:
                    if two_in_flight:
                        totals[ERROR] = NEEDS_FULL_KERNEL
                        return
                    preempt_last(w, r, t)
                    preempted = True
                else:
                    ints[r, FREE_BLOCKS] -= need
                    ri[q, COMPUTED] = context + chunk
                    if named:
                        held = (context + block - 1) // block
                        take_named(w, r, q, held, held + need)
                        know_named(w, r, q, context // block, (context + chunk) // block)
                    tokens += chunk
                    budget -= chunk
                    prefills += 1
                    pairs += chunk * (context + 0.5 * chunk)
                    if window > 0:
                        window_pairs += _window_pairs(window, context, chunk)
                    if context + chunk == known:
                        completing[r, ints[r, COMPLETING]] = q
                        ints[r, COMPLETING] += 1
                        ints[r, PARTIAL] = -1
            seats = max_num_seqs - ints[r, LATE_SEATS]
            while not preempted and budget > 0 and ints[r, WAIT_HEAD] >= 0 and ints[r, RUNNING] < seats:
                q = ints[r, WAIT_HEAD]
                if two_in_flight and rf[q, SEEN] > planned_s:
                    break
                known = ri[q, PROMPT] + ri[q, EMITTED]
                hit = 0
                unused = 0
                if named:
                    hit = find_named(w, r, q)
                    unused = unused_hits(w, r, q, hit)
                if (known + block - 1) // block - hit + unused > ints[r, FREE_BLOCKS]:
                    break  # checked for the whole, taken for the chunk
                context = hit * block
                chunk = min(known - context, budget)
                admit(w, r, q, t)
                need = (context + chunk + block - 1) // block - hit
                ints[r, FREE_BLOCKS] -= need + unused
                ri[q, COMPUTED] = context + chunk
                if named:
                    adopt_hits(w, r, q, hit)
                    take_named(w, r, q, hit, hit + need)
                    know_named(w, r, q, hit, (context + chunk) // block)
                    ints[r, HIT_TOKENS] += context
                    if ri[q, PREEMPTIONS] == 0:
                        ri[q, CACHED] = context
                tokens += chunk
                budget -= chunk
                prefills += 1
                pairs += chunk * (context + 0.5 * chunk)
                if window > 0:
                    window_pairs += _window_pairs(window, context, chunk)
                if context + chunk == known:
                    completing[r, ints[r, COMPLETING]] = q
                    ints[r, COMPLETING] += 1
                else:
                    ints[r, PARTIAL] = q
            if tokens == 0 and not preempted:
                if planned_s == t and ints[r, LATE_SEATS] == 0:
                    totals[ERROR] = NOTHING_SCHEDULABLE
                    return
                planned_s = t  # an empty step: the next one is scheduled at once, with all that is known by now
                free_late(w, r)
        ints[r, SCHEDULED_TOKENS] += tokens
        ints[r, BATCH_PEAK] = max(ints[r, BATCH_PEAK], ints[r, RUNNING] + ints[r, LATE_SEATS])
        ints[r, KV_PEAK] = max(ints[r, KV_PEAK], num_blocks - ints[r, FREE_BLOCKS])
        quiet = not preempted
        if two_in_flight:
            quiet &= ints[r, LATE_SEATS] == 0 and (ints[r, WAIT_HEAD] < 0 or rf[ints[r, WAIT_HEAD], SEEN] <= planned_s)
            free_late(w, r)

        # ---- 4. How long this step takes (steptime.StepTimeModel.step_s, term by term in the same order). ----
        sampled = decodes + ints[r, COMPLETING]
        ints[r, PENDING_TOKENS] = tokens
        host_s = coef[HOST_S] + coef[HOST_SEQUENCE_S] * (decodes + prefills)
        if prefills > 0:
            gpu_s = (
                mixed_s[tokens]
                + coef[SAMPLE_S] * sampled
                + coef[KV_S] * ints[r, CONTEXT]
                + coef[WINDOW_KV_S] * ints[r, WINDOW_CONTEXT]
                + coef[ATTENTION_S] * pairs
                + coef[WINDOW_ATTENTION_S] * window_pairs
                + coef[PREFILL_REQUEST_S] * prefills
            )
            step_s = max(host_s, gpu_s) + coef[SYNC_S]
            if decodes > 0:  # what the decodes alone would have taken is theirs, the rest is the prefill's
                alone_s = (
                    max(
                        coef[HOST_S] + coef[HOST_SEQUENCE_S] * decodes,
                        decode_s[decodes]
                        + coef[SAMPLE_S] * decodes
                        + coef[KV_S] * ints[r, CONTEXT]
                        + coef[WINDOW_KV_S] * ints[r, WINDOW_CONTEXT],
                    )
                    + coef[SYNC_S]
                )
                alone_s = min(alone_s, step_s)
                floats[r, DECODE_BUSY] += alone_s
                floats[r, PREFILL_BUSY] += step_s - alone_s
            else:
                floats[r, PREFILL_BUSY] += step_s
        else:
            step_s = (
                max(
                    host_s,
                    decode_s[decodes]
                    + coef[SAMPLE_S] * decodes
                    + coef[KV_S] * ints[r, CONTEXT]
                    + coef[WINDOW_KV_S] * ints[r, WINDOW_CONTEXT],
                )
                + coef[SYNC_S]
            )
            floats[r, DECODE_BUSY] += step_s
        floats[r, STEP_S] = step_s
        floats[r, STEP_START] = t
        t += step_s

        ints[r, QUIET] = 1 if prefills == 0 and quiet else 0
    floats[r, STEP_END] = t


@inlined
def _route(w):
    """The replica for the next request; ties go to the next one in turn, so that equal replicas share the load."""
    engine, ints, totals = w.engine, w.ints, w.totals
    replicas = len(ints)
    start = totals[ROUTE_POINTER]
    best = start
    if engine[ROUTING] == LEAST_OUTSTANDING:
        for i in range(1, replicas):
            r = start + i
            if r >= replicas:
                r -= replicas
            if ints[r, OUTSTANDING] < ints[best, OUTSTANDING]:
                best = r
    totals[ROUTE_POINTER] = best + 1 if best + 1 < replicas else 0
    return best


@inlined
def _take_arrival(w, now):
    """Route the next request, or refuse it when it could never fit (vLLM answers 400 to such a request)."""
    engine, coef, ri, rf, totals = w.engine, w.coefficients, w.ri, w.rf, w.totals
    q = totals[NEXT_REQUEST]
    totals[NEXT_REQUEST] += 1
    block = engine[BLOCK_SIZE]
    if (ri[q, PROMPT] + ri[q, OUTPUT] - 1 + block - 1) // block > engine[NUM_BLOCKS]:  # the last is never read again
        ri[q, STATE] = REJECTED
        if ri[q, PHASE] == IN_WINDOW:
            totals[WINDOW_LEFT] -= 1
        if engine[CLOSED_LOOP] == 1 and totals[RELEASED] < len(ri):  # its sender learns so at once and sends the next
            rf[totals[RELEASED], ARRIVAL] = now + coef[RELEASE_DELAY_S]
            totals[RELEASED] += 1
        return
    enqueue(w, _route(w), q, now)


@cached_kernel
def run_kernel(w, until_s):
    """Run the whole request plane up to until_s: arrivals at until_s are taken, steps that end at until_s are not.

    Open loop: stops before the first arrival after every request of the window has finished (totals[STOPPED] = 1).
    Closed loop: each finish releases the next request; ends when all are finished. Call again to go on.
    """
    engine, rf, floats, totals = w.engine, w.rf, w.floats, w.totals
    replicas = len(w.ints)
    closed = engine[CLOSED_LOOP] == 1
    while totals[ERROR] == 0:
        q = totals[NEXT_REQUEST]
        arrival = rf[q, ARRIVAL] if q < totals[RELEASED] else np.inf
        horizon = min(arrival, until_s)
        start, stop, bound = 0, replicas, horizon
        if closed:  # releases must come in the order of time, so only the replica whose step ends first may move
            second = np.inf
            for r in range(1, replicas):
                if floats[r, STEP_END] < floats[start, STEP_END]:
                    second = floats[start, STEP_END]
                    start = r
                elif floats[r, STEP_END] < second:
                    second = floats[r, STEP_END]
            stop = start + 1
            bound = min(horizon, max(second, np.nextafter(floats[start, STEP_END], np.inf)))
        moved = False
        for r in range(start, stop):
            if floats[r, STEP_END] < horizon:
                moved = True
                _advance(w, r, bound)
        if closed and moved:
            continue
        if arrival > until_s or arrival == np.inf:
            return
        if not closed and totals[WINDOW_REQUESTS] > 0 and totals[WINDOW_LEFT] == 0:
            totals[STOPPED] = 1
            return
        _take_arrival(w, arrival)
