"""The funnel: from every combination of flags to the few that are worth a fleet simulation.

1. Feasibility. What cannot run is a `Rejection`.
2. A stratified sample (a few of every tensor-parallel degree) is bisected to a first known capacity, in multiples of
   the mix per server.
3. In a large space, what the arithmetic bound puts below that capacity is dropped and counted; a small one is cheaper
   to simulate whole, and a simulation is better evidence.
4. Every other configuration runs once at that capacity. What misses its targets there is dropped and counted.
5. The best survivors, and the best of every tensor-parallel degree with and without prefix caching, are bisected on a
   whole server: all its replicas behind the router, since a router evens out what one replica alone would suffer.
   Configurations that were equal to the last digit in step 4 share one bisection.

Steps 2 to 4 run one replica. All on common random numbers. It ranks; the fleet runs in `sizing` certify.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planner.bound import load_bound
from planner.feasibility import Configuration
from planner.screen import RankRun, Screen
from simulator.run import Routing

__all__ = ["Funnel", "Progress", "Ranked", "bisect_load", "run_funnel", "simplicity"]

SAMPLE_PER_DEGREE = 8
SURVIVORS = 40
PER_KIND = 2
BOUND_FROM = 5_000
"""Feasible configurations from which on the bound prunes: below, simulating all of them takes seconds."""
CAUTION = 0.95
"""The first rung runs at this share of the known capacity, so that noise drops no equal."""
PROBES = 6
"""A bisection ends when the bracket is narrower than 2^-6 of its lower end: 1.6 %."""

Progress = Callable[[str, int, int], None]
"""Told of the stage, how many of its parts are done, and of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A configuration with the capacity that rank runs gave it."""

    configuration: Configuration
    load: float
    """Largest multiplier of the mix per server at which its targets held; 0 = at none that was tried."""
    last: RankRun
    """The run at that load (or the lightest one tried)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Funnel:
    """What the screening of one platform found."""

    ranked: tuple[Ranked, ...]
    """Best first."""
    pruned_by_bound: int
    pruned_by_run: int
    """Ran once, at the known capacity, and missed."""
    known_load: float
    """Capacity the first rung was run at; 0 when nothing met its targets."""


def run_funnel(screen: Screen, feasible: Sequence[Configuration], *, routing: Routing, progress: Progress) -> Funnel:
    """Rank the feasible configurations of one platform."""
    bounds = {c: load_bound(c, screen.model(c), screen.mix) for c in feasible}
    sample = _sample(feasible)
    best = 0.0
    for done, configuration in enumerate(sample):
        progress("looking for a first capacity", done, len(sample))
        if bounds[configuration] > best:
            best = max(
                best, bisect_load(screen, configuration, start=best, ceiling=bounds[configuration], probes=5).load
            )
    if best == 0.0:  # the sample found nothing; perhaps a configuration outside it does, at least when almost idle
        light = _light_runs(screen, feasible, bounds, progress)
        for configuration, run in light[:SAMPLE_PER_DEGREE]:
            if run.passes:
                found = bisect_load(screen, configuration, start=best, ceiling=bounds[configuration], probes=5)
                best = max(best, found.load)
        if best == 0.0:
            nearest = [Ranked(configuration=c, load=0.0, last=r) for c, r in light[:SURVIVORS]]
            return Funnel(
                ranked=tuple(nearest), pruned_by_bound=0, pruned_by_run=len(light) - len(nearest), known_load=0.0
            )

    level = CAUTION * best
    worth = [c for c in feasible if len(feasible) < BOUND_FROM or bounds[c] >= level]
    runs: list[tuple[Configuration, RankRun]] = []
    for done, configuration in enumerate(worth):
        progress("simulating configurations", done, len(worth))
        runs.append((configuration, screen.rank_run(configuration, level)))
    passing = sorted((r for r in runs if r[1].passes), key=lambda r: (r[1].pressure, simplicity(r[0])))
    chosen = [c for c, _ in passing[:SURVIVORS]]
    for kind in sorted({_kind(c) for c in feasible}):
        chosen += _best_of_kind(kind, runs, feasible, bounds)
    chosen = list(dict.fromkeys(chosen))
    first = {c: r for c, r in runs}
    ranked: list[Ranked] = []
    for done, alike in enumerate(groups := _alike(chosen, first)):
        progress("measuring capacity", done, len(groups))
        start = level if alike[0] in first and first[alike[0]].passes else 0.0
        found = bisect_load(
            screen, alike[0], start=start, ceiling=bounds[alike[0]], probes=PROBES, whole_server=True, routing=routing
        )
        ranked += [Ranked(configuration=c, load=found.load, last=found.last) for c in alike]
    ranked.sort(key=lambda r: (-r.load, simplicity(r.configuration)))
    return Funnel(
        ranked=tuple(ranked),
        pruned_by_bound=len(feasible) - len(worth),
        pruned_by_run=len(runs) - len(passing),
        known_load=best,
    )


