"""What is conserved at every moment of every run, under a cache so small that preemption is the rule."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from simulator.engine import EngineConfig
from simulator.kernel import run_kernel
from simulator.log import RequestLog
from simulator.run import Window, simulate
from simulator.score import Targets, score
from simulator.steptime import StepTimeModel
from simulator.tables import (
    COMPUTED,
    CONTEXT,
    DECODE,
    DECODING,
    DISCARDED_TOKENS,
    ERROR,
    FINISHED,
    FREE_BLOCKS,
    GROWING,
    HEAP_COUNT,
    NEXT,
    OUTPUT,
    OUTSTANDING,
    PARTIAL,
    PENDING_TOKENS,
    PREEMPTED,
    PREEMPTIONS,
    PREFILL,
    PROMPT,
    REPLICA,
    RUN_HEAD,
    RUNNING,
    SCHEDULED_TOKENS,
    STATE,
    STEP_COUNT,
    WAIT_HEAD,
    WAITING,
    WINDOW_CONTEXT,
    WORKLOAD,
    World,
    engine_settings,
    make_world,
)
from simulator.workload import RequestStream

BLOCK_SIZE = 4
NUM_BLOCKS = 60
MAX_NUM_SEQS = 12
BUDGET = 48
REPLICAS = 2


def step_model(*, window_tokens: int = 0, overhead_s: float = 0.0) -> StepTimeModel:
    tokens = np.arange(BUDGET + 1, dtype=np.float64)
    return StepTimeModel(
        decode_s=0.01 + 2e-4 * tokens,
        mixed_s=0.012 + 3e-4 * tokens,
        sequence_s=1e-4,
        kv_s=1e-5,
        window_kv_s=1e-5 if window_tokens else 0.0,
        attention_s=1e-6,
        window_attention_s=1e-6 if window_tokens else 0.0,
        prefill_request_s=1e-4,
        host_s=0.011,
        host_sequence_s=1e-5,
        sync_s=1e-3,
        request_overhead_s=overhead_s,
        window_tokens=window_tokens,
    )


def stream_of(seed: int, *, count: int = 200, rate_rps: float = 40.0) -> RequestStream:
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1 / rate_rps, count))
    return RequestStream(
        arrival_s=arrival_s,
        prompt_tokens=np.where(rng.random(count) < 0.02, 300, rng.integers(1, 90, count)),
        output_tokens=rng.integers(1, 60, count),
        workload=rng.integers(0, 2, count).astype(np.int32),
        workload_names=("chat", "rag"),
        span_s=float(arrival_s[-1]),
        clipped_fraction=(0.0, 0.0),
    )


ARGUMENTS: dict[str, Any] = {
    "engine": EngineConfig(
        tensor_parallel_size=1,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=BUDGET,
        max_model_len=512,
        block_size=BLOCK_SIZE,
    ),
    "num_blocks": NUM_BLOCKS,
}


def pressed(seed: int, **options: Any) -> RequestLog:
    defaults: dict[str, Any] = {"model": step_model(), "replicas": REPLICAS}
    return simulate(stream_of(seed), **ARGUMENTS | defaults | options)


# ---- At the end of a run ----


@pytest.mark.parametrize("seed", range(3))
def test_when_all_is_done_every_block_is_free_and_every_token_was_computed_once_or_lost(seed: int) -> None:
    # With two steps in flight a request can end while it waits to be computed again.
    log = pressed(seed, engine=replace(ARGUMENTS["engine"], async_scheduling=False))
    assert log.replica_times is not None
    finished = log.status == 0
    assert finished.sum() + (log.status == 2).sum() == len(log)
    assert log.preemptions.sum() > 30
    assert log.replica_times.kv_blocks_held.tolist() == [0] * REPLICAS
    kept = log.replica_times.scheduled_tokens.sum() - log.replica_times.discarded_tokens.sum()
    assert kept == (log.prompt_tokens[finished] + log.output_tokens[finished] - 1).sum()
    assert log.replica_times.preemptions.sum() == log.preemptions.sum()


def held_s(log: RequestLog, overhead_s: float) -> float:
    """Integral of the number in the system, from the log's own events in order of time."""
    entered = log.status != 2
    times_s = np.concatenate([log.arrival_s[entered] + overhead_s, log.finish_s[log.status == 0], [log.end_s]])
    steps = np.repeat([1, -1, 0], [entered.sum(), (log.status == 0).sum(), 1])
    order = np.argsort(times_s, kind="stable")
    return float((np.cumsum(steps[order])[:-1] * np.diff(times_s[order])).sum())


