"""A run of the full kernel whose books do not balance raises, whichever book it is: each is broken by the least amount.

`test_conservation.py` does the same for the counting kernel. The books here know two columns more: tokens found in the
prefix cache, and drafts that were refused.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

import simulator.full_run as run
from simulator.conservation import ConservationError, check_full_conservation
from simulator.full_kernel import run_full_kernel
from simulator.full_tables import (
    COMPUTED,
    DISCARDED_TOKENS,
    HIT_TOKENS,
    OUTPUT,
    REFUSED_TOKENS,
    RUNNING,
    SCHEDULED_TOKENS,
    SEATS,
    WAIT_COUNT,
    FullWorld,
)
from simulator.log import ReplicaTimes, RequestLog
from tests.differential.random_runs import RandomRun

OVERHEAD_S = 0.05
NAMED = RandomRun(
    seed=1,
    count=80,
    rate_rps=8.0,
    overhead_s=OVERHEAD_S,
    max_num_seqs=8,
    budget=60,
    block_size=4,
    cache_tokens=140,
    async_scheduling=True,
    enable_prefix_caching=True,
    documents=True,
    drafts=3,
    priorities=True,
    max_num_queued_reqs=6,
    data_parallel_size=2,
)
"""Blocks with names, hits, refused drafts, preemptions, 503s, and requests still there when the run is cut."""
COUNTED = replace(NAMED, enable_prefix_caching=False, documents=False, windows=(0, 17))
"""Blocks without names, some of them behind a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What one run hands to the check."""

    log: RequestLog
    world: FullWorld

    def check(self) -> None:
        check_full_conservation(self.log, world=self.world, request_overhead_s=OVERHEAD_S)


@pytest.fixture(params=[NAMED, COUNTED], ids=["named blocks", "counted blocks"])
def books(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Books:
    kept: list[Books] = []

    def keep(log: RequestLog, *, world: FullWorld, request_overhead_s: float) -> None:
        assert request_overhead_s == OVERHEAD_S
        kept.append(Books(log=log, world=copy.deepcopy(world)))

    monkeypatch.setattr(run, "check_full_conservation", keep)
    request.param.play("full-kernel")
    return kept[0]


def times_of(log: RequestLog) -> ReplicaTimes:
    assert log.replica_times is not None
    return log.replica_times


def test_the_untouched_run_passes_and_holds_every_kind_of_request(books: Books) -> None:
    books.check()
    assert set(books.log.status) == {0, 2, 3}
    assert set(books.log.phase) == {0, 1, 2}
    assert books.log.preemptions.sum() > 0
    assert times_of(books.log).kv_blocks_held.min() > 0
    used = books.world.ints[:, [SCHEDULED_TOKENS, DISCARDED_TOKENS, REFUSED_TOKENS, RUNNING]]
    assert used.sum(axis=0).min() > 0
    named = books.world.pool.users.size > 0
    assert (books.world.ints[:, HIT_TOKENS].sum() > 0) == named
    assert (books.world.left.sum() > 0) != named


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("column", [SCHEDULED_TOKENS, DISCARDED_TOKENS, REFUSED_TOKENS, HIT_TOKENS])
def test_one_token_lost_or_invented_raises_whichever_account_it_is_in(books: Books, column: int, by: int) -> None:
    books.world.ints[1, column] += by
    with pytest.raises(ConservationError, match="tokens were computed and kept"):
        books.check()


def test_a_request_that_has_computed_a_token_more_than_was_scheduled_raises(books: Books) -> None:
    books.world.ri[0, COMPUTED] += 1
    with pytest.raises(ConservationError, match="tokens were computed and kept"):
        books.check()


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("column", [RUNNING, WAIT_COUNT])
def test_a_queue_that_has_lost_or_doubled_a_request_raises(books: Books, column: int, by: int) -> None:
    books.world.ints[0, column] += by
    with pytest.raises(ConservationError, match="the replicas hold"):
        books.check()


@pytest.mark.parametrize("by", [-1, 1])
def test_one_kv_block_leaked_or_freed_twice_raises(books: Books, by: int) -> None:
    times = times_of(books.log)
    held = times.kv_blocks_held.copy()
    held[1] += by
    broken = replace(books.log, replica_times=replace(times, kv_blocks_held=held))
    with pytest.raises(ConservationError, match="KV blocks are taken"):
        replace(books, log=broken).check()


def test_a_block_table_that_does_not_know_its_last_block_raises(books: Books) -> None:
    if books.world.pool.users.size:
        rank, block = np.argwhere(books.world.pool.users > 0)[0]
        books.world.pool.users[rank, block] = 0
    else:
        request, group = np.argwhere(books.world.held > books.world.left)[0]
        books.world.held[request, group] -= 1
    with pytest.raises(ConservationError, match=r"KV blocks (are taken|have)"):
        books.check()


def test_one_token_gap_lost_or_counted_twice_raises(books: Books) -> None:
    counts = books.log.itl_counts.copy()
    counts[0, int(counts[0].argmax())] += 1
    with pytest.raises(ConservationError, match="token gaps were counted"):
        replace(books, log=replace(books.log, itl_counts=counts)).check()


def test_a_request_that_stays_a_microsecond_longer_than_the_engine_held_it_raises(books: Books) -> None:
    finish_s = books.log.finish_s.copy()
    finish_s[np.flatnonzero(books.log.status == 0)[0]] += 1e-6
    with pytest.raises(ConservationError, match="Little's identity fails"):
        replace(books, log=replace(books.log, finish_s=finish_s)).check()


def test_a_finished_request_that_keeps_its_blocks_raises(books: Books) -> None:
    """Its blocks have a user, or are held, and nobody who runs has them in his table."""
    world = books.world
    ended = int(np.flatnonzero(books.log.status == 0)[0])
    if world.pool.users.size:
        rank, block = np.argwhere(world.pool.users == 0)[0]
        world.pool.users[rank, block] = 1
        world.pool.free[rank] -= 1
        books.log.replica_times.kv_blocks_held[rank] += 1  # type: ignore[union-attr]
    else:
        world.held[ended, 0] += 1
        times_of(books.log).kv_blocks_held[0] += 1
    with pytest.raises(ConservationError, match="KV blocks"):
        books.check()


def test_an_answer_that_ends_a_token_early_raises(books: Books) -> None:
    ended = int(np.flatnonzero(books.log.status == 0)[0])
    books.world.ri[ended, OUTPUT] += 1
    with pytest.raises(ConservationError, match="has not the tokens that it was to have"):
        books.check()


def test_a_first_token_before_the_step_that_gives_it_raises(books: Books) -> None:
    ended = int(np.flatnonzero(books.log.status == 0)[0])
    books.log.first_token_s[ended] = 0.5 * books.log.scheduled_s[ended]
    with pytest.raises(ConservationError, match="before the step before"):
        books.check()


def test_two_steps_at_a_time_raise(books: Books) -> None:
    times_of(books.log).decode_s[0] += books.log.end_s
    with pytest.raises(ConservationError, match="busy for longer than the run lasted"):
        books.check()


def test_more_requests_than_seats_raise(books: Books) -> None:
    times_of(books.log).batch_peak[0] = books.world.settings[SEATS] + 1
    with pytest.raises(ConservationError, match="requests ran at once"):
        books.check()


def leak_a_block(world: FullWorld) -> None:
    world.pool.free[0] -= 1


def lose_a_token(world: FullWorld) -> None:
    world.ints[0, DISCARDED_TOKENS] += 1


def invent_a_hit(world: FullWorld) -> None:
    world.ints[0, HIT_TOKENS] += 1


def keep_a_refused_draft(world: FullWorld) -> None:
    world.ints[0, REFUSED_TOKENS] -= 1


def forget_a_request(world: FullWorld) -> None:
    world.ints[0, RUNNING] -= 1


def drop_a_gap(world: FullWorld) -> None:
    world.itl_counts[0, int(world.itl_counts[0].argmax())] -= 1


DEFECTS = [leak_a_block, lose_a_token, invent_a_hit, keep_a_refused_draft, forget_a_request, drop_a_gap]


@pytest.mark.parametrize("defect", DEFECTS)
@pytest.mark.parametrize("sound", [NAMED, COUNTED], ids=["named blocks", "counted blocks"])
def test_nobody_sees_a_number_from_a_broken_run(
    monkeypatch: pytest.MonkeyPatch, sound: RandomRun, defect: Callable[[FullWorld], None]
) -> None:
    def broken(world: FullWorld, until_s: float) -> None:
        run_full_kernel(world, until_s)
        defect(world)

    monkeypatch.setattr(run, "run_full_kernel", broken)
    with pytest.raises(ConservationError):
        sound.play("full-kernel")
