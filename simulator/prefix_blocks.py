"""What the full KV blocks of a request hold, as numbers: equal numbers mean that everything up to there is equal.

vLLM hashes the tokens of a block together with the hash of the block before it (`v1/core/kv_cache_utils.py:
hash_block_tokens`). Only equality matters to the scheduler, so the hashes are replaced by numbers counted up from 0;
the kernels then look blocks up without hashing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.rows import Rows

__all__ = ["block_contents", "document_contents", "private_contents", "warm_contents"]

Ints = NDArray[np.int64]


def document_contents(*, total_tokens: Ints, document: Ints, document_tokens: Ints, block_size: int) -> Rows:
    """Contents of N requests of which some begin with a document that others begin with, too.

    `total_tokens` counts prompt and answer; `document` is the number of the document, negative = none, and
    `document_tokens` how much of it the prompt begins with. A block that holds the end of a document and the beginning
    of what follows belongs to its request alone.
    """
    rows = private_contents(total_tokens, block_size)
    count = rows.count
    shared = np.where(document >= 0, np.minimum(document_tokens // block_size, count), 0)
    begins = len(rows.values) + np.cumsum(_longest_by_document(document, shared))
    position = np.arange(int(shared.sum())) - np.repeat(np.cumsum(shared) - shared, shared)
    first = np.concatenate([[len(rows.values)], begins])[np.repeat(document, shared)]
    rows.values[np.repeat(rows.start, shared) + position] = first + position
    return rows


def warm_contents(*, total_tokens: Ints, document: Ints, document_tokens: Ints, block_size: int) -> Rows:
    """The documents of `document_contents` themselves, a row each: those asked for least often first."""
    private = int((total_tokens // block_size).sum())
    shared = np.where(document >= 0, np.minimum(document_tokens // block_size, total_tokens // block_size), 0)
    longest = _longest_by_document(document, shared)
    asked = np.bincount(document[document >= 0], minlength=len(longest))
    order = np.lexsort((-np.arange(len(longest)), asked))
    begins = private + np.cumsum(longest) - longest
    rows = Rows(values=np.zeros(int(longest.sum()), dtype=np.int64), count=longest[order])
    rows.values[:] = np.repeat(begins[order] - rows.start, rows.count) + np.arange(len(rows.values))
    return rows


def private_contents(total_tokens: Ints, block_size: int) -> Rows:
    """Contents of N requests that share nothing: each finds only itself again, after a preemption."""
    count = total_tokens // block_size
    return Rows(values=np.arange(int(count.sum())), count=count)


def _longest_by_document(document: Ints, shared: Ints) -> Ints:
    longest = np.zeros(max(0, int(document.max(initial=-1)) + 1), dtype=np.int64)
    np.maximum.at(longest, document[document >= 0], shared[document >= 0])
    return longest


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
