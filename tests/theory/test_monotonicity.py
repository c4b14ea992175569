"""What more of something must do, and what a change of scale must not do.

Comparisons use common random numbers: both sides see the same requests, so that a paired interval tells small effects.
Where nothing is random about the claim, it is demanded to the last bit.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from simulator.engine import EngineConfig
from simulator.log import RequestLog
from simulator.run import Window, simulate
from simulator.score import Score, Targets, score
from simulator.workload import RequestStream
from tests.step_times import NO_TIME

Floats = NDArray[np.float64]

REPLICATIONS = 20
BUDGET = 512
ENGINE = EngineConfig(tensor_parallel_size=1, max_num_seqs=24, max_num_batched_tokens=BUDGET, max_model_len=4096)
PROMISED = Targets(per_request_s={"ttft": 0.5, "tpot": 0.05}, percentiles=(), attainment=0.9, deadline_s=None)
TOKENS = np.arange(BUDGET + 1, dtype=np.float64)
MODEL = replace(
    NO_TIME,
    decode_s=0.02 + 2e-4 * TOKENS,
    mixed_s=0.025 + 2e-4 * TOKENS,
    sequence_s=1e-4,
    kv_s=1e-7,
    attention_s=1e-8,
    host_s=0.01,
    host_sequence_s=1e-4,
    sync_s=1e-3,
)


def stream_of(seed: int, *, rate_rps: float, count: int = 800) -> RequestStream:
    """Requests of one seed; another rate stretches the same arrivals and keeps the lengths."""
    rng = np.random.default_rng([seed, 4])
    arrival_s = np.cumsum(rng.standard_exponential(count)) / rate_rps
    return RequestStream(
        arrival_s=arrival_s,
        prompt_tokens=rng.integers(20, 600, count),
        output_tokens=rng.integers(1, 100, count),
        workload=np.zeros(count, dtype=np.int32),
        workload_names=("chat",),
        span_s=float(arrival_s[-1]),
        clipped_fraction=(0.0,),
    )


def play(stream: RequestStream, **options: Any) -> RequestLog:
    arguments: dict[str, Any] = {"engine": ENGINE, "model": MODEL, "num_blocks": 600, "replicas": 1}
    return simulate(stream, **arguments | options)


def judged(stream: RequestStream, **options: Any) -> Score:
    window = Window(start_s=0.2 * stream.span_s, end_s=0.9 * stream.span_s)
    return score(play(stream, window=window, **options), {"chat": PROMISED})


def half_width(values: Floats) -> float:
    """Of the 99 % interval of a mean over replications."""
    spread = values.std(ddof=1) / np.sqrt(len(values))
    return float(stats.t.ppf(0.995, len(values) - 1) * spread)


def never_falls(rows: Floats) -> bool:
    """Mean over replications (axis 0) does not fall from column to column, within the paired interval."""
    rises = np.diff(rows, axis=1)
    return all(float(rise.mean()) >= -half_width(rise) for rise in rises.T)


# ---- More replicas, more load, slower steps ----


@pytest.mark.parametrize("routing", ["round_robin", "least_outstanding"])
def test_more_replicas_do_not_lower_goodput(routing: str) -> None:
    counts = (1, 2, 3, 4, 6)
    goodput = np.array(
        [
            [judged(stream_of(seed, rate_rps=18.0), replicas=n, routing=routing).goodput_tokens_per_s for n in counts]
            for seed in range(REPLICATIONS)
        ]
    )
    assert never_falls(goodput)
    first, last = goodput[:, 0], goodput[:, -1]
    assert float((last - first).mean()) > 10 * half_width(last - first)  # the first is overloaded, the last is not


def test_a_higher_load_does_not_lower_the_mean_ttft() -> None:
    rates_rps = (1.0, 3.0, 5.0, 7.0, 9.0)
    ttft_s = np.array(
        [
            [judged(stream_of(seed, rate_rps=rate)).workload("chat").means_s["ttft"] for rate in rates_rps]
            for seed in range(REPLICATIONS)
        ]
    )
    assert never_falls(ttft_s)
    assert float(ttft_s[:, -1].mean()) > 2 * float(ttft_s[:, 0].mean())


def test_a_larger_cache_does_not_lower_goodput_and_in_the_end_preempts_nobody() -> None:
    sizes = (60, 150, 400, 1200)
    scores = [
        [judged(stream_of(seed, rate_rps=6.0), num_blocks=size) for size in sizes] for seed in range(REPLICATIONS)
    ]
    assert never_falls(np.array([[s.goodput_tokens_per_s for s in row] for row in scores]))
    preemptions = np.array([[s.preemptions for s in row] for row in scores]).mean(axis=0)
    assert preemptions[0] > 50 and preemptions[-1] == 0


def test_slower_steps_do_not_lower_the_mean_time_in_system() -> None:
    factors = (0.8, 1.0, 1.05, 1.2)
    e2e_s = np.array(
        [
            [
                judged(stream_of(seed, rate_rps=5.0), model=MODEL.scaled(f)).workload("chat").means_s["e2e"]
                for f in factors
            ]
            for seed in range(REPLICATIONS)
        ]
    )
    assert never_falls(e2e_s)
    assert (np.diff(e2e_s, axis=1) > 0).mean() > 0.95


def test_one_request_alone_is_no_slower_than_in_company() -> None:
    stream = stream_of(0, rate_rps=8.0, count=60)
    company = play(stream)
    for q in range(0, 60, 7):
        alone = play(
            replace(
                stream,
                arrival_s=stream.arrival_s[q : q + 1],
                prompt_tokens=stream.prompt_tokens[q : q + 1],
                output_tokens=stream.output_tokens[q : q + 1],
                workload=stream.workload[q : q + 1],
            )
        )
        assert alone.finish_s[0] - alone.arrival_s[0] <= company.finish_s[q] - company.arrival_s[q]


# ---- Scale and structure, to the last bit ----


def test_steps_and_arrivals_twice_as_long_make_every_time_twice_as_long() -> None:
    """Two is exact in binary, so nothing may differ: no absolute time is hidden anywhere."""
    stream = stream_of(1, rate_rps=12.0)
    once = play(stream, replicas=2, num_blocks=60)
    slow = replace(stream, arrival_s=2 * stream.arrival_s, span_s=2 * stream.span_s)
    twice = play(slow, model=MODEL.scaled(2.0), replicas=2, num_blocks=60)
    assert once.preemptions.sum() > 20
    for column in ("scheduled_s", "first_token_s", "finish_s", "itl_max_s"):
        np.testing.assert_array_equal(getattr(twice, column), 2 * getattr(once, column), err_msg=column)
    np.testing.assert_array_equal(twice.preemptions, once.preemptions)
    np.testing.assert_array_equal(twice.replica, once.replica)


def test_a_fleet_under_round_robin_is_so_many_single_replicas_side_by_side() -> None:
    stream = stream_of(2, rate_rps=18.0)
    fleet = play(stream, replicas=3, routing="round_robin", num_blocks=60)
    assert fleet.preemptions.sum() > 20
    for r in range(3):
        rows = np.arange(r, len(stream), 3)
        single = play(
            replace(
                stream,
                arrival_s=stream.arrival_s[rows],
                prompt_tokens=stream.prompt_tokens[rows],
                output_tokens=stream.output_tokens[rows],
                workload=stream.workload[rows],
            ),
            num_blocks=60,
        )
        np.testing.assert_array_equal(fleet.replica[rows], r)
        for column in ("scheduled_s", "first_token_s", "finish_s", "itl_max_s", "preemptions"):
            np.testing.assert_array_equal(getattr(fleet, column)[rows], getattr(single, column), err_msg=column)


def test_replicas_that_get_no_requests_change_nothing() -> None:
    stream = stream_of(3, rate_rps=1.0, count=30)
    stream = replace(
        stream, arrival_s=np.arange(0.0, 300.0, 10.0), span_s=300.0
    )  # each request finds all replicas idle
    one, many = play(stream), play(stream, replicas=7)
    np.testing.assert_array_equal(one.finish_s, many.finish_s)
    assert many.replica.tolist() == [q % 7 for q in range(30)]


def test_the_block_size_does_not_matter_while_the_cache_is_never_full() -> None:
    stream = stream_of(4, rate_rps=6.0)
    fine = play(stream, engine=replace(ENGINE, block_size=1), num_blocks=1_000_000)
    coarse = play(stream, engine=replace(ENGINE, block_size=128), num_blocks=1_000_000)
    np.testing.assert_array_equal(fine.finish_s, coarse.finish_s)
    np.testing.assert_array_equal(fine.first_token_s, coarse.first_token_s)


def test_a_window_longer_than_every_sequence_is_no_window() -> None:
    stream = stream_of(5, rate_rps=6.0)
    plain = play(stream, model=replace(MODEL, kv_s=2.0**-20, attention_s=2.0**-24))
    split = replace(MODEL, kv_s=0.0, attention_s=0.0, window_kv_s=2.0**-20, window_attention_s=2.0**-24)
    windowed = play(stream, model=replace(split, window_tokens=4096))
    np.testing.assert_array_equal(plain.finish_s, windowed.finish_s)
    np.testing.assert_array_equal(plain.itl_max_s, windowed.itl_max_s)
