"""A run that certifies: warm-up, a window long enough to decide, and a run-out, all sized from the run itself.

Warm-up is at least 3 x the p95 of E2E; the window at least 20 x the mean E2E and long enough that every workload sends
10 / (1 - attainment) requests; arrivals go on until the last request of the window has finished (design 5). E2E is not
known before the run, so a first guess is run, read, and the run repeated until its own E2E fits its own window. What
cannot be had within `max_requests` is reported as not steady, never as met.

A *search* run is a third as long and works off its last requests without new arrivals: it ranks, it never certifies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.engine import EngineConfig
from simulator.log import RequestLog
from simulator.mix import Mix
from simulator.run import Routing, Window, simulate
from simulator.score import Score, score
from simulator.steptime import StepTimeModel
from simulator.workload import RequestStream, make_stream

__all__ = ["EndToEnd", "Replicas", "SteadyRun", "end_to_end", "steady_run"]

PILOT_REQUESTS = 20_000
"""A first attempt without a guess is at most this long: it only has to give one."""
HOPELESS = 0.2
"""A run whose system kept this share of its arrivals is saturated whatever its length: no longer one is tried."""
ATTEMPTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EndToEnd:
    """How long requests stay, in seconds: what sizes warm-up, window and run-out."""

    mean_s: float
    p95_s: float
    longest_s: float


UNKNOWN = EndToEnd(mean_s=10.0, p95_s=30.0, longest_s=60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """Equal engines: what one replica is, apart from how many there are."""

    engine: EngineConfig
    model: StepTimeModel
    num_blocks: int
    """KV blocks of one replica that hold full-attention tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyRun:
    """A run and whether it may certify."""

    stream: RequestStream
    """What the last attempt was given: with the same engine it plays the same run again."""
    window: Window | None
    log: RequestLog
    score: Score
    warmup_s: float
    end_to_end: EndToEnd
    """Of the window's requests."""
    steady: bool
    """Warm-up, window and run-out were as long as this run's own E2E asks."""
    attempts: int
    simulated_requests: int
    """Over all attempts."""
    engine_steps: int
    """Over all attempts."""


def steady_run(
    mix: Mix,
    replicas: Replicas,
    *,
    count: int,
    multiplier: float,
    seed: np.random.SeedSequence | int,
    routing: Routing = "least_outstanding",
    guess: EndToEnd | None = None,
    certify: bool = True,
    max_requests: int = 1_000_000,
) -> SteadyRun:
    """Run the mix at `multiplier` on `count` replicas. `guess` is E2E from an earlier run."""
    rate_rps = mix.rate_rps * multiplier
    deciding_s = 1.1 * mix.deciding_span_s / multiplier * (1.0 if certify else 1 / 3)
    stay = guess if guess is not None else UNKNOWN
    limit = max_requests if guess is not None else min(PILOT_REQUESTS, max_requests)
    requests = steps = attempt = 0
    while attempt < ATTEMPTS:
        attempt += 1
        warmup_s = (3.3 if certify else 2.0) * stay.p95_s
        window_s = max((22 if certify else 7) * stay.mean_s, deciding_s)
        runout_s = 1.2 * stay.longest_s if certify else 0.2 * stay.p95_s
        shrink = min(1.0, limit / (rate_rps * (warmup_s + window_s + runout_s)))
        warmup_s, window_s = warmup_s * shrink, window_s * shrink
        stream = make_stream(
            mix.workloads,
            multiplier=multiplier,
            seed=seed,
            max_model_len=mix.max_model_len,
            # arrivals behind the window's last finish are never simulated, so a long run-out costs nothing
            duration_s=warmup_s + window_s + (4 if certify else 1) * runout_s,
            traces=mix.traces,
        )
        window = Window(start_s=warmup_s, end_s=warmup_s + window_s)
        log = simulate(
            stream,
            engine=replicas.engine,
            model=replicas.model,
            num_blocks=replicas.num_blocks,
            replicas=count,
            window=window,
            routing=routing,
            drain=not certify,
            warm_prefix_cache=True,
        )
        result = score(log, mix.targets)
        requests += len(log)
        steps += int(log.replica_times.steps.sum()) if log.replica_times is not None else 0
        stay = end_to_end(log)
        fits = warmup_s >= 3 * stay.p95_s and window_s >= 20 * stay.mean_s and window_s >= deciding_s / 1.1
        steady = fits and certify and result.window_complete and not result.saturated
        hopeless = result.saturated and result.growth_fraction > HOPELESS
        if steady or hopeless or (limit == max_requests and (shrink < 1.0 or result.saturated or not certify)):
            break
        limit = max_requests
    return SteadyRun(
        stream=stream,
        window=window,
        log=log,
        score=result,
        warmup_s=warmup_s,
        end_to_end=stay,
        steady=steady,
        attempts=attempt,
        simulated_requests=requests,
        engine_steps=steps,
    )


def end_to_end(log: RequestLog) -> EndToEnd:
    """E2E of the window's requests; what has not finished counts with its age, so an overload shows."""
    rows = (log.phase == 1) & (log.status != 2)
    if not bool(rows.any()):
        return UNKNOWN
    ends_s = np.where(np.isnan(log.finish_s), log.end_s, log.finish_s)[rows]
    stay_s = ends_s - log.arrival_s[rows]
    return EndToEnd(mean_s=float(stay_s.mean()), p95_s=float(np.quantile(stay_s, 0.95)), longest_s=float(stay_s.max()))
