"""KV blocks of the full kernel: what `kv_blocks.py` says, in arrays.

Without prefix caching blocks have no identity and are counted. With it, each rank has its free list (doubly linked,
entry B is both ends), and a hash table leads from a content to the oldest block that holds it. The block table of a
request that waits is free, so a prompt's hits are written there before anybody knows whether it will be admitted.
"""

import numpy as np

from simulator.compiled import inlined
from simulator.full_tables import (
    ANY_WINDOW,
    BLOCK_SIZE,
    CACHING,
    COMPUTED,
    EMITTED,
    FREE,
    HASH_BITS,
    IN_FLIGHT,
    JUNCTION,
    LOOKAHEAD,
    MAX_MODEL_LEN,
    PROMPT,
    RESERVE,
    TABLE,
    WATERMARK_BLOCKS,
)

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@inlined
def slot_of(w, r, key):
    """The slot of the index where a content stands, or the empty one where it would."""
    bits = w.settings[HASH_BITS]
    mask = (1 << bits) - 1
    slot = np.int64((np.uint64(key) * MULTIPLIER) >> np.uint64(64 - bits))
    while True:
        block = w.oldest[r, slot]
        if block < 0 or w.keys[r, block] == key:
            return slot
        slot = (slot + 1) & mask


@inlined
def find_block(w, r, key):
    """The oldest block of a content, or −1."""
    return np.int64(w.oldest[r, slot_of(w, r, key)])


@inlined
def know_block(w, r, block, key):
    """The block can be found from now on, after those that hold the same."""
    slot = slot_of(w, r, key)
    first = w.oldest[r, slot]
    w.keys[r, block] = key
    w.next_same[r, block] = -1
    if first < 0:
        w.oldest[r, slot] = block
        w.previous_same[r, block] = -1
        w.last_same[r, block] = block
    else:
        youngest = w.last_same[r, first]
        w.next_same[r, youngest] = block
        w.previous_same[r, block] = youngest
        w.last_same[r, first] = block


@inlined
def forget_block(w, r, block):
    """The block is taken for something else."""
    key = w.keys[r, block]
    before, after = w.previous_same[r, block], w.next_same[r, block]
    if before >= 0:
        w.next_same[r, before] = after
        if after >= 0:
            w.previous_same[r, after] = before
        else:  # it was the youngest, which the oldest remembers
            w.last_same[r, find_block(w, r, key)] = before
        w.keys[r, block] = -1
        return
    slot = slot_of(w, r, key)
    if after >= 0:
        w.previous_same[r, after] = -1
        w.last_same[r, after] = w.last_same[r, block]
        w.oldest[r, slot] = after
        w.keys[r, block] = -1
        return
    # Nobody else holds it: close the gap in the index, so that no search stops too early.
    bits = w.settings[HASH_BITS]
    mask = (1 << bits) - 1
    w.keys[r, block] = -1
    gap = slot
    other = (gap + 1) & mask
    while w.oldest[r, other] >= 0:
        home = np.int64((np.uint64(w.keys[r, w.oldest[r, other]]) * MULTIPLIER) >> np.uint64(64 - bits))
        if ((other - home) & mask) >= ((other - gap) & mask):
            w.oldest[r, gap] = w.oldest[r, other]
            gap = other
        other = (other + 1) & mask
    w.oldest[r, gap] = -1


@inlined
def unlink_free(w, r, block):
    before, after = w.previous_free[r, block], w.next_free[r, block]
    w.next_free[r, before] = after
    w.previous_free[r, after] = before
    w.ints[r, FREE] -= 1


@inlined
def link_free(w, r, before, block):
    """Put a block into the free list behind `before`."""
    after = w.next_free[r, before]
    w.next_free[r, before] = block
    w.previous_free[r, block] = before
    w.next_free[r, block] = after
    w.previous_free[r, after] = block
    w.ints[r, FREE] += 1


@inlined
def take_block(w, r):
    """The block that is first to go; whatever it held is forgotten."""
    block = np.int64(w.next_free[r, w.users.shape[1]])
    unlink_free(w, r, block)
    if w.keys[r, block] >= 0:
        forget_block(w, r, block)
    w.users[r, block] = 1
    return block


