"""What holds in the full kernel at every moment of a run, and that looking at it changes nothing.

The run is stopped every few milliseconds, looked at, and sent on.
"""

from dataclasses import replace

import numpy as np
import pytest

import simulator.full_run as run
from simulator.block_pool import MULTIPLIER
from simulator.full_kernel import run_full_kernel
from simulator.full_tables import (
    ACTIVE,
    NUM_BLOCKS,
    RANK,
    RUNNING,
    STATE,
    WAIT_COUNT,
    WAITING,
    FullWorld,
)
from tests.differential.random_runs import RandomRun, assert_equal_logs

PRESSED = RandomRun(
    seed=5,
    count=60,
    rate_rps=60.0,
    max_num_seqs=8,
    budget=60,
    block_size=4,
    cache_tokens=180,
    async_scheduling=True,
    enable_prefix_caching=True,
    documents=True,
)
RUNS = {
    "documents": PRESSED,
    "documents, windows": replace(PRESSED, windows=(0, 17, 3)),
    "documents, drafts, priorities": replace(PRESSED, drafts=3, priorities=True),
    "documents, EAGLE, synchronous": replace(PRESSED, drafts=2, drafter="eagle", async_scheduling=False),
    "ranks in lockstep": replace(PRESSED, data_parallel_size=3, in_lockstep=True, max_num_queued_reqs=30),
    "a closed loop": replace(PRESSED, concurrency=6, overhead_s=0.01, replicas=2),
    "no names": replace(PRESSED, enable_prefix_caching=False, documents=False, windows=(17, 0), drafts=2),
}


def free_list(world: FullWorld, rank: int) -> list[int]:
    """Free blocks in the order in which they go; read backwards it is the same list."""
    end = world.pool.users.shape[1]

    def walk(links: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> list[int]:
        blocks = [int(links[rank, end])]
        while blocks[-1] != end:
            blocks.append(int(links[rank, blocks[-1]]))
        return blocks[:-1]

    forwards = walk(world.pool.next_free)
    assert forwards == walk(world.pool.previous_free)[::-1]
    return forwards


def known_blocks(world: FullWorld, rank: int) -> set[int]:
    """Blocks that a search can find: each content stands where a search from its home comes by."""
    found: set[int] = set()
    bits = int(world.pool.bits[0])
    for slot in np.flatnonzero(world.pool.oldest[rank] >= 0):
        block = int(world.pool.oldest[rank, slot])
        key = int(world.pool.keys[rank, block])
        home = (key * int(MULTIPLIER)) % 2**64 >> (64 - bits)
        assert all(
            world.pool.oldest[rank, at % 2**bits] >= 0 for at in range(home, home + (int(slot) - home) % 2**bits)
        )
        youngest = int(world.pool.last_same[rank, block])
        while block >= 0:
            assert world.pool.keys[rank, block] == key
            found.add(block)
            last, block = block, int(world.pool.next_same[rank, block])
        assert last == youngest
    return found


def check(world: FullWorld) -> None:
    num_blocks = int(world.settings[NUM_BLOCKS])
    for rank in range(len(world.ints)):
        own = world.ri[:, RANK] == rank
        assert world.ints[rank, RUNNING] == (own & (world.ri[:, STATE] == ACTIVE)).sum()
        assert world.ints[rank, WAIT_COUNT] == (own & (world.ri[:, STATE] == WAITING)).sum()
        taken = world.held[own] - world.left[own]
        assert taken.min(initial=0) >= 0
        if not world.pool.users.size:
            assert world.pool.free[rank] + taken.sum() == num_blocks
            continue
        free = free_list(world, rank)
        assert len(free) == len(set(free)) == world.pool.free[rank]
        np.testing.assert_array_equal(np.sort(free), np.flatnonzero(world.pool.users[rank] == 0))
        assert world.pool.users[rank].sum() == taken.sum()
        assert known_blocks(world, rank) == set(np.flatnonzero(world.pool.keys[rank] >= 0).tolist())


@pytest.mark.parametrize("name", RUNS)
def test_at_any_moment_every_block_is_free_or_used_and_a_run_in_slices_is_the_run_in_one_go(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = RUNS[name].play("full-kernel")
    assert whole.preemptions.sum() > 0
    moments_s = np.unique(np.concatenate([np.arange(0.0, whole.end_s, 0.01), whole.first_token_s, whole.arrival_s]))

    def in_slices(world: FullWorld, until_s: float) -> None:
        for moment_s in moments_s[moments_s < min(until_s, whole.end_s)]:
            run_full_kernel(world, moment_s)
            check(world)
        run_full_kernel(world, until_s)
        check(world)

    monkeypatch.setattr(run, "run_full_kernel", in_slices)
    assert_equal_logs(RUNS[name].play("full-kernel"), whole)
