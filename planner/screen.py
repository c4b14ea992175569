"""Rank runs: one replica under its share of the mix, on common random numbers. They rank; they never certify.

Every configuration sees the same requests with the same lengths, only their times are stretched, so two configurations
differ by what they do and not by luck. A rank run judges at least 1,000 requests; when its warm-up turns out shorter
than its own E2E asks, it is repeated on a longer stream. `Screen` counts what was spent.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from hardware_profiles.profile import HardwareProfile
from planner.feasibility import Configuration
from simulator.mix import Mix
from simulator.run import Backend, Routing, Window, simulate
from simulator.score import Score, score
from simulator.steady import EndToEnd, Replicas, SteadyRun, end_to_end, steady_run
from simulator.steptime import StepTimeModel, step_time_model
from simulator.workload import StreamSource

__all__ = ["RankRun", "Screen", "Spent"]

RANK_REQUESTS = 1_800
"""Requests of the shortest rank run: a quarter warms up, 60 % are judged."""
WARMUP_FRACTION, WINDOW_END_FRACTION = 0.25, 0.85
LONGEST = 8
"""Rank runs grow at most this many times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRun:
    """What one rank run says of one configuration at one load."""

    load: float
    """Multiplier of the mix per server."""
    score: Score
    passes: bool
    """Every target holds within the run's own sampling error, and the load is carried."""
    pressure: float
    """The tightest target's value over its limit; above 1 it is missed."""
    binding: str
    """Workload and target that are tightest."""
    end_to_end: EndToEnd
    """The first guess of a longer run."""


@dataclass(slots=True)
class Spent:
    """What the screening cost so far."""

    simulations: int = 0
    simulated_requests: int = 0
    engine_steps: int = 0
    compile_s: float = 0.0
    """Wall time."""
    compile_cpu_s: float = 0.0
    """Less than the wall time where the compiled kernels are read from a slow disk, or the machine is shared."""


class Screen:
    """Runs configurations against one mix; keeps the streams, the step-time tables and the account."""

    def __init__(self, mix: Mix, seed: np.random.SeedSequence) -> None:
        self.mix = mix
        self.targets = mix.targets
        self.spent = Spent()
        self.simulated: set[Configuration] = set()
        self._seed = seed
        self._sources: dict[int, StreamSource] = {}
        self._models: dict[tuple[str, int, str], StepTimeModel] = {}

    def model(self, configuration: Configuration) -> StepTimeModel:
        """Step times, built once per profile, tensor-parallel degree and KV type."""
        engine, platform = configuration.engine, configuration.platform
        key = (platform.profile.name, engine.tensor_parallel_size, engine.kv_cache_dtype)
        held = self._models.get(key)
        if held is None or len(held.mixed_s) <= max(engine.max_num_batched_tokens, engine.max_num_seqs):
            held = _step_times(configuration, platform.profile, least_tokens=32_768)
            self._models[key] = held
        return held

    def compile(self, configuration: Configuration) -> None:
        """Load or compile both kernels on a tiny run, so that their time is not counted as simulation."""
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        stream = StreamSource(
            self.mix.workloads,
            seed=0,
            requests=10,
            max_model_len=self.mix.max_model_len,
            traces=self.mix.traces,
        ).stream(0.01)
        backends: tuple[Backend, ...] = ("kernel", "full-kernel")
        for backend in backends:
            simulate(
                stream,
                engine=configuration.engine,
                model=self.model(configuration),
                num_blocks=configuration.num_blocks,
                replicas=1,
                backend=backend,
            )
        self.spent.compile_s += time.perf_counter() - began_s
        self.spent.compile_cpu_s += time.process_time() - began_cpu_s

    def rank_run(
        self, configuration: Configuration, load: float, *, whole_server: bool = False, routing: Routing = "round_robin"
    ) -> RankRun:
        """One replica, or all of a server behind its router, where the server carries `load` times the mix."""
        replicas = configuration.replicas_per_server if whole_server else 1
        factor = least = replicas
        while True:
            source = self._source(factor)
            multiplier = load * replicas / configuration.replicas_per_server
            stream = source.stream(multiplier)
            start_s, end_s = WARMUP_FRACTION * stream.span_s, WINDOW_END_FRACTION * stream.span_s
            log = simulate(
                stream,
                engine=configuration.engine,
                model=self.model(configuration),
                num_blocks=configuration.num_blocks,
                replicas=replicas,
                window=Window(start_s=start_s, end_s=end_s),
                routing=routing,
                warm_prefix_cache=True,
            )
            assert log.replica_times is not None  # every simulated log has them
            self._account(configuration, requests=len(log), steps=int(log.replica_times.steps.sum()))
            judged = score(log, self.targets)
            stay = end_to_end(log)
            if start_s >= 1.5 * stay.p95_s or factor >= LONGEST * least or judged.saturated:
                break
            factor *= 2
        workload, tightest = judged.tightest
        return RankRun(
            load=load,
            score=judged,
            passes=not judged.saturated and all(_passes(judged, name) for name in self.targets),
            pressure=tightest.ratio,
            binding=f"{workload} {tightest.target}",
            end_to_end=stay,
        )

    def fleet_run(
        self,
        configuration: Configuration,
        *,
        servers: int,
        multiplier: float,
        seed: np.random.SeedSequence,
        routing: Routing,
        profile: HardwareProfile | None = None,
        guess: EndToEnd | None = None,
        certify: bool = True,
    ) -> SteadyRun:
        """All replicas of `servers` servers under the whole mix: sized to certify, or a shorter search run.

        `profile` is a drawn one, in place of the platform's own.
        """
        model = self.model(configuration) if profile is None else _step_times(configuration, profile)
        run = steady_run(
            self.mix,
            Replicas(
                engine=configuration.engine,
                model=model,
                num_blocks=configuration.num_blocks,
            ),
            count=servers * configuration.replicas_per_server,
            multiplier=multiplier,
            seed=seed,
            routing=routing,
            guess=guess,
            certify=certify,
        )
        self._account(configuration, runs=run.attempts, requests=run.simulated_requests, steps=run.engine_steps)
        return run

    def _source(self, factor: int) -> StreamSource:
        if factor not in self._sources:
            self._sources[factor] = StreamSource(
                self.mix.workloads,
                seed=self._seed,
                requests=RANK_REQUESTS * factor,
                max_model_len=self.mix.max_model_len,
                traces=self.mix.traces,
            )
        return self._sources[factor]

    def _account(self, configuration: Configuration, *, requests: int, steps: int, runs: int = 1) -> None:
        self.simulated.add(configuration)
        self.spent.simulations += runs
        self.spent.simulated_requests += requests
        self.spent.engine_steps += steps


def _step_times(configuration: Configuration, profile: HardwareProfile, *, least_tokens: int = 0) -> StepTimeModel:
    """Tables up to the largest step that the configuration can take."""
    engine, platform = configuration.engine, configuration.platform
    return step_time_model(
        profile,
        node=platform.node,
        card=platform.card,
        tensor_parallel_size=engine.tensor_parallel_size,
        max_tokens=max(engine.max_num_batched_tokens, engine.max_num_seqs, least_tokens),
        kv_cache_dtype=engine.kv_cache_dtype,
    )


def _passes(judged: Score, name: str) -> bool:
    """The workload's targets hold, give or take two standard deviations of its own count of misses."""
    row = judged.workload(name)
    if row.judged == 0:
        return True
    expected = row.judged * (1 - row.target_attainment)
    percentile_slack = all(p.ratio <= 1.05 for p in row.pressures if "_p" in p.target)
    return row.judged - row.good <= expected + 2 * np.sqrt(expected) and percentile_slack
