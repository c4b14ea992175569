"""A run whose books do not balance raises, whichever book it is: each law is broken once, by the least amount."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest

import simulator.counted_run as run
from simulator.conservation import ConservationError, check_conservation
from simulator.engine import EngineConfig
from simulator.kernel import run_kernel
from simulator.log import ReplicaTimes, RequestLog
from simulator.run import Window, simulate
from simulator.tables import DISCARDED_TOKENS, FREE_BLOCKS, OUTSTANDING, World
from simulator.workload import RequestStream
from tests.step_times import NO_TIME

NUM_BLOCKS = 24
OVERHEAD_S = 0.01


def play() -> RequestLog:
    """Two small replicas under pressure: preemptions, rejections, and requests still running when it is cut."""
    rng = np.random.default_rng(7)
    count = 60
    tokens = np.arange(65, dtype=np.float64)
    model = replace(
        NO_TIME,
        decode_s=0.01 + 1e-4 * tokens,
        mixed_s=0.012 + 1e-4 * tokens,
        sequence_s=1e-4,
        kv_s=1e-6,
        attention_s=1e-7,
        sync_s=1e-3,
        request_overhead_s=OVERHEAD_S,
    )
    stream = RequestStream(
        arrival_s=np.sort(rng.random(count)),
        prompt_tokens=np.where(np.arange(count) % 10 == 9, 100, rng.integers(1, 40, count)),
        output_tokens=rng.integers(1, 40, count),
        workload=np.zeros(count, dtype=np.int32),
        workload_names=("chat",),
        span_s=1.0,
        clipped_fraction=(0.0,),
    )
    engine = EngineConfig(
        tensor_parallel_size=1,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_model_len=256,
        block_size=4,
        async_scheduling=False,  # with preemptions the counting kernel plays only this
    )
    window = Window(start_s=0.1, end_s=0.9)
    return simulate(stream, engine=engine, model=model, num_blocks=NUM_BLOCKS, replicas=2, window=window, drain=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What one run hands to the check."""

    log: RequestLog
    world: World

    def check(self) -> None:
        check_conservation(self.log, num_blocks=NUM_BLOCKS, request_overhead_s=OVERHEAD_S, world=self.world)


@pytest.fixture
def books(monkeypatch: pytest.MonkeyPatch) -> Books:
    kept: list[Books] = []

    def keep(log: RequestLog, *, num_blocks: int, request_overhead_s: float, world: World) -> None:
        assert (num_blocks, request_overhead_s) == (NUM_BLOCKS, OVERHEAD_S)
        kept.append(Books(log=log, world=copy.deepcopy(world)))

    monkeypatch.setattr(run, "check_conservation", keep)
    play()
    return kept[0]


def times_of(log: RequestLog) -> ReplicaTimes:
    assert log.replica_times is not None
    return log.replica_times


def changed(values: np.ndarray[Any, Any], index: int, by: float) -> Any:
    copied = values.copy()
    copied[index] += by
    return copied


def first(log: RequestLog, status: int) -> int:
    return int(np.flatnonzero(log.status == status)[0])


def test_the_untouched_run_passes_and_holds_every_kind_of_request(books: Books) -> None:
    books.check()
    assert set(books.log.status) == {0, 2, 3}
    assert set(books.log.phase) == {0, 1, 2}
    assert books.log.preemptions.sum() > 0
    assert times_of(books.log).kv_blocks_held.min() > 0


def test_a_request_that_vanishes_from_the_log_raises(books: Books) -> None:
    log = books.log
    columns = [f.name for f in fields(log) if getattr(getattr(log, f.name), "shape", None) == (len(log),)]
    assert "arrival_s" in columns and "itl_max_s" in columns
    short = replace(log, **{name: getattr(log, name)[:-1] for name in columns})
    with pytest.raises(ConservationError, match=f"{len(log)} requests arrived, {len(log) - 1} are in the log"):
        replace(books, log=short).check()


def test_a_status_that_does_not_exist_raises(books: Books) -> None:
    status = changed(books.log.status, 0, 7 - int(books.log.status[0]))
    with pytest.raises(ConservationError, match="have a known status"):
        replace(books, log=replace(books.log, status=status)).check()


