"""Queues whose waiting times are known in closed form. Means come with the interval of independent replications.

One seat, prompts of one token and steps of constant length make a replica the single server of the textbooks; service
is then the number of output tokens times the step. Case values: https://github.com/inference-sim/inference-sim/issues/319
and 330 (2026-02-21), https://github.com/AsyncFlow-Sim/AsyncFlow/pull/32.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import factorial

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize, stats

from simulator.engine import EngineConfig
from simulator.log import RequestLog
from simulator.run import Routing, simulate
from simulator.workload import RequestStream
from tests.step_times import NO_TIME

Draw = Callable[[np.random.Generator, int], NDArray[np.int64]]

REPLICATIONS = 10
SEATS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean over replications and the half width of its 99.9 % interval."""

    value_s: float
    half_width_s: float

    def agrees_with(self, exact_s: float, *, within: float) -> bool:
        """The exact value lies in the interval, and the interval is narrow enough to have told a relative error."""
        return abs(self.value_s - exact_s) <= self.half_width_s <= within * exact_s


def replicated(one: Callable[[int], float]) -> Mean:
    values_s = np.array([one(seed) for seed in range(REPLICATIONS)])
    spread_s = float(values_s.std(ddof=1)) / np.sqrt(REPLICATIONS)
    return Mean(
        value_s=float(values_s.mean()),
        half_width_s=float(stats.t.ppf(0.9995, REPLICATIONS - 1)) * spread_s,
    )


def play(
    seed: int,
    *,
    requests: int,
    rate_rps: float,
    lengths: Draw,
    step_s: float,
    seats: int = 1,
    replicas: int = 1,
    routing: Routing = "least_outstanding",
    step_per_sequence: bool = False,
) -> RequestLog:
    """Poisson arrivals of one-token prompts; a step takes step_s, or step_s per sequence in it."""
    rng = np.random.default_rng([seed, 20260221])
    sequences = np.arange(SEATS + 1, dtype=np.float64)
    seconds: NDArray[np.float64] = step_s * (sequences if step_per_sequence else np.ones(SEATS + 1))
    model = replace(NO_TIME, decode_s=seconds, mixed_s=seconds)
    arrival_s = np.cumsum(rng.exponential(1 / rate_rps, requests))
    stream = RequestStream(
        arrival_s=arrival_s,
        prompt_tokens=np.ones(requests, dtype=np.int64),
        output_tokens=lengths(rng, requests),
        workload=np.zeros(requests, dtype=np.int32),
        workload_names=("queue",),
        span_s=float(arrival_s[-1]),
        clipped_fraction=(0.0,),
    )
    engine = EngineConfig(
        tensor_parallel_size=1,
        max_num_seqs=seats,
        max_num_batched_tokens=SEATS,
        max_model_len=1_000_000,
        async_scheduling=False,  # a step is a service; with two in flight everybody waits for one more
    )
    return simulate(stream, engine=engine, model=model, num_blocks=10_000_000, replicas=replicas, routing=routing)


def fixed(tokens: int) -> Draw:
    return lambda rng, count: np.full(count, tokens, dtype=np.int64)


def geometric(mean_tokens: float) -> Draw:
    return lambda rng, count: rng.geometric(1 / mean_tokens, count)


