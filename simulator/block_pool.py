"""The pool of named KV blocks in arrays, for both kernels: free list, users, and where a content is found.

What `kv_blocks.KVBlocks` says of blocks. Each replica has its free list, doubly linked, entry B being both ends, and a
hash table that leads from a content to the oldest block that holds it; younger ones hang behind.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import cached_kernel, inlined
from simulator.rows import Rows

Ints = NDArray[np.int64]
SmallInts = NDArray[np.int32]


class BlockPool(NamedTuple):
    """R replicas of B blocks each. Without names (B = 0) only `free` means something."""

    free: Ints
    """(R,) free blocks."""
    bits: Ints
    """(1,) binary digits of a slot of the hash table."""
    next_free: SmallInts
    """(R, B + 1) the free list; entry B is its head and tail."""
    previous_free: SmallInts
    users: SmallInts
    """(R, B) requests that use a block."""
    keys: Ints
    """(R, B) content · groups + group; −1 = not known."""
    next_same: SmallInts
    """(R, B) the next younger block of the same content; −1 = none."""
    previous_same: SmallInts
    last_same: SmallInts
    """(R, B) the youngest one, kept at the oldest."""
    oldest: SmallInts
    """(R, 2^bits) oldest block of a content, open addressing; −1 = empty."""


def make_pool(replicas: int, num_blocks: int, *, named: bool) -> BlockPool:
    """All blocks free, in the order of their numbers."""
    blocks = num_blocks if named else 0
    bits = max(1, int(2 * blocks).bit_length())
    chain = np.arange(blocks + 1, dtype=np.int32)
    return BlockPool(
        free=np.full(replicas, num_blocks, dtype=np.int64),
        bits=np.array([bits]),
        next_free=np.tile(np.roll(chain, -1), (replicas, 1)),
        previous_free=np.tile(np.roll(chain, 1), (replicas, 1)),
        users=np.zeros((replicas, blocks), dtype=np.int32),
        keys=np.full((replicas, blocks), -1, dtype=np.int64),
        next_same=np.full((replicas, blocks), -1, dtype=np.int32),
        previous_same=np.full((replicas, blocks), -1, dtype=np.int32),
        last_same=np.full((replicas, blocks), -1, dtype=np.int32),
        oldest=np.full((replicas, 1 << bits), -1, dtype=np.int32),
    )


MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@inlined
def slot_of(pool, r, key):
    """The slot of the index where a content stands, or the empty one where it would."""
    bits = pool.bits[0]
    mask = (1 << bits) - 1
    slot = np.int64((np.uint64(key) * MULTIPLIER) >> np.uint64(64 - bits))
    while True:
        block = pool.oldest[r, slot]
        if block < 0 or pool.keys[r, block] == key:
            return slot
        slot = (slot + 1) & mask


@inlined
def find_block(pool, r, key):
    """The oldest block of a content, or −1."""
    return np.int64(pool.oldest[r, slot_of(pool, r, key)])


@inlined
def know_block(pool, r, block, key):
    """The block can be found from now on, after those that hold the same."""
    slot = slot_of(pool, r, key)
    first = pool.oldest[r, slot]
    pool.keys[r, block] = key
    pool.next_same[r, block] = -1
    if first < 0:
        pool.oldest[r, slot] = block
        pool.previous_same[r, block] = -1
        pool.last_same[r, block] = block
    else:
        youngest = pool.last_same[r, first]
        pool.next_same[r, youngest] = block
        pool.previous_same[r, block] = youngest
        pool.last_same[r, first] = block


@inlined
def forget_block(pool, r, block):
    """The block is taken for something else."""
    key = pool.keys[r, block]
    before, after = pool.previous_same[r, block], pool.next_same[r, block]
    if before >= 0:
        pool.next_same[r, before] = after
        if after >= 0:
            pool.previous_same[r, after] = before
        else:  # it was the youngest, which the oldest remembers
            pool.last_same[r, find_block(pool, r, key)] = before
        pool.keys[r, block] = -1
        return
    slot = slot_of(pool, r, key)
    if after >= 0:
        pool.previous_same[r, after] = -1
        pool.last_same[r, after] = pool.last_same[r, block]
        pool.oldest[r, slot] = after
        pool.keys[r, block] = -1
        return
    # Nobody else holds it: close the gap in the index, so that no search stops too early.
    bits = pool.bits[0]
    mask = (1 << bits) - 1
    pool.keys[r, block] = -1
    gap = slot
    other = (gap + 1) & mask
    while pool.oldest[r, other] >= 0:
        home = np.int64((np.uint64(pool.keys[r, pool.oldest[r, other]]) * MULTIPLIER) >> np.uint64(64 - bits))
        if ((other - home) & mask) >= ((other - gap) & mask):
            pool.oldest[r, gap] = pool.oldest[r, other]
            gap = other
        other = (other + 1) & mask
    pool.oldest[r, gap] = -1


@inlined
def unlink_free(pool, r, block):
    before, after = pool.previous_free[r, block], pool.next_free[r, block]
    pool.next_free[r, before] = after
    pool.previous_free[r, after] = before
    pool.free[r] -= 1


@inlined
def link_free(pool, r, before, block):
    """Put a block into the free list behind `before`."""
    after = pool.next_free[r, before]
    pool.next_free[r, before] = block
    pool.previous_free[r, block] = before
    pool.next_free[r, block] = after
    pool.previous_free[r, after] = block
    pool.free[r] += 1


@inlined
def take_block(pool, r):
    """The block that is first to go; whatever it held is forgotten."""
    block = np.int64(pool.next_free[r, pool.users.shape[1]])
    unlink_free(pool, r, block)
    if pool.keys[r, block] >= 0:
        forget_block(pool, r, block)
    pool.users[r, block] = 1
    return block


@inlined
def give_back_blocks(pool, r, row, first, last):
    """Entries [first, last) of a block table `row`, the last first: unknown ones go to the front of the free list."""
    end = pool.users.shape[1]
    for i in range(first, last):
        block = np.int64(row[i])
        pool.users[r, block] -= 1
        if pool.users[r, block] == 0 and pool.keys[r, block] < 0:
            link_free(pool, r, end, block)
    for i in range(last - 1, first - 1, -1):
        block = np.int64(row[i])
        if pool.users[r, block] == 0 and pool.keys[r, block] >= 0:
            link_free(pool, r, np.int64(pool.previous_free[r, end]), block)


@inlined
def use_again(pool, r, block):
    """A hit: a block that nobody used leaves the free list."""
    if pool.users[r, block] == 0:
        unlink_free(pool, r, block)
    pool.users[r, block] += 1


@cached_kernel
def _load(pool, values, start, count, row):
    blocks = pool.users.shape[1]
    for r in range(len(pool.free)):
        for d in range(len(start)):
            length = min(count[d], blocks)
            for i in range(length):
                row[i] = take_block(pool, r)
                know_block(pool, r, np.int64(row[i]), values[start[d] + i])
            give_back_blocks(pool, r, row, 0, length)


def load_documents(pool: BlockPool, documents: Rows) -> None:
    """Start all replicas with these contents in their caches (`KVBlocks.load`)."""
    if len(documents) and pool.users.size:
        row = np.zeros(pool.users.shape[1], dtype=np.int32)
        _load(pool, documents.values, documents.start, documents.count, row)
