"""What a recording says of the full KV blocks of its prompts, for engine blocks of any size.

A trace names the blocks of each prompt (512 tokens in Mooncake's, 16 in Bailian's): equal ids mean that everything up
to the end of that block is equal. An engine block is called by the id of the recorded block that holds its last token
and by its own place; two such blocks are equal if both agree. A block that holds a token of the answer, or one that the
recording names nothing for, belongs to its request alone: what an answer adds to the cache is not in the recording.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.rows import Rows

__all__ = ["RecordedBlocks", "tokens_found_again"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedBlocks:
    """Names of the full blocks of N prompts."""

    names: Rows
    """For each prompt the numbers of its named blocks, its first block first; counted from 0."""

    @classmethod
    def of(
        cls,
        *,
        prompt_tokens: Ints,
        prefix_ids: Rows,
        prefix_block_tokens: int,
        block_size: int,
        document: Ints | None = None,
        document_tokens: Ints | None = None,
    ) -> RecordedBlocks:
        """`prefix_ids` names blocks of `prefix_block_tokens`, `block_size` is the engine's. A prompt of another
        workload in the stream may begin with a document instead: the document is then the id of all its blocks."""
        if document is not None and document_tokens is not None:
            prefix_ids = _with_documents(prefix_ids, prefix_block_tokens, document, document_tokens)
            documents_end = np.where(document >= 0, np.minimum(document_tokens, prompt_tokens), prompt_tokens)
            prompt_tokens = documents_end
        count = np.minimum(prompt_tokens, prefix_ids.count * prefix_block_tokens) // block_size
        place = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        recorded = ((place + 1) * block_size - 1) // prefix_block_tokens + np.repeat(prefix_ids.start, count)
        _, ids = np.unique(prefix_ids.values, return_inverse=True)
        called = ids[recorded] * (int(count.max(initial=0)) + 1) + place
        _, names = np.unique(called, return_inverse=True)
        return cls(names=Rows(values=names.astype(np.int64), count=count))

    def spread(self, start: Ints, size: int) -> Ints:
        """Contents of all requests in a line of `size`, each from its `start` on: a private block is called by its
        place, recorded blocks are numbered from `size` on."""
        line = np.arange(size)
        places = np.repeat(start - self.names.start, self.names.count) + np.arange(len(self.names.values))
        line[places] = size + self.names.values
        return line

    def warm(self, size: int) -> Rows:
        """Nothing: a recording does not say what was in the cache before it began."""
        return Rows.of([])


def tokens_found_again(
    *, prompt_tokens: Ints, prefix_ids: Rows, prefix_block_tokens: int, block_size: int
) -> NDArray[np.float64]:
    """(N,) tokens of each prompt that earlier ones had, with nothing ever thrown out: whole engine blocks, and never
    the prompt's last token (vLLM 0.32 `v1/core/kv_cache_manager.py: KVCacheManager.get_computed_blocks`)."""
    names = RecordedBlocks.of(
        prompt_tokens=prompt_tokens,
        prefix_ids=prefix_ids,
        prefix_block_tokens=prefix_block_tokens,
        block_size=block_size,
    ).names
    request = np.repeat(np.arange(len(prompt_tokens)), names.count)
    place = np.arange(len(names.values)) - names.start[request]
    _, first, inverse = np.unique(names.values, return_index=True, return_inverse=True)
    new = first[inverse] == np.arange(len(names.values))
    known = names.count.copy()
    np.minimum.at(known, request[new], place[new])
    return np.asarray(np.minimum(known, (prompt_tokens - 1) // block_size) * float(block_size))


def _with_documents(ids: Rows, size: int, document: Ints, document_tokens: Ints) -> Rows:
    """Ids behind all recorded ones for the prompts that begin with a document."""
    drawn = np.where(document >= 0, -(-document_tokens // size), 0)
    count = np.where(document >= 0, drawn, ids.count)
    whole = Rows(values=np.empty(int(count.sum()), dtype=np.int64), count=count)
    is_document = np.repeat(document >= 0, count)
    whole.values[is_document] = int(ids.values.max(initial=-1)) + 1 + np.repeat(document, drawn)
    whole.values[~is_document] = ids.take(np.flatnonzero(document < 0)).values
    return whole