def two_kinds(rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Nine short answers of 100 tokens and one of 1,100: mean 200, cv² 2.75."""
    return np.where(rng.random(count) < 0.9, rng.geometric(1 / 100, count), rng.geometric(1 / 1100, count))


def steady(values_s: NDArray[np.float64]) -> float:
    """Mean after the first twentieth, in which the system fills."""
    return float(values_s[len(values_s) // 20 :].mean())


def mean_wait(log: RequestLog) -> float:
    return steady(log.scheduled_s - log.arrival_s)


# ---- One server ----


@pytest.mark.parametrize("lengths", [fixed(4), geometric(4.0), two_kinds])
def test_every_request_waits_by_lindleys_recursion(lengths: Draw) -> None:
    """W' = max(0, W + service - gap), request by request: no formula, no tolerance but rounding."""
    mean_tokens = float(lengths(np.random.default_rng(0), 100_000).mean())
    log = play(1, requests=5000, rate_rps=0.9 / (0.125 * mean_tokens), lengths=lengths, step_s=0.125)
    wait_s = np.zeros(len(log))
    gaps_s = np.diff(log.arrival_s)
    for i in range(1, len(log)):
        wait_s[i] = max(0.0, wait_s[i - 1] + 0.125 * log.output_tokens[i - 1] - gaps_s[i - 1])
    np.testing.assert_allclose(log.scheduled_s - log.arrival_s, wait_s, rtol=0, atol=1e-7)
    np.testing.assert_allclose(log.finish_s - log.scheduled_s, 0.125 * log.output_tokens, rtol=0, atol=1e-7)
    assert (wait_s > 0).mean() > 0.5


@pytest.mark.parametrize(
    ("load", "requests", "wait_s", "within"), [(0.8, 100_000, 0.200, 0.03), (0.95, 200_000, 0.95, 0.12)]
)
def test_one_server_with_fixed_work_waits_as_m_d_1(load: float, requests: int, wait_s: float, within: float) -> None:
    """Wait = rho x service / (2 (1 - rho)); TTFT of a one-token answer = wait + service."""
    assert wait_s == pytest.approx(load * 0.1 / (2 * (1 - load)))
    waits_s = []

    def one(seed: int) -> float:
        log = play(seed, requests=requests, rate_rps=load / 0.1, lengths=fixed(1), step_s=0.1)
        waits_s.append(mean_wait(log))
        return steady(log.first_token_s - log.arrival_s)

    ttft = replicated(one)
    assert ttft.agrees_with(wait_s + 0.1, within=within)
    if load == 0.8:
        assert np.mean(waits_s) == pytest.approx(0.200, rel=0.03)
    assert ttft.value_s - np.mean(waits_s) == pytest.approx(0.1, abs=1e-9)


def test_one_server_with_geometric_work_waits_as_pollaczek_and_khinchine_say() -> None:
    """M/Geo/1, the discrete twin of M/M/1: wait = rate E[S²] / (2 (1 - rho)), E[S²] = (2 - p) / p² steps²."""
    p, step_s, rate_rps = 1 / 100, 0.01, 0.8
    exact_s = rate_rps * step_s**2 * (2 - p) / p**2 / (2 * (1 - rate_rps * step_s / p))
    assert exact_s == pytest.approx(4.0, rel=0.01)  # M/M/1 at rho 0.8, mean service 1 s

    def one(seed: int) -> float:
        return mean_wait(play(seed, requests=40_000, rate_rps=rate_rps, lengths=geometric(1 / p), step_s=step_s))

    assert replicated(one).agrees_with(exact_s, within=0.12)


# ---- Four servers: one queue, or a router that decides before the wait ----

RATE_RPS, SERVERS, STEP_S, MEAN_TOKENS = 3.2, 4, 0.01, 100.0


def erlang_c_wait_s() -> float:
    """Mean wait of M/M/4 at 3.2 requests per second of 1 s."""
    offered = RATE_RPS
    top = offered**SERVERS / factorial(SERVERS) * SERVERS / (SERVERS - offered)
    waiting = top / (sum(offered**k / factorial(k) for k in range(SERVERS)) + top)
    assert waiting == pytest.approx(0.5964, abs=1e-4)
    return waiting / (SERVERS - offered)


def four_servers(*, seats: int, replicas: int, routing: Routing) -> Mean:
    def one(seed: int) -> float:
        return mean_wait(
            play(
                seed,
                requests=40_000,
                rate_rps=RATE_RPS,
                lengths=geometric(MEAN_TOKENS),
                step_s=STEP_S,
                seats=seats,
                replicas=replicas,
                routing=routing,
            )
        )

    return replicated(one)


@pytest.fixture(scope="module")
def shared_queue() -> Mean:
    """One replica of four seats: a queue that serves whoever is free."""
    return four_servers(seats=SERVERS, replicas=1, routing="least_outstanding")


@pytest.fixture(scope="module")
def least_outstanding() -> Mean:
    return four_servers(seats=1, replicas=SERVERS, routing="least_outstanding")


@pytest.fixture(scope="module")
def round_robin() -> Mean:
    return four_servers(seats=1, replicas=SERVERS, routing="round_robin")


def test_one_replica_of_four_seats_waits_as_erlang_c(shared_queue: Mean) -> None:
    """Plus half a step, since seats are given at step ends; a seat that was free waits for the others' step."""
    exact_s = erlang_c_wait_s()
    assert exact_s == pytest.approx(0.7455, abs=1e-4)
    assert shared_queue.agrees_with(exact_s + STEP_S / 2, within=0.15)


def test_round_robin_over_one_seat_replicas_waits_as_erlang_4_m_1(round_robin: Mean) -> None:
    """Every fourth Poisson arrival: G/M/1 with root s = A*(1 - s), wait = s / (1 - s).

    The approximation with cv² = 1/4 says 2.5 s; the exact value is 2.27 s.
    """
    root = optimize.brentq(lambda s: (RATE_RPS / (RATE_RPS + 1 - s)) ** SERVERS - s, 1e-6, 1 - 1e-6)
    exact_s = root / (1 - root)
    assert exact_s == pytest.approx(2.267, abs=1e-3)
    assert round_robin.agrees_with(exact_s, within=0.12)


def test_least_outstanding_waits_little_longer_than_a_shared_queue(least_outstanding: Mean) -> None:
    assert least_outstanding.value_s - least_outstanding.half_width_s > 0.75
    assert least_outstanding.value_s + least_outstanding.half_width_s < 1.1


def test_the_order_of_the_routers_is_strict(shared_queue: Mean, least_outstanding: Mean, round_robin: Mean) -> None:
    def below(a: Mean, b: Mean) -> bool:
        return a.value_s + a.half_width_s < b.value_s - b.half_width_s

    assert below(shared_queue, least_outstanding)
    assert below(least_outstanding, round_robin)
    assert round_robin.value_s + round_robin.half_width_s < 4.0  # 4 x M/M/1, what random routing would give


# ---- A batch that shares one machine ----


@pytest.mark.parametrize("lengths", [fixed(200), geometric(200.0), two_kinds])
def test_steps_that_cost_their_batch_make_a_processor_sharing_queue(lengths: Draw) -> None:
    """M/G/1-PS: time in system = service / (1 - rho) for every distribution of service with the same mean."""
    step_s, load = 0.005, 0.7

    def one(seed: int) -> float:
        log = play(
            seed,
            requests=20_000,
            rate_rps=load / (200 * step_s),
            lengths=lengths,
            step_s=step_s,
            seats=SEATS,
            step_per_sequence=True,
        )
        return steady(log.finish_s - log.arrival_s)

    assert replicated(one).agrees_with(200 * step_s / (1 - load), within=0.1)
