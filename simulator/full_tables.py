"""The arrays of the full kernel: every request and every KV block on its own, so that every flag can be followed.

The counting kernel (`kernel.py`, `tables.py`) describes a batch by counts, which only holds while requests are served
in order, one group of KV blocks has no memory, and every request gives one token a step. Here a step costs O(batch).
Columns that mean the same have the same name as in `tables`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.block_pool import BlockPool, make_pool
from simulator.prefix_blocks import SharedBlocks
from simulator.recorded_blocks import RecordedBlocks
from simulator.rows import Rows
from simulator.scheduler_settings import SchedulerSettings
from simulator.tables import IN_WINDOW, ITL_EDGES_S, Floats, Ints

SmallInts = NDArray[np.int32]

# Requests, integers. TABLE: where its rows of `contents` and `blocks` begin; DRAW and DRAWS: its accepted drafts.
(
    PROMPT,
    OUTPUT,
    EMITTED,
    COMPUTED,
    PLACEHOLDERS,
    IN_FLIGHT,
    DRAFTS,
    STATE,
    PREFILLING,
    DECODING,
    STALE,
    LAST_STEP,
    MAX_TOKENS,
    PHASE,
    WORKLOAD,
    TABLE,
    PRIORITY,
    VERIFIED,
    RANK,
    PREEMPTIONS,
    CACHED,
    NEXT,
    DRAW,
    DRAWS,
    JUNCTION,
) = range(25)
REQUEST_INTS = 25
# Requests, seconds. NaN = not yet.
ARRIVAL, SCHEDULED, FIRST_TOKEN, FINISH, ITL_MAX, LAST_TOKEN = range(6)
REQUEST_FLOATS = 6

# Values of STATE.
FUTURE, WAITING, ACTIVE, FINISHED, REJECTED = range(5)

# Ranks, integers. FIRST_RANK is where the front end starts its next search for a rank, kept at
# the first rank of each replica.
(
    RUNNING,
    WAIT_HEAD,
    WAIT_TAIL,
    WAIT_COUNT,
    UNFINISHED,
    PREFILL_TOKENS,
    PREEMPTED,
    SCHEDULED_TOKENS,
    HIT_TOKENS,
    DISCARDED_TOKENS,
    REFUSED_TOKENS,
    BATCH_PEAK,
    KV_PEAK,
    FIRST_RANK,
) = range(14)
RANK_INTS = 14
# Ranks, seconds.
AREA, AREA_LAST, PREFILL_BUSY, DECODE_BUSY = range(4)
RANK_FLOATS = 4

# Engines (ranks that step together), integers: rounds in flight, which of two slots is the older, steps planned and
# ended so far, and whether the next thing to do is to plan (else: to wait for the end of the older round).
ROUNDS, OLDER, STEPS, ENDED, PLANNING = range(5)
ENGINE_INTS = 5
# Engines, seconds: next event (infinite = idle), end of the last step planned.
NEXT_EVENT, GPU_FREE = range(2)
ENGINE_FLOATS = 2

# One request in a batch.
REQ, TOKENS, ENTRY_DRAFTS, PADDED, BEFORE, DECODE_STEP, SAMPLES = range(7)
ENTRY_INTS = 7

# The run as a whole.
NEXT_REQUEST, RELEASED, WINDOW_REQUESTS, WINDOW_LEFT, ROUTE_POINTER, ERROR, STOPPED = range(7)
TOTALS = 7
STUCK = 4
"""Value of ERROR: a step schedules nothing, and nothing is in flight that could change that."""

# Settings.
(
    SEATS,
    BUDGET,
    BLOCK_SIZE,
    NUM_BLOCKS,
    MAX_MODEL_LEN,
    CHUNKED,
    THRESHOLD,
    ADAPTIVE,
    WATERMARK_BLOCKS,
    PRIORITY_POLICY,
    RESERVE,
    DEPTH,
    CACHING,
    SPECULATIVE,
    LOOKAHEAD,
    ANY_WINDOW,
    STEP_WINDOW,
    DATA_PARALLEL,
    LOCKSTEP,
    QUEUED_REQS,
    QUEUED_TOKENS,
    LEAST_OUTSTANDING,
    CLOSED_LOOP,
) = range(23)
SETTINGS = 23
NO_LIMIT = 1 << 60


class FullWorld(NamedTuple):
    """All that one run reads and writes: N requests, R ranks, E engines, G groups of KV blocks, S seats, B blocks."""

    settings: Ints
    windows: Ints
    """(G,) sliding windows, tokens; 0 = none."""
    caps: Ints
    """(G,) most blocks that the admission check counts."""
    coefficients: Floats
    decode_s: Floats
    mixed_s: Floats
    edges_s: Floats
    ri: Ints
    rf: Floats
    held: Ints
    """(N, G) length of a request's block table."""
    left: Ints
    """(N, G) blocks at its start that the window has left."""
    registered: Ints
    """(N, G) blocks from its start that the prefix cache knows."""
    contents: Ints
    """Contents of full blocks, request by request; empty without prefix caching."""
    blocks: SmallInts
    """(G, rows) block tables, request by request; empty without prefix caching."""
    draws: Ints
    """Accepted drafts, request by request."""
    ints: Ints
    floats: Floats
    engine_ints: Ints
    engine_floats: Floats
    round_s: Floats
    """(E, 2, 2) seconds of a round and when it ends, by slot."""
    round_number: Ints
    """(E, 2) number of the step."""
    batch: Ints
    """(R, 2, S, ENTRY_INTS)."""
    batch_count: Ints
    """(R, 2)."""
    running: Ints
    """(R, S + 1) requests in the order of the running list."""
    heap: Ints
    """(R, N or 1) the priority queue."""
    pool: BlockPool
    totals: Ints
    itl_counts: Ints


