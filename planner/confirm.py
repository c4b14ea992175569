"""From ranked configurations to a certified fleet: sizes, full runs at n-1, n, n+1, model error, the baseline.

Short runs rank; they never certify. The figures of an answer come from `confirm`: full warm-up, a window that decides
every workload, independent replications, and 64 streams on which the profile is wrong by its own error
(`uncertainty.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from planner.bound import load_bound
from planner.feasibility import Configuration, Rejection
from planner.question import Option, Question
from planner.search import Funnel, Ranked, bisect_load, simplicity
from planner.server_count import servers_text
from planner.sizing import SEARCH_SEEDS, FleetEvidence, SizedFleet, bracket, evidence_of
from planner.space import baseline_configuration
from planner.uncertainty import Uncertainty, uncertainty_of

__all__ = ["Confirmed", "confirm", "nearest_miss", "size_baseline", "size_options"]

DEMAND_SEEDS = 4
FINALISTS_PER_PLATFORM = 3
SAME_CAPACITY = 0.02
"""Capacities from rank runs within this share of the best count as equal: the simpler configuration goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """An option after full runs."""

    option: Option
    at: FleetEvidence
    """n servers."""
    fewer: FleetEvidence | None
    """n - 1; None when n = 1."""
    more: FleetEvidence
    """n + 1."""
    at_demand: FleetEvidence
    """The whole fleet with its spares at the demand itself, without headroom."""
    traffic_servers: int
    """Servers for the demand itself."""
    uncertainty: Uncertainty
    """At n servers."""


def size_options(question: Question, funnel: Funnel) -> list[Option]:
    """Fleet sizes: bracketed for the best and for the best of each tensor-parallel degree, estimated for the rest."""
    ranked = [r for r in funnel.ranked if r.load > 0]
    finalists = equal_capacity_first(ranked)[:FINALISTS_PER_PLATFORM]
    for degree in sorted({r.configuration.engine.tensor_parallel_size for r in ranked}):
        of_degree = [r for r in ranked if r.configuration.engine.tensor_parallel_size == degree]
        if not any(f in of_degree for f in finalists):
            finalists.append(of_degree[0])
    options: list[Option] = []
    for entry in ranked:
        servers = max(1, int(np.ceil(question.load / entry.load - 1e-9)))
        sized: SizedFleet | None = None
        if entry in finalists:
            done = finalists.index(entry)
            found = _bracket(question, entry, load=question.load, guess=servers, limit=question.max_servers, done=done)
            if isinstance(found, FleetEvidence):
                continue
            sized, servers = found, found.servers
        if servers <= question.max_servers:
            options.append(_option(question, entry, sized, servers))
    return sorted(options, key=order)


def _bracket(
    question: Question, ranked: Ranked, *, load: float, guess: int, limit: int, done: int = 0
) -> SizedFleet | FleetEvidence:
    def progress(done: int, servers: int) -> None:
        stage = f"sizing {ranked.configuration.label}, {servers_text(servers)}"
        question.progress(stage, done, FINALISTS_PER_PLATFORM + 2)

    return bracket(
        question.screen,
        ranked.configuration,
        load=load,
        guess=guess,
        limit=limit,
        seeds=question.replications[:SEARCH_SEEDS],
        routing=question.routing,
        stay=ranked.last.end_to_end,
        progress=partial(progress, done),
    )


def _option(question: Question, ranked: Ranked, sized: SizedFleet | None, servers: int) -> Option:
    cost_usd = question.month_usd(ranked.configuration, servers)
    return Option(ranked=ranked, sized=sized, servers=servers, cost_usd=cost_usd)


def equal_capacity_first(ranked: Sequence[Ranked]) -> list[Ranked]:
    """Best capacity first; within 2 % of the best the simpler configuration goes first."""
    top = max((r.load for r in ranked), default=0.0)
    return sorted(ranked, key=lambda r: (r.load < (1 - SAME_CAPACITY) * top, simplicity(r.configuration), -r.load))


