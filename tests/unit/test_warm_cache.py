"""Caches that have served the documents before."""

import numpy as np

from simulator.kv_blocks import KVBlocks
from simulator.prefix_blocks import SharedBlocks
from simulator.scheduler_settings import SchedulerSettings
from simulator.sequence import Sequence


def test_a_warm_cache_holds_the_documents_that_fit_the_most_popular_ones_longest() -> None:
    """Three documents of four blocks, nine blocks: the one asked for least often loses its own, the last ones first."""
    settings = SchedulerSettings(
        max_num_seqs=4, max_num_batched_tokens=64, block_size=4, num_blocks=9, enable_prefix_caching=True
    )
    blocks = KVBlocks(settings)
    document = np.array([0, 1, 1, 2, 2, 2])
    shared = SharedBlocks.of(
        total_tokens=np.full(6, 20), document=document, document_tokens=np.full(6, 16), block_size=4
    )
    line = shared.spread(5 * np.arange(6), 30)
    contents = [tuple(line[5 * q : 5 * q + 5].tolist()) for q in range(6)]
    assert contents[1][:4] == contents[2][:4] != contents[3][:4]
    assert len(set(line.tolist())) == 6 + 3 * 4
    blocks.load(shared.warm(30).lists())
    assert len(blocks.free) == 9
    found = {}
    for q in (0, 1, 3):
        asks = Sequence(
            index=q, arrival_s=0.0, prompt_tokens=18, output_tokens=2, workload=0, phase=1, contents=contents[q]
        )
        hit = blocks.find(asks)
        found[int(document[q])] = hit.tokens if hit else 0
    assert found == {0: 4, 1: 16, 2: 16}