@pytest.mark.parametrize("overhead_s", [0.0, 0.05])
@pytest.mark.parametrize("cut", [20, 77, 150, 200])
def test_littles_law_is_an_identity_whenever_the_run_is_cut(cut: int, overhead_s: float) -> None:
    whole = stream_of(4)
    stream = RequestStream(
        arrival_s=whole.arrival_s[:cut],
        prompt_tokens=whole.prompt_tokens[:cut],
        output_tokens=whole.output_tokens[:cut],
        workload=whole.workload[:cut],
        workload_names=whole.workload_names,
        span_s=float(whole.arrival_s[cut - 1]),
        clipped_fraction=whole.clipped_fraction,
    )
    log = simulate(stream, model=step_model(overhead_s=overhead_s), replicas=REPLICAS, drain=False, **ARGUMENTS)
    assert log.replica_times is not None
    assert log.end_s == stream.arrival_s[-1] + overhead_s
    assert (log.status == 3).any()
    engine_s = float(log.replica_times.in_system_s.sum())
    assert engine_s == pytest.approx(held_s(log, overhead_s), rel=1e-9)
    stays_s = np.where(np.isnan(log.finish_s), log.end_s, log.finish_s) - log.arrival_s - overhead_s
    assert engine_s == pytest.approx(stays_s[log.status != 2].sum(), rel=1e-9)