def order(option: Option) -> tuple[object, ...]:
    """Cheapest first, fleet evidence before estimates, then the larger capacity, then the simpler flags."""
    return (option.cost_usd, option.sized is None, -option.ranked.load, simplicity(option.configuration))


def confirm(question: Question, option: Option) -> Confirmed | None:
    """Full runs at n-1, n, n+1; n moves until n meets and n-1 does not. None when even max_servers misses."""
    seen: dict[int, FleetEvidence] = {}

    def look(servers: int) -> FleetEvidence:
        if servers not in seen:
            question.progress(f"confirming {servers_text(servers)}, full runs", len(seen), 4)
            seen[servers] = _full(question, option, servers, question.load, len(question.replications))
        return seen[servers]

    n = option.servers
    while not look(n).meets:
        if n == question.max_servers:
            return None
        n += 1
    while n > 1 and look(n - 1).meets:
        n -= 1
    more = look(n + 1)
    question.progress("sizing without headroom", 0, 1)
    guess = max(1, min(n, int(np.ceil(1 / option.ranked.load))))
    bare = _bracket(question, option.ranked, load=1.0, guess=guess, limit=n)
    return Confirmed(
        option=_option(question, option.ranked, option.sized, n),
        at=look(n),
        fewer=look(n - 1) if n > 1 else None,
        more=more,
        at_demand=_full(question, option, n + question.spare_servers, 1.0, DEMAND_SEEDS),
        traffic_servers=bare.servers if isinstance(bare, SizedFleet) else n,
        uncertainty=_uncertainty(question, option, look(n)),
    )


def _full(question: Question, option: Option, servers: int, load: float, replications: int) -> FleetEvidence:
    return evidence_of(
        question.screen,
        option.configuration,
        servers=servers,
        load=load,
        seeds=question.replications[:replications],
        routing=question.routing,
        guess=option.ranked.last.end_to_end,
    )


def _uncertainty(question: Question, option: Option, evidence: FleetEvidence) -> Uncertainty:
    workload, target, _, limit_s = evidence.binding
    total = len(question.draw_streams)
    return uncertainty_of(
        question.screen,
        option.configuration,
        servers=evidence.servers,
        load=evidence.load,
        routing=question.routing,
        guess=option.ranked.last.end_to_end,
        binding=(workload, target, limit_s),
        streams=question.draw_streams,
        profile_seed=question.profile_seed,
        progress=lambda done: question.progress("drawing profiles and seeds", done, total),
    )


def size_baseline(question: Question) -> tuple[Option | Rejection | FleetEvidence, Configuration | None]:
    """The baseline (else vLLM's defaults at the smallest TP that fits), sized for the same load."""
    result = baseline_configuration(question.loaded.scenario, question.platforms[0])
    if isinstance(result, Rejection):
        return result, None
    question.progress("sizing the baseline", 0, 1)
    ceiling = load_bound(result, question.screen.model(result), question.mix)
    ranked = bisect_load(
        question.screen,
        result,
        start=0.5 * ceiling,
        ceiling=ceiling,
        probes=4,
        whole_server=True,
        routing=question.routing,
    )
    guess = max(1, int(np.ceil(question.load / ranked.load))) if ranked.load > 0 else question.max_servers
    found = _bracket(question, ranked, load=question.load, guess=guess, limit=question.max_servers)
    if isinstance(found, FleetEvidence):
        return found, result
    return _option(question, ranked, found, found.servers), result


def nearest_miss(question: Question, funnels: Sequence[Funnel]) -> tuple[Ranked, FleetEvidence]:
    """What comes nearest on the largest allowed fleet."""
    ranked = [r for funnel in funnels for r in funnel.ranked]
    ranked.sort(key=lambda r: (-r.load, r.last.pressure))
    question.progress("looking at the nearest miss", 0, 1)
    evidence = evidence_of(
        question.screen,
        ranked[0].configuration,
        servers=question.max_servers,
        load=question.load,
        seeds=question.replications[:SEARCH_SEEDS],
        routing=question.routing,
        certify=False,
    )
    return ranked[0], evidence
