"""Block tables of the full kernel: what `kv_blocks.py` says of requests, in arrays.

Without prefix caching blocks have no identity and are counted. The block table of a request that waits is free, so a
prompt's hits are written there before anybody knows whether it will be admitted.
"""

import numpy as np

from simulator.block_pool import find_block, give_back_blocks, know_block, take_block, use_again
from simulator.compiled import inlined
from simulator.full_tables import (
    ANY_WINDOW,
    BLOCK_SIZE,
    CACHING,
    COMPUTED,
    EMITTED,
    IN_FLIGHT,
    JUNCTION,
    LOOKAHEAD,
    MAX_MODEL_LEN,
    PROMPT,
    RESERVE,
    TABLE,
    WATERMARK_BLOCKS,
)


@inlined
def give_back(w, r, q, g, first, last):
    """Blocks [first, last) of a request's table, the last first (`KVBlocks.give_back`)."""
    if w.settings[CACHING] == 0:
        w.pool.free[r] += last - first
    else:
        give_back_blocks(w.pool, r, w.blocks[g, w.ri[q, TABLE] :], first, last)


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
                know_block(w.pool, r, np.int64(w.blocks[g, row + i]), w.contents[row + i] * groups + g)
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
                        block = find_block(w.pool, r, w.contents[row + i] * groups + g)
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
                        block = find_block(w.pool, r, w.contents[row + i] * groups + g)
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
            if w.pool.users[r, w.blocks[g, row + i]] == 0:
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
        if blocks_needed(w, r, q, computed, whole, True, hit) + watermark > w.pool.free[r]:
            return False
    slots = min(computed + tokens + settings[LOOKAHEAD], settings[MAX_MODEL_LEN])
    if settings[ANY_WINDOW] == 1:
        leave_behind_window(w, r, q, max(0, computed - w.ri[q, IN_FLIGHT]))
    if blocks_needed(w, r, q, computed, slots, False, hit) + watermark > w.pool.free[r]:
        return False
    row = w.ri[q, TABLE]
    groups = len(w.windows)
    if hit > 0:
        for g in range(groups):
            skipped = skipped_blocks(w, g, computed)
            for i in range(skipped, hit):
                use_again(w.pool, r, np.int64(w.blocks[g, row + i]))
            w.left[q, g] = skipped
            w.held[q, g] = hit
            w.registered[q, g] = hit
    required = (slots + size - 1) // size
    for g in range(groups):
        if required > w.held[q, g]:
            if settings[CACHING] == 1:
                for i in range(w.held[q, g], required):
                    w.blocks[g, row + i] = take_block(w.pool, r)
            else:
                w.pool.free[r] -= required - w.held[q, g]
            w.held[q, g] = required
    if settings[CACHING] == 1:
        register_blocks(w, r, q, min(computed + tokens, known))
    return True