@inlined
def give_back(w, r, q, g, first, last):
    """Blocks [first, last) of a request's table, the last first (`KVBlocks.give_back`)."""
    if w.settings[CACHING] == 0:
        w.ints[r, FREE] += last - first
        return
    row = w.ri[q, TABLE]
    end = w.users.shape[1]
    for i in range(first, last):
        block = np.int64(w.blocks[g, row + i])
        w.users[r, block] -= 1
        if w.users[r, block] == 0 and w.keys[r, block] < 0:
            link_free(w, r, end, block)
    for i in range(last - 1, first - 1, -1):
        block = np.int64(w.blocks[g, row + i])
        if w.users[r, block] == 0 and w.keys[r, block] >= 0:
            link_free(w, r, np.int64(w.previous_free[r, end]), block)


@inlined
def release_blocks(w, r, q):
    """All blocks of a request, group by group."""
    for g in range(len(w.windows)):
        give_back(w, r, q, g, w.left[q, g], w.held[q, g])
        w.held[q, g] = 0
        w.left[q, g] = 0
        w.registered[q, g] = 0


@inlined
def skipped_blocks(w, g, computed):
    window = w.windows[g]
    if window == 0 or computed < window:
        return 0
    return (computed - window + 1) // w.settings[BLOCK_SIZE]


@inlined
def leave_behind_window(w, r, q, processed):
    """Free what no later token reads."""
    for g in range(len(w.windows)):
        skipped = min(skipped_blocks(w, g, processed), w.held[q, g])
        if skipped > w.left[q, g]:
            give_back(w, r, q, g, w.left[q, g], skipped)
            w.left[q, g] = skipped


@inlined
def worth_finding(w, q, g, i):
    """`KVBlocks.worth_finding`."""
    window = w.windows[g]
    if window == 0:
        return True
    size = w.settings[BLOCK_SIZE]
    kept = (window - 1 + size - 1) // size
    end = (w.ri[q, PROMPT] - 1) // size
    if end - kept <= i < end:
        return True
    end = w.ri[q, JUNCTION] // size
    return end - kept <= i < end


@inlined
def register_blocks(w, r, q, tokens):
    """Full blocks can be found from now on."""
    if tokens < (w.registered[q, 0] + 1) * w.settings[BLOCK_SIZE]:
        return
    full = tokens // w.settings[BLOCK_SIZE]
    groups = len(w.windows)
    row = w.ri[q, TABLE]
    for g in range(groups):
        for i in range(max(w.registered[q, g], w.left[q, g]), full):
            if worth_finding(w, q, g, i):
                know_block(w, r, np.int64(w.blocks[g, row + i]), w.contents[row + i] * groups + g)
        w.registered[q, g] = max(w.registered[q, g], full)


@inlined
def find_prefix(w, r, q):
    """Blocks of the longest known prefix, never with the last token; they are left in the request's table."""
    if w.settings[CACHING] == 0:
        return 0
    groups = len(w.windows)
    size = w.settings[BLOCK_SIZE]
    row = w.ri[q, TABLE]
    hit = (w.ri[q, PROMPT] + w.ri[q, EMITTED] - 1) // size
    kinds = 0  # how many different kinds of attention, full attention counted first
    for g in range(groups):
        new = True
        for other in range(g):
            new &= w.windows[other] != w.windows[g]
        kinds += new
    full = False
    for g in range(groups):
        full |= w.windows[g] == 0
    longest = 0
    while True:
        before = hit
        if full:
            i = 0
            missing = False
            while i < hit and not missing:
                for g in range(groups):
                    if w.windows[g] == 0:
                        block = find_block(w, r, w.contents[row + i] * groups + g)
                        if block < 0:
                            missing = True
                            break
                        w.blocks[g, row + i] = block
                if not missing:
                    i += 1
            hit = i
            longest = max(longest, hit)
        for kind in range(groups):  # the first group of each window stands for all of the same window
            window = w.windows[kind]
            first = window > 0
            for other in range(kind):
                first &= w.windows[other] != window
            if not first:
                continue
            enough = (window - 1 + size - 1) // size
            run = 0
            i = hit - 1
            end = 0
            while i >= 0:
                missing = False
                for g in range(kind, groups):
                    if w.windows[g] == window:
                        block = find_block(w, r, w.contents[row + i] * groups + g)
                        if block < 0:
                            missing = True
                            break
                        w.blocks[g, row + i] = block
                if missing:
                    run = 0
                else:
                    run += 1
                    if run >= enough:
                        end = i + run
                        break
                i -= 1
            hit = end if i >= 0 else run
            longest = max(longest, hit)
        if hit == before or kinds == 1 or (kinds == 2 and full):
            break
    w.ri[q, JUNCTION] = longest * size if longest > hit else 0
    if w.settings[LOOKAHEAD] > 0 and hit > 0:
        hit -= 1
    return hit


