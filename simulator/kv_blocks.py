"""KV blocks of one engine, by name: who holds which, which are free in which order, and what a new prompt finds again.

vLLM 0.32 `v1/core/block_pool.py: BlockPool`, `v1/core/kv_cache_manager.py: KVCacheManager.allocate_slots`,
`v1/core/single_type_kv_cache_manager.py`, `v1/core/kv_cache_coordinator.py`, in plain Python. A block that holds a
known content goes to the end of the free list when nobody uses it any more, one that does not goes to its front; new
blocks are taken from the front, and what they held is forgotten. The last blocks of a request are freed first, so a
prefix outlives what followed it.

Left out: fine-grained hits inside a block, other values of `prefix_cache_retention_interval` than vLLM's default 0, KV
connectors and offloading, LoRA and multi-modal keys, Mamba states.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Listing
from dataclasses import dataclass

from simulator.scheduler_settings import SchedulerSettings
from simulator.sequence import Sequence

__all__ = ["Hit", "KVBlocks"]

Blocks = list[int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """What a prompt finds in the prefix cache."""

    tokens: int
    blocks: tuple[tuple[int | None, ...], ...]
    """By group; None where the window has left the block."""


class FreeList:
    """Free blocks in the order of eviction. Blocks never used stand between those put first and those put last."""

    def __init__(self, count: int) -> None:
        self.first: OrderedDict[int, None] = OrderedDict()
        self.last: OrderedDict[int, None] = OrderedDict()
        self.fresh, self.count = 0, count

    def __len__(self) -> int:
        return len(self.first) + self.count - self.fresh + len(self.last)

    def pop(self) -> int:
        if self.first:
            return self.first.popitem(last=False)[0]
        if self.fresh < self.count:
            self.fresh += 1
            return self.fresh - 1
        return self.last.popitem(last=False)[0]

    def remove(self, block: int) -> None:
        """Take out a block that a hit uses again."""
        if block in self.last:
            del self.last[block]
        else:
            del self.first[block]

    def put_first(self, blocks: Listing[int]) -> None:
        for block in reversed(blocks):
            self.first[block] = None
            self.first.move_to_end(block, last=False)

    def put_last(self, blocks: Listing[int]) -> None:
        self.last.update(dict.fromkeys(blocks))


def count_blocks(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


class KVBlocks:
    """The pool, its users and the prefix cache of one engine."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.groups = range(len(settings.sliding_windows))
        self.free = FreeList(settings.num_blocks)
        self.users: dict[int, int] = {}
        """How many requests use a block."""
        self.content: dict[int, tuple[int, int]] = {}
        """(group, content) of the blocks that can be found again."""
        self.cached: dict[tuple[int, int], dict[int, None]] = {}
        """The blocks of a (group, content), the oldest first: two requests may compute the same prefix at once."""

    # ---- Taking and giving back ----

    def allocate(
        self,
        sequence: Sequence,
        tokens: int,
        *,
        hit: Hit | None = None,
        admitting: bool = False,
        others_run: bool = True,
    ) -> bool:
        """Blocks for `tokens` more; False when there are not enough (`KVCacheManager.allocate_slots`)."""
        settings, size = self.settings, self.settings.block_size
        computed_tokens = sequence.computed_tokens + (hit.tokens if hit else 0)
        hits: tuple[tuple[int | None, ...], ...] = hit.blocks if hit else ((),) * len(self.groups)
        watermark_blocks = settings.watermark_blocks if admitting and others_run else 0
        if not sequence.blocks:
            sequence.blocks = [[] for _ in self.groups]
            sequence.registered = [0 for _ in self.groups]

        def needed(slots: int, *, capped: bool) -> int:
            total = 0
            for g in self.groups:
                required = count_blocks(slots, size)
                if capped:
                    required = min(required, settings.most_blocks_held(g))
                held = len(sequence.blocks[g])
                skipped = settings.skipped_tokens(g, computed_tokens) // size
                total += max(required - max(skipped, len(hits[g]) + held), 0)
                total += sum(b is not None and not self.users.get(b) for b in hits[g][max(0, skipped - held) :])
            return total

        if admitting and settings.scheduler_reserve_full_isl:  # checked for the whole, taken for the chunk
            whole = min(sequence.known_tokens, settings.max_model_len)
            if needed(whole, capped=True) + watermark_blocks > len(self.free):
                return False
        slots = min(computed_tokens + tokens + settings.lookahead_tokens, settings.max_model_len)
        self.leave_behind_window(sequence, max(0, computed_tokens - sequence.in_flight_tokens))
        if needed(slots, capped=False) + watermark_blocks > len(self.free):
            return False

        if hit:
            for g in self.groups:
                skipped = settings.skipped_tokens(g, computed_tokens) // size
                kept = hits[g][skipped:]
                self.use_again(b for b in kept if b is not None)
                sequence.blocks[g] = [*[None] * skipped, *kept]
                sequence.registered[g] = len(sequence.blocks[g])
        for g in self.groups:
            for _ in range(count_blocks(slots, size) - len(sequence.blocks[g])):
                sequence.blocks[g].append(self.take())
        if settings.enable_prefix_caching:  # drafts may be refused: what is not known yet is not registered
            self.register(sequence, min(computed_tokens + tokens, sequence.known_tokens))
        return True

    def take(self) -> int:
        """The block that is first to go; whatever it held is forgotten."""
        block = self.free.pop()
        key = self.content.pop(block, None)
        if key is not None:
            del self.cached[key][block]
            if not self.cached[key]:
                del self.cached[key]
        self.users[block] = 1
        return block

    def use_again(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if not self.users.get(block):
                self.free.remove(block)
            self.users[block] = self.users.get(block, 0) + 1

    def give_back(self, blocks: Iterable[int | None]) -> None:
        """Blocks in the order in which they may go (`BlockPool.free_blocks`)."""
        first: list[int] = []
        last: list[int] = []
        for block in blocks:
            if block is None:
                continue
            self.users[block] -= 1
            if self.users[block] == 0:
                (last if block in self.content else first).append(block)
        self.free.put_first(first)
        self.free.put_last(last)

    def release(self, sequence: Sequence) -> None:
        """All blocks of a request, group by group, its last ones first."""
        for blocks in sequence.blocks:
            self.give_back(reversed(blocks))
        sequence.blocks, sequence.registered = [], []

    def leave_behind_window(self, sequence: Sequence, processed_tokens: int) -> None:
        """Free what no later token reads (`SingleTypeKVCacheManager.remove_skipped_blocks`)."""
        for g in self.groups:
            blocks = sequence.blocks[g]
            skipped = min(self.settings.skipped_tokens(g, processed_tokens) // self.settings.block_size, len(blocks))
            left: Blocks = []
            for i in range(skipped - 1, -1, -1):
                if blocks[i] is None:
                    break
                left.append(blocks[i])
                blocks[i] = None
            self.give_back(left)

    # ---- Finding again ----

    def load(self, documents: Iterable[Listing[int]]) -> None:
        """Start with these contents in the cache, as if each had been asked for once, in this order; for a single
        group of full attention. What does not fit is forgotten again, the first ones first."""
        for contents in documents:
            row = contents[: self.settings.num_blocks]
            blocks = [self.take() for _ in row]
            for block, content in zip(blocks, row, strict=True):
                self.content[block] = (0, content)
                self.cached.setdefault((0, content), {})[block] = None
            self.give_back(reversed(blocks))

    def register(self, sequence: Sequence, tokens: int) -> None:
        """Full blocks can be found from now on, even before the step that computes them has ended."""
        full = tokens // self.settings.block_size
        for g in self.groups:
            for i in range(sequence.registered[g], full):
                block = sequence.blocks[g][i]
                if block is None or not self.worth_finding(sequence, g, i):
                    continue
                key = (g, sequence.contents[i])
                self.content[block] = key
                self.cached.setdefault(key, {})[block] = None
            sequence.registered[g] = max(sequence.registered[g], full)

    def worth_finding(self, sequence: Sequence, group: int, i: int) -> bool:
        """Sliding windows keep only the blocks that a later prompt can go on from: the window before the last token of
        the prompt, and before the junction where others were seen to share more (`reachable_block_mask`, with vLLM's
        default `prefix_cache_retention_interval: 0`)."""
        window, size = self.settings.sliding_windows[group], self.settings.block_size
        if window == 0:
            return True
        ends = [(sequence.prompt_tokens - 1) // size, sequence.junction_tokens // size]
        return any(end - count_blocks(window - 1, size) <= i < end for end in ends)

    def find(self, sequence: Sequence) -> Hit | None:
        """The longest known prefix in whole blocks, never with the last token (`get_computed_blocks`)."""
        if not self.settings.enable_prefix_caching:
            return None
        size, windows = self.settings.block_size, self.settings.sliding_windows
        kinds = sorted(set(windows), key=lambda window: (window != 0, windows.index(window)))
        found: dict[int, Blocks] = {}
        blocks_hit = (sequence.known_tokens - 1) // size
        longest = 0
        while True:  # each kind of attention accepts the length or shortens it
            before = blocks_hit
            columns: dict[int, list[Blocks]] = {}
            for window in kinds:
                groups = [g for g in self.groups if windows[g] == window]
                if window:
                    columns[window] = self.find_in_window(sequence, groups, window, blocks_hit)
                else:
                    columns[window] = self.find_from_start(sequence, groups, blocks_hit)
                blocks_hit = len(columns[window][0])
                longest = max(longest, blocks_hit)
                found.update(zip(groups, columns[window], strict=True))
            if blocks_hit == before or len(kinds) == 1 or (len(kinds) == 2 and kinds[0] == 0):
                break
        sequence.junction_tokens = longest * size if longest > blocks_hit else 0
        if self.settings.speculative_lookahead:
            blocks_hit = max(0, blocks_hit - 1)
        if blocks_hit == 0:
            return None
        return Hit(tokens=blocks_hit * size, blocks=tuple(tuple(found[g][:blocks_hit]) for g in self.groups))

    def find_from_start(self, sequence: Sequence, groups: list[int], most: int) -> list[Blocks]:
        """Full attention: block after block until one is missing."""
        columns: list[Blocks] = [[] for _ in groups]
        for content in sequence.contents[:most]:
            row = self.blocks_of(content, groups)
            if row is None:
                break
            for column, block in zip(columns, row, strict=True):
                column.append(block)
        return columns

    def find_in_window(self, sequence: Sequence, groups: list[int], window: int, most: int) -> list[Blocks]:
        """Sliding window: from the end, the last run of blocks that fills the window; the rest is not needed."""
        enough = count_blocks(window - 1, self.settings.block_size)
        columns: list[Blocks] = [[None] * most for _ in groups]
        run = 0
        for i in range(most - 1, -1, -1):
            row = self.blocks_of(sequence.contents[i], groups)
            if row is None:
                run = 0
                continue
            for column, block in zip(columns, row, strict=True):
                column[i] = block
            run += 1
            if run >= enough:
                return [column[: i + run] for column in columns]
        return [column[:run] for column in columns]

    def blocks_of(self, content: int, groups: list[int]) -> list[int] | None:
        row = [self.cached.get((g, content)) for g in groups]
        if any(blocks is None for blocks in row):
            return None
        return [next(iter(blocks)) for blocks in row if blocks is not None]