def _alike(chosen: Sequence[Configuration], first: Mapping[Configuration, RankRun]) -> list[list[Configuration]]:
    """Configurations whose first runs were equal to the last digit (a limit that never binds)."""
    groups: dict[object, list[Configuration]] = {}
    for configuration in chosen:
        run = first.get(configuration)
        key = (configuration.engine.tensor_parallel_size, run.score) if run is not None else configuration
        groups.setdefault(repr(key) if run is not None else key, []).append(configuration)
    return [sorted(group, key=simplicity) for group in groups.values()]


def bisect_load(
    screen: Screen,
    configuration: Configuration,
    *,
    start: float,
    ceiling: float,
    probes: int,
    whole_server: bool = False,
    routing: Routing = "round_robin",
) -> Ranked:
    """Largest load per server at which the targets hold. `start` is tried first where it is known to be of interest."""
    low, high, run = 0.0, ceiling, None
    guess = start if 0.0 < start < ceiling else 0.5 * ceiling
    for _ in range(4 * probes):
        attempt = screen.rank_run(configuration, guess, whole_server=whole_server, routing=routing)
        if attempt.passes:
            low, run = guess, attempt
        else:
            high = guess
            if run is None and guess < 1e-3 * ceiling:
                run = attempt
                break
        if low > 0.0 and high - low < low * 2.0**-probes:
            break
        guess = min(2 * low, 0.5 * (low + high)) if low > 0.0 else guess / 2
    return Ranked(configuration=configuration, load=low, last=run if run is not None else attempt)


def _light_runs(
    screen: Screen, feasible: Sequence[Configuration], bounds: Mapping[Configuration, float], progress: Progress
) -> list[tuple[Configuration, RankRun]]:
    """Every configuration at 1 % of its bound, where latency is at its floor; nearest to its targets first."""
    runs: list[tuple[Configuration, RankRun]] = []
    for done, configuration in enumerate(feasible):
        progress("looking at almost idle replicas", done, len(feasible))
        runs.append((configuration, screen.rank_run(configuration, 0.01 * bounds[configuration])))
    return sorted(runs, key=lambda r: (not r[1].passes, r[1].pressure, simplicity(r[0])))


def _sample(feasible: Sequence[Configuration]) -> list[Configuration]:
    """A few configurations of every tensor-parallel degree, spread over the list."""
    chosen: list[Configuration] = []
    for degree in sorted({c.engine.tensor_parallel_size for c in feasible}):
        members = [c for c in feasible if c.engine.tensor_parallel_size == degree]
        step = max(1, len(members) // SAMPLE_PER_DEGREE)
        chosen += members[step // 2 :: step][:SAMPLE_PER_DEGREE]
    return chosen


def _kind(configuration: Configuration) -> tuple[int, bool]:
    """What readers compare: the tensor-parallel degree, and prefix caching on or off."""
    return configuration.engine.tensor_parallel_size, configuration.engine.enable_prefix_caching


def _best_of_kind(
    kind: tuple[int, bool],
    runs: Sequence[tuple[Configuration, RankRun]],
    feasible: Sequence[Configuration],
    bounds: dict[Configuration, float],
) -> list[Configuration]:
    """The most promising of one kind, whether or not any survived, to compare kinds."""
    of_kind = [r for r in runs if _kind(r[0]) == kind]
    of_kind.sort(key=lambda r: (not r[1].passes, r[1].pressure, simplicity(r[0])))
    if of_kind:
        return [c for c, _ in of_kind[:PER_KIND]]
    members = [c for c in feasible if _kind(c) == kind]
    return sorted(members, key=lambda c: (-bounds[c], simplicity(c)))[:PER_KIND]


def simplicity(configuration: Configuration) -> tuple[int, int, int, int, int]:
    """Fewer GPUs' worth of coupling and flags nearer to vLLM's defaults first; also makes every order definite."""
    engine = configuration.engine
    return (
        int(engine.kv_cache_dtype != "auto"),
        len(engine.flags()),  # the sizes, and what else is not vLLM's default
        abs(engine.max_num_batched_tokens - 16_384),
        abs(engine.max_num_seqs - 1_024),
        engine.tensor_parallel_size,
    )