@inlined
def blocks_needed(w, r, q, computed, slots, capped, hit):
    size = w.settings[BLOCK_SIZE]
    row = w.ri[q, TABLE]
    total = 0
    for g in range(len(w.windows)):
        required = (slots + size - 1) // size
        if capped:
            required = min(required, w.caps[g])
        held = w.held[q, g]
        skipped = skipped_blocks(w, g, computed)
        more = required - max(skipped, hit + held)
        if more > 0:
            total += more
        for i in range(max(0, skipped - held), hit):
            if w.users[r, w.blocks[g, row + i]] == 0:
                total += 1
    return total


@inlined
def has_room(w, r, q, tokens, size, most, lookahead, caching):
    """Whether the last block of a running request has room for `tokens` more: mostly so, and no division is needed."""
    computed = w.ri[q, COMPUTED]
    if min(computed + tokens + lookahead, most) > w.held[q, 0] * size:
        return False
    if caching:
        full = min(computed + tokens, w.ri[q, PROMPT] + w.ri[q, EMITTED])
        if full >= (w.registered[q, 0] + 1) * size:
            register_blocks(w, r, q, full)
    return True


@inlined
def allocate(w, r, q, tokens, hit, admitting, others_run):
    """Blocks for `tokens` more of request q; False when there are not enough (`KVBlocks.allocate`)."""
    settings = w.settings
    size = settings[BLOCK_SIZE]
    known = w.ri[q, PROMPT] + w.ri[q, EMITTED]
    computed = w.ri[q, COMPUTED] + hit * size
    watermark = settings[WATERMARK_BLOCKS] if admitting and others_run else 0
    if admitting and settings[RESERVE] == 1:
        whole = min(known, settings[MAX_MODEL_LEN])
        if blocks_needed(w, r, q, computed, whole, True, hit) + watermark > w.ints[r, FREE]:
            return False
    slots = min(computed + tokens + settings[LOOKAHEAD], settings[MAX_MODEL_LEN])
    if settings[ANY_WINDOW] == 1:
        leave_behind_window(w, r, q, max(0, computed - w.ri[q, IN_FLIGHT]))
    if blocks_needed(w, r, q, computed, slots, False, hit) + watermark > w.ints[r, FREE]:
        return False
    row = w.ri[q, TABLE]
    groups = len(w.windows)
    if hit > 0:
        for g in range(groups):
            skipped = skipped_blocks(w, g, computed)
            for i in range(skipped, hit):
                block = np.int64(w.blocks[g, row + i])
                if w.users[r, block] == 0:
                    unlink_free(w, r, block)
                w.users[r, block] += 1
            w.left[q, g] = skipped
            w.held[q, g] = hit
            w.registered[q, g] = hit
    required = (slots + size - 1) // size
    for g in range(groups):
        if required > w.held[q, g]:
            if settings[CACHING] == 1:
                for i in range(w.held[q, g], required):
                    w.blocks[g, row + i] = take_block(w, r)
            else:
                w.ints[r, FREE] -= required - w.held[q, g]
            w.held[q, g] = required
    if settings[CACHING] == 1:
        register_blocks(w, r, q, min(computed + tokens, known))
    return True
