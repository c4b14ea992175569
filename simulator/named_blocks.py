"""Prefix caching in the counting kernel: which blocks a request holds, without looking at every request in every step.

Decoding requests that need their next block at the same step are linked in a bucket, so a step touches those that take
or fill a block and no others. Which of them takes which free block does not matter: a taken block holds nothing until
it is filled, so only how many are taken, and in which order the free list gives them up, decides what is forgotten. For
the same reason a step may preempt first and take afterwards.
"""

import numpy as np

from simulator.block_pool import find_block, give_back_blocks, know_block, take_block, use_again
from simulator.compiled import inlined
from simulator.tables import (
    BLOCK_SIZE,
    BUCKET_NEXT,
    BUCKET_PREV,
    COMPUTED,
    EMITTED,
    FREE_BLOCKS,
    LATE_COUNT,
    PROMPT,
    TABLE,
)


@inlined
def join_bucket(w, r, q, place):
    """A request begins to decode; requests join in the order of admission."""
    last = w.bucket[r, place, 1]
    w.ri[q, BUCKET_PREV] = last
    w.ri[q, BUCKET_NEXT] = -1
    if last < 0:
        w.bucket[r, place, 0] = q
    else:
        w.ri[last, BUCKET_NEXT] = q
    w.bucket[r, place, 1] = q


@inlined
def leave_bucket(w, r, q, place):
    before, after = w.ri[q, BUCKET_PREV], w.ri[q, BUCKET_NEXT]
    if before < 0:
        w.bucket[r, place, 0] = after
    else:
        w.ri[before, BUCKET_NEXT] = after
    if after < 0:
        w.bucket[r, place, 1] = before
    else:
        w.ri[after, BUCKET_PREV] = before


@inlined
def take_named(w, r, q, first, last):
    """Blocks [first, last) of a request's table are taken from the free list."""
    row = w.ri[q, TABLE]
    for i in range(first, last):
        w.blocks[row + i] = take_block(w.pool, r)


@inlined
def know_named(w, r, q, first, last):
    """Blocks [first, last) of a request are full: they can be found from now on."""
    row = w.ri[q, TABLE]
    for i in range(first, last):
        block = np.int64(w.blocks[row + i])
        if w.pool.keys[r, block] < 0:
            know_block(w.pool, r, block, w.contents[row + i])


@inlined
def take_due(w, r, step):
    """Every decoding request whose tokens fill its blocks takes one more for the step that begins."""
    size = w.engine[BLOCK_SIZE]
    q = w.bucket[r, (-step) % size, 0]
    while q >= 0:
        held = (w.ri[q, COMPUTED] + step) // size
        take_named(w, r, q, held, held + 1)
        q = w.ri[q, BUCKET_NEXT]


@inlined
def know_due(w, r, step, late):
    """Blocks that decoding requests fill become known.

    That is when the step that fills them is scheduled, or a step later where outputs are known late.
    """
    size = w.engine[BLOCK_SIZE]
    ahead = 0 if late else 1
    q = w.bucket[r, (-step - ahead) % size, 0]
    while q >= 0:
        full = (w.ri[q, COMPUTED] + step + ahead) // size
        know_named(w, r, q, full - 1, full)
        q = w.ri[q, BUCKET_NEXT]


@inlined
def find_named(w, r, q):
    """Blocks of the longest known prefix, never with the last token; they are left in the request's table."""
    most = (w.ri[q, PROMPT] + w.ri[q, EMITTED] - 1) // w.engine[BLOCK_SIZE]
    row = w.ri[q, TABLE]
    hit = 0
    while hit < most:
        block = find_block(w.pool, r, w.contents[row + hit])
        if block < 0:
            break
        w.blocks[row + hit] = block
        hit += 1
    return hit


@inlined
def unused_hits(w, r, q, hit):
    """Blocks of a hit that stand in the free list."""
    row = w.ri[q, TABLE]
    unused = 0
    for i in range(hit):
        if w.pool.users[r, w.blocks[row + i]] == 0:
            unused += 1
    return unused


@inlined
def adopt_hits(w, r, q, hit):
    row = w.ri[q, TABLE]
    for i in range(hit):
        use_again(w.pool, r, np.int64(w.blocks[row + i]))


@inlined
def release_named(w, r, q, blocks):
    """A request gives back its first `blocks` blocks, the last one first."""
    give_back_blocks(w.pool, r, w.blocks[w.ri[q, TABLE] :], 0, blocks)
    w.ints[r, FREE_BLOCKS] = w.pool.free[r]


@inlined
def release_late(w, r):
    """Requests that ended with the step before last give back their blocks; what they filled is known by now."""
    size = w.engine[BLOCK_SIZE]
    for i in range(w.ints[r, LATE_COUNT]):
        q = w.late[r, i]
        cached = w.ri[q, COMPUTED]
        if cached % size == 0:
            know_named(w, r, q, cached // size - 1, cached // size)
        release_named(w, r, q, (cached + size - 1) // size)
    w.ints[r, LATE_COUNT] = 0