def test_a_finished_request_called_unfinished_raises(books: Books) -> None:
    status = changed(books.log.status, first(books.log, 0), 3)
    with pytest.raises(ConservationError, match="unfinished"):
        replace(books, log=replace(books.log, status=status)).check()


def test_an_unfinished_request_called_failed_raises(books: Books) -> None:
    status = changed(books.log.status, first(books.log, 3), -2)
    with pytest.raises(ConservationError, match="unfinished"):
        replace(books, log=replace(books.log, status=status)).check()


@pytest.mark.parametrize("by", [-1, 1])
def test_one_lost_or_invented_token_raises(books: Books, by: int) -> None:
    times = times_of(books.log)
    for column in ("scheduled_tokens", "discarded_tokens"):
        broken = replace(times, **{column: changed(getattr(times, column), 0, by)})
        with pytest.raises(ConservationError, match="tokens were computed and kept"):
            replace(books, log=replace(books.log, replica_times=broken)).check()


def test_an_answer_longer_than_what_was_computed_raises(books: Books) -> None:
    tokens = changed(books.log.output_tokens, first(books.log, 0), 1)
    with pytest.raises(ConservationError, match="tokens were computed and kept"):
        replace(books, log=replace(books.log, output_tokens=tokens)).check()


@pytest.mark.parametrize("by", [-1, 1])
def test_one_kv_block_leaked_or_freed_twice_raises(books: Books, by: int) -> None:
    times = times_of(books.log)
    broken = replace(times, kv_blocks_held=changed(times.kv_blocks_held, 1, by))
    with pytest.raises(ConservationError, match="KV blocks are taken"):
        replace(books, log=replace(books.log, replica_times=broken)).check()


def test_a_replica_that_holds_more_blocks_than_it_has_raises_even_when_the_sum_is_right(books: Books) -> None:
    times = times_of(books.log)
    total = int(times.kv_blocks_held.sum())
    broken = replace(times, kv_blocks_held=np.array([total + 1, -1]))
    with pytest.raises(ConservationError, match="more KV blocks than it has, or fewer than none"):
        replace(books, log=replace(books.log, replica_times=broken)).check()


@pytest.mark.parametrize("by", [-1, 1])
def test_one_token_gap_lost_or_counted_twice_raises(books: Books, by: int) -> None:
    counts = books.log.itl_counts.copy()
    counts[0, int(counts[0].argmax())] += by
    with pytest.raises(ConservationError, match="token gaps were counted"):
        replace(books, log=replace(books.log, itl_counts=counts)).check()


@pytest.mark.parametrize("column", ["arrival_s", "finish_s"])
def test_a_request_that_stays_a_microsecond_longer_than_the_engine_held_it_raises(books: Books, column: str) -> None:
    later = changed(getattr(books.log, column), first(books.log, 0), 1e-6)
    with pytest.raises(ConservationError, match=r"Little's identity fails|before the step before"):
        replace(books, log=replace(books.log, **{column: later})).check()


def test_an_engine_that_miscounts_its_requests_for_a_microsecond_raises(books: Books) -> None:
    times = times_of(books.log)
    broken = replace(times, in_system_s=changed(times.in_system_s, 0, 1e-6))
    with pytest.raises(ConservationError, match="Little's identity fails"):
        replace(books, log=replace(books.log, replica_times=broken)).check()


def leak_a_block(world: World) -> None:
    world.ints[0, FREE_BLOCKS] -= 1


def lose_a_token(world: World) -> None:
    world.ints[0, DISCARDED_TOKENS] += 1


def forget_a_request(world: World) -> None:
    world.ints[0, OUTSTANDING] -= 1


def drop_a_gap(world: World) -> None:
    world.itl_counts[0, int(world.itl_counts[0].argmax())] -= 1


@pytest.mark.parametrize("defect", [leak_a_block, lose_a_token, forget_a_request, drop_a_gap])
def test_nobody_sees_a_number_from_a_broken_run(
    monkeypatch: pytest.MonkeyPatch, defect: Callable[[World], None]
) -> None:
    sound = run_kernel

    def broken(world: World, until_s: float) -> None:
        sound(world, until_s)
        defect(world)

    monkeypatch.setattr(run, "run_kernel", broken)
    with pytest.raises(ConservationError):
        play()