def test_in_flight_is_rate_times_time_in_system_in_a_steady_run() -> None:
    """Little's law as it is usually read: not an identity in a window, so within two percent."""
    stream = stream_of(5, count=4000, rate_rps=3.0)
    window = Window(start_s=100.0, end_s=1200.0)
    log = simulate(stream, model=step_model(), replicas=1, window=window, **ARGUMENTS)
    promised = Targets(per_request_s={"e2e": 60.0}, percentiles=(), attainment=0.9, deadline_s=None)
    result = score(log, {"chat": promised, "rag": promised})
    judged = (log.phase == 1) & (log.status == 0)
    rate_rps = judged.sum() / result.window_s
    assert not result.saturated
    assert result.in_flight_mean > 1.0
    assert result.in_flight_mean == pytest.approx(rate_rps * (log.finish_s - log.arrival_s)[judged].mean(), rel=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_prefill_decode_and_idle_time_add_up_to_the_run(seed: int) -> None:
    """A replica is busy exactly while it holds a request: the union of the stays on the log."""
    log = simulate(stream_of(seed, rate_rps=8.0), model=step_model(), replicas=REPLICAS, **ARGUMENTS)
    times = log.replica_times
    assert times is not None
    for r in range(REPLICAS):
        mine = np.flatnonzero((log.replica == r) & (log.status == 0))
        latest_s, idle_s = 0.0, 0.0
        for q in mine:  # in order of arrival
            idle_s += max(0.0, log.arrival_s[q] - latest_s)
            latest_s = max(latest_s, log.finish_s[q])
        idle_s += log.end_s - latest_s
        busy_s = float(times.prefill_s[r] + times.decode_s[r])
        assert busy_s + idle_s == pytest.approx(log.end_s, rel=1e-9)
        assert idle_s > 0.05 * log.end_s
    assert (times.prefill_s > 0).all() and (times.decode_s > 0).all()


def test_a_replica_that_never_rests_is_busy_all_the_time_but_for_the_step_under_way() -> None:
    log = pressed(1, drain=False)
    times = log.replica_times
    assert times is not None
    busy_s = times.prefill_s + times.decode_s
    longest_step_s = 0.2
    assert (busy_s > log.end_s - 0.3).all()  # both are reached within the first arrivals
    assert (busy_s < log.end_s + longest_step_s).all()


@pytest.mark.parametrize("seed", range(3))
def test_every_token_after_the_first_has_a_gap_and_the_gaps_add_up_to_the_answer(seed: int) -> None:
    log = pressed(seed)
    finished = log.status == 0
    gaps = np.maximum(log.output_tokens[finished] - 1, 0)
    for w in range(2):
        assert log.itl_counts[w].sum() == gaps[log.workload[finished] == w].sum()
    middles_s = np.sqrt(log.itl_edges_s[:-1] * log.itl_edges_s[1:])
    streaming_s = float((log.finish_s - log.first_token_s)[finished].sum())
    assert float((log.itl_counts[:, 1:-1].sum(axis=0) * middles_s).sum()) == pytest.approx(streaming_s, rel=0.06)
    several = finished & (log.output_tokens > 1)
    longest_s, whole_s = log.itl_max_s[several], (log.finish_s - log.first_token_s)[several]
    mean_s = whole_s / (log.output_tokens[several] - 1)
    assert (longest_s <= whole_s * (1 + 1e-12)).all()
    assert (longest_s >= mean_s * (1 - 1e-12)).all()


# ---- At any moment: what the kernel counts is what its requests hold ----


def world_of(seed: int, *, window_tokens: int, closed: bool) -> World:
    stream, model = stream_of(seed), step_model(window_tokens=window_tokens)
    count = len(stream)
    arrival_s = np.where(np.arange(count) < 25, 0.0, np.nan) if closed else stream.arrival_s
    prompts = np.minimum(stream.prompt_tokens, 150) if closed else stream.prompt_tokens
    return make_world(
        engine=engine_settings(
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=BUDGET,
            block_size=BLOCK_SIZE,
            num_blocks=NUM_BLOCKS,
            window_tokens=window_tokens,
            least_outstanding=True,
            closed_loop=closed,
        ),
        coefficients=model.coefficients(),
        decode_s=model.decode_s,
        mixed_s=model.mixed_s,
        arrival_s=arrival_s,
        prompt_tokens=prompts,
        output_tokens=stream.output_tokens,
        workload=stream.workload.astype(np.int64),
        phase=np.ones(count, dtype=np.int64),
        workloads=2,
        replicas=REPLICAS,
        released=25 if closed else count,
    )


def linked(world: World, head: int) -> Iterator[int]:
    while head >= 0:
        yield head
        head = int(world.ri[head, NEXT])


def blocks(tokens: NDArray[np.int64]) -> int:
    return int((-(-tokens // BLOCK_SIZE)).sum())


def check_replica(world: World, r: int, window_tokens: int) -> None:
    ints, ri = world.ints[r], world.ri
    mine = np.flatnonzero(ri[:, REPLICA] == r)
    state = ri[mine, STATE]
    decoding, prefilling, waiting = (mine[state == kind] for kind in (DECODE, PREFILL, WAITING))
    steps = int(ints[STEP_COUNT])
    pending = int(ints[PENDING_TOKENS] > 0)
    before = ri[decoding, COMPUTED] + steps  # cached when the pending step began

    held = blocks(before + pending) + blocks(ri[prefilling, COMPUTED])
    assert NUM_BLOCKS - ints[FREE_BLOCKS] == held
    assert 0 <= ints[FREE_BLOCKS] <= NUM_BLOCKS
    assert ints[OUTSTANDING] == len(decoding) + len(prefilling) + len(waiting)
    assert ints[RUNNING] == len(decoding) + len(prefilling) <= MAX_NUM_SEQS
    assert sorted(linked(world, int(ints[RUN_HEAD]))) == sorted([*decoding, *prefilling])
    assert sorted(linked(world, int(ints[WAIT_HEAD]))) == sorted(waiting)
    assert (ri[waiting, COMPUTED] == 0).all()
    assert ints[PARTIAL] == -1 or ints[PARTIAL] in prefilling

    assert ints[DECODING] == ints[HEAP_COUNT] == len(decoding) == world.due[r].sum()
    assert set(world.heap_values[r, : ints[HEAP_COUNT]]) == set(decoding)
    assert np.bincount(ri[decoding, COMPUTED] % BLOCK_SIZE, minlength=BLOCK_SIZE).tolist() == world.due[r].tolist()
    assert ints[CONTEXT] == (before + 1).sum()
    if window_tokens:
        assert ints[WINDOW_CONTEXT] == np.minimum(before + 1, window_tokens).sum()
        assert ints[GROWING] == (before + 1 < window_tokens).sum() == world.crossing[r].sum()
    judged = np.bincount(world.ri[decoding, WORKLOAD], minlength=2)
    assert world.window_decodes[r].tolist() == judged.tolist()

    done = mine[state == FINISHED]
    kept = (ri[done, PROMPT] + ri[done, OUTPUT] - 1).sum() + (before + pending).sum() + ri[prefilling, COMPUTED].sum()
    assert ints[SCHEDULED_TOKENS] - ints[DISCARDED_TOKENS] == kept
    assert ints[PREEMPTED] == ri[mine, PREEMPTIONS].sum()


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("window_tokens", [0, 32])
def test_at_any_moment_tokens_and_blocks_of_a_replica_are_those_of_its_requests(
    window_tokens: int, closed: bool
) -> None:
    world = world_of(6, window_tokens=window_tokens, closed=closed)
    rng = np.random.default_rng(6)
    until_s, moments = 0.0, 0
    while not (world.ri[:, STATE] >= FINISHED).all():
        until_s += rng.exponential(0.02)
        run_kernel(world, until_s)
        assert world.totals[ERROR] == 0
        for r in range(REPLICAS):
            check_replica(world, r, window_tokens)
        moments += 1
    assert moments > 200
    assert world.ri[:, PREEMPTIONS].sum() > 30
