"""How many servers: searched on the fleet itself, and confirmed by replications at n-1, n and n+1.

A fleet meets its targets at a load when the mean over the replications does: attainment of every workload, every
percentile target, and no run saturated. `bracket` finds n so that n meets and n-1 does not, both on several seeds.
Common random numbers: all candidates and sizes see the same streams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from planner.feasibility import Configuration
from planner.screen import Screen
from simulator.run import Routing
from simulator.score import Score
from simulator.steady import EndToEnd

__all__ = ["SEARCH_SEEDS", "FleetEvidence", "Interval", "SizedFleet", "bracket", "evidence_of", "interval_of"]

SEARCH_SEEDS = 3
"""Replications that look for a fleet size or a load, before full runs confirm it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean over replications with its 95 % interval (Student's t)."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetEvidence:
    """Replications of one configuration on one number of servers at one load."""

    servers: int
    load: float
    """Multiplier of the mix."""
    scores: tuple[Score, ...]
    """One per replication."""
    steady: bool
    """Every replication had the warm-up, window and run-out that its own E2E asks."""

    @property
    def meets(self) -> bool:
        """Decided on the means over the replications."""
        return not any(s.saturated for s in self.scores) and all(
            self.attainment[name].value >= self.scores[0].workload(name).target_attainment
            and all(value <= limit for value, limit in self.percentile_means(name))
            for name in self.names
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(w.name for w in self.scores[0].workloads)

    @property
    def attainment(self) -> Mapping[str, Interval]:
        """Share of good requests by workload."""
        return {
            name: interval_of([s.workload(name).attainment for s in self.scores], low=0.0, high=1.0)
            for name in self.names
        }

    @property
    def judged(self) -> Mapping[str, int]:
        """Judged requests by workload, over all replications."""
        return {name: sum(s.workload(name).judged for s in self.scores) for name in self.names}

    def percentile_means(self, name: str) -> list[tuple[float, float]]:
        """Mean over replications of each percentile target's value, beside its limit."""
        rows = [s.workload(name).pressures for s in self.scores]
        limits = {p.target: p.limit_s for row in rows for p in row if "_p" in p.target}
        return [
            (float(np.mean([p.value_s for row in rows for p in row if p.target == target])), limit)
            for target, limit in limits.items()
        ]

    @property
    def binding(self) -> tuple[str, str, float, float]:
        """Workload, target, mean value and limit of the target nearest to breaking."""
        worst: tuple[str, str, float, float] | None = None
        for name in self.names:
            for target in {p.target for s in self.scores for p in s.workload(name).pressures}:
                points = [p for s in self.scores for p in s.workload(name).pressures if p.target == target]
                value, limit = float(np.mean([p.value_s for p in points])), points[0].limit_s
                if worst is None or value / limit > worst[2] / worst[3]:
                    worst = (name, target, value, limit)
        assert worst is not None
        return worst


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedFleet:
    """The smallest fleet of one configuration that meets the targets at a load."""

    configuration: Configuration
    servers: int
    meets: FleetEvidence


def interval_of(values: Sequence[float], *, low: float = -np.inf, high: float = np.inf) -> Interval:
    """Mean and 95 % Student's t interval, cut to the possible range."""
    mean = float(np.mean(values))
    if len(values) < 2 or not np.isfinite(mean):
        return Interval(value=mean, low=low, high=high)
    half = float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))
    return Interval(value=mean, low=max(low, mean - half), high=min(high, mean + half))


def evidence_of(
    screen: Screen,
    configuration: Configuration,
    *,
    servers: int,
    load: float,
    seeds: Sequence[np.random.SeedSequence],
    routing: Routing,
    guess: EndToEnd | None = None,
    certify: bool = True,
) -> FleetEvidence:
    """Replicate one fleet at one load. A saturated replication ends it: the answer is no."""
    scores: list[Score] = []
    steady = True
    for seed in seeds:
        run = screen.fleet_run(
            configuration,
            servers=servers,
            multiplier=load,
            seed=seed,
            routing=routing,
            guess=guess,
            certify=certify,
        )
        scores.append(run.score)
        steady = steady and run.steady
        if run.steady:
            guess = run.end_to_end
        if run.score.saturated:
            break
    return FleetEvidence(servers=servers, load=load, scores=tuple(scores), steady=steady)


def bracket(
    screen: Screen,
    configuration: Configuration,
    *,
    load: float,
    guess: int,
    limit: int,
    seeds: Sequence[np.random.SeedSequence],
    routing: Routing,
    stay: EndToEnd | None,
    progress: Callable[[int], None],
) -> SizedFleet | FleetEvidence:
    """The smallest n that meets at `load`, searched outwards from a guess; the evidence at `limit` when none does."""
    seen: dict[int, FleetEvidence] = {}

    def look(servers: int) -> FleetEvidence:
        if servers not in seen:
            progress(servers)
            seen[servers] = evidence_of(
                screen,
                configuration,
                servers=servers,
                load=load,
                seeds=seeds,
                routing=routing,
                guess=stay,
                certify=False,
            )
        return seen[servers]

    n = max(1, min(guess, limit))
    low, high = 0, limit + 1  # low misses, high meets; 0 servers miss by definition
    step = 1
    while high - low > 1:
        if look(n).meets:
            high = n
            n = max(low + 1, high - step) if low == 0 else (low + high) // 2
        elif n == limit:
            return look(limit)
        else:
            low = n
            n = min(limit, low + step) if high == limit + 1 else (low + high) // 2
        step *= 2
    return SizedFleet(configuration=configuration, servers=high, meets=look(high))
