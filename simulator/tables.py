"""The arrays that hold a running simulation: what each column means, and how they are made.

Numba compiles the kernel once for one set of array types, so everything a run needs is an int64 or a float64 table with
named columns. One row is one request or one replica, so that the fields used together share a cache line. The public
face is `RequestLog` (`log.py`); nothing outside `simulator` reads these tables.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.block_pool import BlockPool, SmallInts, make_pool
from simulator.prefix_blocks import SharedBlocks
from simulator.recorded_blocks import RecordedBlocks
from simulator.rows import Rows

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Requests, integers. COMPUTED: tokens in the KV cache; while STATE is DECODE: that minus the replica's STEP_COUNT, so
# that it need not be touched at every step. NEXT and PREV link the queue (NEXT only) or the running list.
# With prefix caching: TABLE is where its rows of `contents` and `blocks` begin, CACHED what it found of its prompt, and
# BUCKET_NEXT and BUCKET_PREV link the decoding requests that need a block at the same steps.
(
    PROMPT,
    OUTPUT,
    WORKLOAD,
    PHASE,
    STATE,
    EMITTED,
    COMPUTED,
    JOINED_STEP,
    REPLICA,
    PREEMPTIONS,
    ADMISSION,
    NEXT,
    PREV,
    TABLE,
    CACHED,
    BUCKET_NEXT,
    BUCKET_PREV,
) = range(17)
REQUEST_INTS = 17
# Requests, seconds. NaN = not yet. SEEN: from when on the replica's scheduler sees it: as it arrives, or just after if
# a step was scheduled at that very moment.
ARRIVAL, SCHEDULED, FIRST_TOKEN, FINISH, ITL_MAX, LAST_TOKEN, SEEN = range(7)
REQUEST_FLOATS = 7

# Values of STATE.
FUTURE, WAITING, PREFILL, DECODE, FINISHED, REJECTED = range(6)
# Values of PHASE.
WARMUP, IN_WINDOW, RUNOUT = range(3)

# Replicas, integers. PARTIAL is the one admitted request whose prompt is not complete. CONTEXT is the number of cached
# tokens that the next decode step reads, WINDOW_CONTEXT the same cut to the sliding window, GROWING how many sequences
# are still shorter than the window. QUIET: the pending step only decodes and nothing can join before one finishes.
(
    RUN_HEAD,
    RUN_TAIL,
    RUNNING,
    WAIT_HEAD,
    WAIT_TAIL,
    PARTIAL,
    STEP_COUNT,
    DECODING,
    FREE_BLOCKS,
    CONTEXT,
    WINDOW_CONTEXT,
    GROWING,
    HEAP_COUNT,
    COMPLETING,
    PENDING_TOKENS,
    OUTSTANDING,
    STACK_COUNT,
    ADMITTED,
    PREEMPTED,
    SCHEDULED_TOKENS,
    DISCARDED_TOKENS,
    BATCH_PEAK,
    KV_PEAK,
    GAP_BIN,
    QUIET,
    LATE_BLOCKS,
    LATE_SEATS,
    LATE_COUNT,
    HIT_TOKENS,
) = range(29)
REPLICA_INTS = 29
# Replicas, seconds. STEP_END: when the pending step ends (infinite = idle); STEP_START: when it began, which is when
# the step after it is scheduled under asynchronous scheduling; AREA: integral of requests in the system.
STEP_END, STEP_S, AREA, AREA_LAST, PREFILL_BUSY, DECODE_BUSY, STEP_START = range(7)
REPLICA_FLOATS = 7

# The run as a whole.
NEXT_REQUEST, RELEASED, WINDOW_REQUESTS, WINDOW_LEFT, ROUTE_POINTER, ERROR, STOPPED = range(7)
WORLD_INTS = 7
# Values of ERROR.
STALL_STACK_FULL, NOTHING_SCHEDULABLE, NEEDS_FULL_KERNEL = 1, 2, 3

# The engine and the fleet.
(
    MAX_NUM_SEQS,
    MAX_NUM_BATCHED_TOKENS,
    BLOCK_SIZE,
    NUM_BLOCKS,
    WINDOW,
    ROUTING,
    CLOSED_LOOP,
    TWO_IN_FLIGHT,
    NAMED,
) = range(9)
ENGINE_SETTINGS = 9
ROUND_ROBIN, LEAST_OUTSTANDING = 0, 1

# Seconds per unit: see `steptime.StepTimeModel`.
(
    SAMPLE_S,
    KV_S,
    WINDOW_KV_S,
    ATTENTION_S,
    WINDOW_ATTENTION_S,
    PREFILL_REQUEST_S,
    HOST_S,
    HOST_SEQUENCE_S,
    SYNC_S,
    RELEASE_DELAY_S,
) = range(10)
COEFFICIENTS = 10

STALL_STACK = 4096
"""Entries of a replica's stall stack, at least: falling step times since the oldest running decode began. A batch that
empties one by one needs as many as it has seats."""

ITL_EDGES_S: Floats = 10.0 ** (np.arange(0, 141) / 20.0 - 5.0)
"""Fixed edges of ITL histograms: 20 per decade, 10 microseconds to 100 s; bin i holds edges[i-1] <= gap < edges[i]."""


def engine_settings(
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    block_size: int,
    num_blocks: int,
    window_tokens: int,
    least_outstanding: bool,
    closed_loop: bool,
    two_in_flight: bool = False,
    named: bool = False,
) -> Ints:
    """The first table of a `World`. `two_in_flight`: asynchronous scheduling; a run in which somebody would be
    preempted then stops with NEEDS_FULL_KERNEL. `named`: prefix caching, so blocks have names."""
    row = np.zeros(ENGINE_SETTINGS, dtype=np.int64)
    row[MAX_NUM_SEQS], row[MAX_NUM_BATCHED_TOKENS] = max_num_seqs, max_num_batched_tokens
    row[BLOCK_SIZE], row[NUM_BLOCKS], row[WINDOW] = block_size, num_blocks, window_tokens
    row[ROUTING] = LEAST_OUTSTANDING if least_outstanding else ROUND_ROBIN
    row[CLOSED_LOOP], row[TWO_IN_FLIGHT], row[NAMED] = closed_loop, two_in_flight, named
    return row


class World(NamedTuple):
    """All that one run of the kernel reads and writes: N requests, R replicas, W workloads, S max_num_seqs."""

    engine: Ints
    """(9,) engine and fleet settings: `engine_settings`."""
    coefficients: Floats
    """(10,) step-time coefficients, seconds per unit."""
    decode_s: Floats
    """(S + 1,) GPU seconds of a decode-only step by number of tokens, KV reads apart."""
    mixed_s: Floats
    """(max_num_batched_tokens + 1,) the same for steps that hold a prefill chunk."""
    edges_s: Floats
    """Edges of the ITL histogram, seconds."""
    ri: Ints
    """(N, REQUEST_INTS)."""
    rf: Floats
    """(N, REQUEST_FLOATS)."""
    ints: Ints
    """(R, REPLICA_INTS)."""
    floats: Floats
    """(R, REPLICA_FLOATS)."""
    totals: Ints
    """(WORLD_INTS,)."""
    heap_keys: Ints
    """(R, S) finish step << 28 | admission."""
    heap_values: Ints
    """(R, S) request."""
    due: Ints
    """(R, block_size) decoding sequences by (cached tokens − step count) modulo the block size."""
    crossing: Ints
    """(R, window + 1) sequences that reach the sliding window, by step modulo (window + 1)."""
    completing: Ints
    """(R, S) requests whose prompt is complete when the pending step ends."""
    stall_steps: Ints
    """(R, STALL_STACK) step numbers of the stall stack."""
    stall_s: Floats
    """(R, STALL_STACK) step seconds of the stall stack, falling."""
    window_decodes: Ints
    """(R, W) decoding requests of the measured window, by workload."""
    itl_counts: Ints
    """(W, len(edges) + 1) token gaps of the measured window."""
    pool: BlockPool
    """Named blocks, with prefix caching."""
    contents: Ints
    """What full blocks hold, request by request."""
    blocks: SmallInts
    """Block tables, request by request."""
    bucket: Ints
    """(R, block_size, 2) first and last decoding request whose (cached tokens − step count) is that modulo the size."""
    late: Ints
    """(R, S) requests that ended and free their blocks once the step behind theirs is scheduled."""


def make_world(
    *,
    engine: Ints,
    coefficients: Floats,
    decode_s: Floats,
    mixed_s: Floats,
    arrival_s: Floats,
    prompt_tokens: Ints,
    output_tokens: Ints,
    workload: Ints,
    phase: Ints,
    workloads: int,
    replicas: int,
    released: int,
    contents: Rows | SharedBlocks | RecordedBlocks | None = None,
) -> World:
    """Fresh tables for N requests on idle replicas. `released` of them have a known arrival. With prefix caching,
    `contents` says what their full blocks hold; without, nothing is shared."""
    n = len(prompt_tokens)
    if len(engine) != ENGINE_SETTINGS:  # compiled code reads beyond the end of an array without a word
        raise ValueError(f"{len(engine)} engine settings; `engine_settings` makes all {ENGINE_SETTINGS}")
    seqs = int(engine[MAX_NUM_SEQS])
    budget = int(engine[MAX_NUM_BATCHED_TOKENS])
    if budget >= len(mixed_s) or seqs >= len(decode_s) or budget < seqs:
        raise ValueError(
            f"max_num_seqs {seqs} must not exceed max_num_batched_tokens {budget}, and the step times must reach both; "
            f"they reach {len(decode_s) - 1} and {len(mixed_s) - 1} tokens"
        )
    ri = np.zeros((n, REQUEST_INTS), dtype=np.int64)
    ri[:, PROMPT] = prompt_tokens
    ri[:, OUTPUT] = output_tokens
    ri[:, WORKLOAD] = workload
    ri[:, PHASE] = phase
    ri[:, REPLICA] = -1
    ri[:, NEXT] = -1
    ri[:, PREV] = -1
    named = bool(engine[NAMED])
    size = int(engine[BLOCK_SIZE])
    table = -(-(np.asarray(prompt_tokens) + output_tokens) // size) if named else np.zeros(n, dtype=np.int64)
    ri[:, TABLE] = np.cumsum(table) - table
    ri[:, [BUCKET_NEXT, BUCKET_PREV]] = -1
    flat = np.arange(int(table.sum()))
    if contents is not None:
        flat = contents.spread(ri[:, TABLE], int(table.sum()))
    rf = np.full((n, REQUEST_FLOATS), np.nan)
    rf[:, ARRIVAL] = arrival_s
    ints = np.zeros((replicas, REPLICA_INTS), dtype=np.int64)
    ints[:, [RUN_HEAD, RUN_TAIL, WAIT_HEAD, WAIT_TAIL, PARTIAL]] = -1
    ints[:, FREE_BLOCKS] = engine[NUM_BLOCKS]
    floats = np.zeros((replicas, REPLICA_FLOATS))
    floats[:, STEP_END] = np.inf
    totals = np.zeros(WORLD_INTS, dtype=np.int64)
    totals[RELEASED] = released
    totals[[WINDOW_REQUESTS, WINDOW_LEFT]] = int(np.count_nonzero(phase == IN_WINDOW))
    return World(
        engine=np.asarray(engine, dtype=np.int64),
        coefficients=np.asarray(coefficients, dtype=np.float64),
        decode_s=decode_s,
        mixed_s=mixed_s,
        edges_s=ITL_EDGES_S,
        ri=ri,
        rf=rf,
        ints=ints,
        floats=floats,
        totals=totals,
        heap_keys=np.empty((replicas, seqs), dtype=np.int64),
        heap_values=np.empty((replicas, seqs), dtype=np.int64),
        due=np.zeros((replicas, int(engine[BLOCK_SIZE])), dtype=np.int64),
        crossing=np.zeros((replicas, int(engine[WINDOW]) + 1), dtype=np.int64),
        completing=np.empty((replicas, seqs), dtype=np.int64),
        stall_steps=np.empty((replicas, max(STALL_STACK, 2 * seqs)), dtype=np.int64),
        stall_s=np.empty((replicas, max(STALL_STACK, 2 * seqs))),
        window_decodes=np.zeros((replicas, workloads), dtype=np.int64),
        itl_counts=np.zeros((workloads, len(ITL_EDGES_S) + 1), dtype=np.int64),
        pool=make_pool(replicas, int(engine[NUM_BLOCKS]), named=named),
        contents=flat,
        blocks=np.full(len(flat), -1, dtype=np.int32),
        bucket=np.full((replicas, size, 2), -1, dtype=np.int64),
        late=np.empty((replicas, seqs), dtype=np.int64),
    )