def make_full_world(
    *,
    settings: SchedulerSettings,
    coefficients: Floats,
    decode_s: Floats,
    mixed_s: Floats,
    step_window_tokens: int,
    arrival_s: Floats,
    prompt_tokens: Ints,
    output_tokens: Ints,
    max_tokens: Ints | None,
    priority: Ints | None,
    workload: Ints,
    phase: Ints,
    contents: Rows | SharedBlocks | RecordedBlocks | None,
    accepted: Rows | None,
    workloads: int,
    replicas: int,
    released: int,
    least_outstanding: bool,
    closed_loop: bool,
    data_parallel_size: int = 1,
    in_lockstep: bool = False,
    max_num_queued_reqs: int | None = None,
    max_num_queued_tokens: int | None = None,
) -> FullWorld:
    """Fresh tables on idle engines. Without `contents` nothing is shared between requests."""
    n, groups = len(prompt_tokens), len(settings.sliding_windows)
    budget = settings.max_num_batched_tokens
    if budget >= len(mixed_s) or budget >= len(decode_s):  # compiled code reads beyond the end without a word
        raise ValueError(f"step times reach {len(mixed_s) - 1} tokens, max_num_batched_tokens is {budget}")
    ranks = replicas * data_parallel_size
    engines = replicas if in_lockstep else ranks
    caching = settings.enable_prefix_caching
    spare = 3 * settings.num_speculative_tokens + 2
    size = settings.block_size
    table = -(-(prompt_tokens + output_tokens + spare) // size) if caching else np.zeros(n, dtype=np.int64)
    draws = accepted if accepted is not None else Rows.of([()] * n)
    ri = np.zeros((n, REQUEST_INTS), dtype=np.int64)
    ri[:, PROMPT], ri[:, OUTPUT] = prompt_tokens, output_tokens
    ri[:, MAX_TOKENS] = output_tokens if max_tokens is None else max_tokens
    ri[:, PRIORITY] = 0 if priority is None else priority
    ri[:, WORKLOAD], ri[:, PHASE] = workload, phase
    ri[:, RANK] = ri[:, LAST_STEP] = ri[:, NEXT] = -1
    ri[:, TABLE] = np.cumsum(table) - table
    ri[:, DRAW], ri[:, DRAWS] = draws.start, draws.count
    rf = np.full((n, REQUEST_FLOATS), np.nan)
    rf[:, ARRIVAL] = arrival_s
    rows = int(table.sum()) if caching else 0
    # Numbers of their own where nothing is shared: a preempted request finds itself again.
    flat = np.arange(rows) if contents is None else contents.spread(ri[:, TABLE], rows)
    ints = np.zeros((ranks, RANK_INTS), dtype=np.int64)
    ints[:, [WAIT_HEAD, WAIT_TAIL]] = -1
    engine_ints = np.zeros((engines, ENGINE_INTS), dtype=np.int64)
    engine_floats = np.zeros((engines, ENGINE_FLOATS))
    engine_floats[:, NEXT_EVENT] = np.inf
    totals = np.zeros(TOTALS, dtype=np.int64)
    totals[RELEASED] = released
    totals[[WINDOW_REQUESTS, WINDOW_LEFT]] = int(np.count_nonzero(phase == IN_WINDOW))
    seats = settings.max_num_seqs
    columns = np.zeros(SETTINGS, dtype=np.int64)
    columns[SEATS], columns[BUDGET], columns[BLOCK_SIZE] = settings.seats, budget, size
    columns[NUM_BLOCKS], columns[MAX_MODEL_LEN] = settings.num_blocks, settings.max_model_len
    columns[CHUNKED], columns[THRESHOLD] = settings.enable_chunked_prefill, settings.long_prefill_token_threshold
    columns[ADAPTIVE] = settings.long_prefill_token_threshold_adaptive
    columns[WATERMARK_BLOCKS], columns[PRIORITY_POLICY] = settings.watermark_blocks, settings.priority_policy
    columns[RESERVE], columns[DEPTH] = settings.scheduler_reserve_full_isl, 2 if settings.async_scheduling else 1
    columns[CACHING], columns[SPECULATIVE] = caching, settings.num_speculative_tokens
    columns[LOOKAHEAD], columns[ANY_WINDOW] = settings.lookahead_tokens, any(settings.sliding_windows)
    columns[STEP_WINDOW], columns[DATA_PARALLEL] = step_window_tokens, data_parallel_size
    columns[LOCKSTEP], columns[LEAST_OUTSTANDING] = in_lockstep, least_outstanding
    columns[QUEUED_REQS] = NO_LIMIT if max_num_queued_reqs is None else max_num_queued_reqs
    columns[QUEUED_TOKENS] = NO_LIMIT if max_num_queued_tokens is None else max_num_queued_tokens
    columns[CLOSED_LOOP] = closed_loop
    return FullWorld(
        settings=columns,
        windows=np.array(settings.sliding_windows, dtype=np.int64),
        caps=np.array([settings.most_blocks_held(g) for g in range(groups)], dtype=np.int64),
        coefficients=np.asarray(coefficients, dtype=np.float64),
        decode_s=decode_s,
        mixed_s=mixed_s,
        edges_s=ITL_EDGES_S,
        ri=ri,
        rf=rf,
        held=np.zeros((n, groups), dtype=np.int64),
        left=np.zeros((n, groups), dtype=np.int64),
        registered=np.zeros((n, groups), dtype=np.int64),
        contents=flat,
        blocks=np.full((groups, rows), -1, dtype=np.int32),
        draws=draws.values,
        ints=ints,
        floats=np.zeros((ranks, RANK_FLOATS)),
        engine_ints=engine_ints,
        engine_floats=engine_floats,
        round_s=np.zeros((engines, 2, 2)),
        round_number=np.zeros((engines, 2), dtype=np.int64),
        batch=np.zeros((ranks, 2, seats, ENTRY_INTS), dtype=np.int64),
        batch_count=np.zeros((ranks, 2), dtype=np.int64),
        running=np.zeros((ranks, seats + 1), dtype=np.int64),
        heap=np.zeros((ranks, n if settings.priority_policy else 1), dtype=np.int64),
        pool=make_pool(ranks, settings.num_blocks, named=caching),
        totals=totals,
        itl_counts=np.zeros((workloads, len(ITL_EDGES_S) + 1), dtype=np.int64),
    )
