"""What the full KV blocks of a request hold, as numbers: equal numbers mean that everything up to there is equal.

vLLM hashes the tokens of a block together with the hash of the block before it (`v1/core/kv_cache_utils.py:
hash_block_tokens`). Only equality matters to the scheduler, so the hashes are replaced by numbers counted up from 0;
the kernels then look blocks up without hashing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import cached_kernel
from simulator.rows import Rows

__all__ = ["SharedBlocks", "block_contents"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedBlocks:
    """Which full blocks of N requests are a document's.

    A block that holds the end of a document and the beginning of what follows belongs to its request alone, as all
    other blocks do.
    """

    count: Ints
    """(N,) shared blocks at the beginning of each request."""
    document: Ints
    """(N,) number of the document; negative = none."""
    longest: Ints
    """(D,) blocks of each document that anybody has."""

    @classmethod
    def of(cls, *, total_tokens: Ints, document: Ints, document_tokens: Ints, block_size: int) -> SharedBlocks:
        """`total_tokens` counts prompt and answer; `document_tokens` how much of its document a prompt begins with."""
        count = np.where(document >= 0, np.minimum(document_tokens, total_tokens) // block_size, 0)
        longest = np.zeros(max(0, int(document.max(initial=-1)) + 1), dtype=np.int64)
        np.maximum.at(longest, document[document >= 0], count[document >= 0])
        return cls(count=count, document=document, longest=longest)

    @property
    def begins(self) -> Ints:
        """(D,) the first number of each document, behind those of all private blocks."""
        return np.asarray(np.cumsum(self.longest) - self.longest)

    def spread(self, start: Ints, size: int) -> Ints:
        """Contents of all requests in a line of `size`, each from its `start` on: a private block is called by its
        place, a document's blocks follow from `size` on."""
        line = np.arange(size)
        if len(self.longest):
            _write_documents(line, start, self.count, size + self.begins[np.maximum(self.document, 0)])
        return line

    def warm(self, size: int) -> Rows:
        """The documents of `spread` themselves, a row each: those asked for least often first."""
        asked = np.bincount(self.document[self.document >= 0], minlength=len(self.longest))
        order = np.lexsort((-np.arange(len(self.longest)), asked))
        count = self.longest[order]
        rows = Rows(values=np.arange(int(count.sum())), count=count)
        rows.values[:] += np.repeat(size + self.begins[order] - rows.start, count)
        return rows


@cached_kernel
def _write_documents(line: Ints, start: Ints, count: Ints, first: Ints) -> None:
    for q in range(len(start)):
        for i in range(count[q]):
            line[start[q] + i] = first[q] + i


def block_contents(token_ids: Iterable[Sequence[int]], block_size: int) -> Rows:
    """For each sequence of tokens the numbers of its full blocks, the first block first."""
    numbers: dict[tuple[int, tuple[int, ...]], int] = {}
    rows: list[tuple[int, ...]] = []
    for tokens in token_ids:
        row: list[int] = []
        before = -1
        for start in range(0, len(tokens) - block_size + 1, block_size):
            before = numbers.setdefault((before, tuple(tokens[start : start + block_size])), len(numbers))
            row.append(before)
        rows.append(tuple(row))
    return Rows.of(rows)
