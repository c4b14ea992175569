"""The other question: how much traffic do N servers carry, and what binds?

The space is screened as for a plan; the best few configurations are then bisected on the whole fleet of N servers, on
several seeds, and the winner is checked with full runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from planner.confirm import equal_capacity_first
from planner.feasibility import Configuration, Rejection, check
from planner.question import Question, make_question
from planner.queue_limits import binding_sentence
from planner.search import Progress, Ranked, run_funnel
from planner.server_count import servers_text
from planner.sizing import SEARCH_SEEDS, FleetEvidence, evidence_of
from planner.space import combinations, searched_flags
from simulator.flags import FlagValue
from simulator.scenario import LoadedScenario

__all__ = ["Capacity", "capacity_of"]

FINALISTS = 2
PRECISION = 0.01
"""The bisection ends when the bracket is narrower than 1 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The largest multiple of the whole mix that a fleet carries within its targets."""

    servers: int
    multiplier: float
    """Of the scenario's demand, without headroom; 0 = none."""
    label: str
    engine: dict[str, FlagValue]
    binding: str
    """Target nearest to breaking there."""
    next_binding: str
    """What breaks just above."""
    attainment: dict[str, float]
    certified: bool
    """Full runs meet the targets at this multiplier."""
    note: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def sentence(self) -> str:
        if self.multiplier == 0:
            who = servers_text(self.servers, "meets", "meet")
            return f"{who} the targets at no load that was tried; {self.binding} binds. {self.note}"
        sure = "confirmed by full runs" if self.certified else "ranked only: full runs did not certify it"
        who = servers_text(self.servers, "carries", "carry")
        return (
            f"{who} {self.multiplier:.3g} times the demand ({self.label}), {sure}. "
            f"There {self.binding}; just above, {self.next_binding}. {self.note}"
        )


def capacity_of(loaded: LoadedScenario, servers: int, progress: Progress | None = None) -> Capacity:
    """Answer for `servers` serving servers; spare servers and headroom of the scenario are left out."""
    question = make_question(loaded, progress)
    ranked: list[Ranked] = []
    rejection: Rejection | None = None
    for platform in question.platforms:
        flags_of_all = combinations(loaded.scenario, platform)
        results = [check(platform, flags, searched=searched_flags(loaded.scenario)) for flags in flags_of_all]
        feasible = [r for r in results if isinstance(r, Configuration)]
        rejection = next((r for r in results if isinstance(r, Rejection)), rejection)
        if feasible:
            question.screen.compile(feasible[0])
            funnel = run_funnel(question.screen, feasible, routing=question.routing, progress=question.progress)
            ranked += [r for r in funnel.ranked if r.load > 0] or list(funnel.ranked[:1])
    if not ranked:
        detail = rejection.detail if rejection is not None else "no configuration can run"
        return _none(servers, "no configuration", {}, detail, "")
    if max(r.load for r in ranked) == 0:
        first = ranked[0]
        engine = first.configuration.engine.flags()
        return _none(servers, first.configuration.label, engine, first.last.binding, "It is missed on an idle replica.")
    best: tuple[Ranked, FleetEvidence, FleetEvidence | None] | None = None
    for entry in equal_capacity_first(ranked)[:FINALISTS]:
        found = _bisect(question, entry, servers)
        if found is not None and (best is None or found[0].load > best[1].load):
            best = (entry, *found)
    if best is None:
        first = ranked[0]
        engine = first.configuration.engine.flags()
        return _none(
            servers, first.configuration.label, engine, first.last.binding, "The fleet meets at no load tried."
        )
    entry, at, above = best
    full, load = _certify(question, entry, servers, at.load)
    flags = entry.configuration.engine.values()
    return Capacity(
        servers=servers,
        multiplier=load,
        label=entry.configuration.label,
        engine=entry.configuration.engine.flags(),
        binding=_sentence(full, flags),
        next_binding=_sentence(above, flags) if above is not None else "no load tried was too much",
        attainment={name: interval.value for name, interval in full.attainment.items()},
        certified=full.meets and full.steady,
        note="Spare servers and headroom are not part of this answer.",
    )


def _none(servers: int, label: str, engine: dict[str, FlagValue], binding: str, note: str) -> Capacity:
    return Capacity(
        servers=servers,
        multiplier=0.0,
        label=label,
        engine=engine,
        binding=binding,
        next_binding="",
        attainment={},
        certified=False,
        note=note,
    )


def _sentence(evidence: FleetEvidence, flags: Mapping[str, FlagValue]) -> str:
    workload, target, value_s, limit_s = evidence.binding
    if any(s.saturated for s in evidence.scores):
        return f"the fleet is saturated ({workload} {target} is tightest)"
    if not isfinite(value_s):
        return binding_sentence(evidence, flags)
    return f"{workload} {target} is tightest, {value_s * 1e3:,.0f} ms against {limit_s * 1e3:,.0f} ms"


def _bisect(question: Question, entry: Ranked, servers: int) -> tuple[FleetEvidence, FleetEvidence | None] | None:
    """The largest load that meets and the smallest that was seen to miss, on the fleet."""

    def look(load: float, done: int) -> FleetEvidence:
        question.progress(f"bisecting the load of {servers_text(servers)}", done, 10)
        return evidence_of(
            question.screen,
            entry.configuration,
            servers=servers,
            load=load,
            seeds=question.replications[:SEARCH_SEEDS],
            routing=question.routing,
            guess=entry.last.end_to_end,
            certify=False,
        )

    low: FleetEvidence | None = None
    high: FleetEvidence | None = None
    load = entry.load * servers
    for done in range(14):
        evidence = look(load, done)
        if evidence.meets:
            low = evidence
        else:
            high = evidence
        if low is not None and high is not None:
            if high.load - low.load < PRECISION * low.load:
                break
            load = 0.5 * (low.load + high.load)
        else:
            load *= 1.15 if low is not None else 0.8
    return (low, high) if low is not None else None


def _certify(question: Question, entry: Ranked, servers: int, load: float) -> tuple[FleetEvidence, float]:
    """Full runs at the load, stepping down by 2 % while they miss."""
    for attempt in range(6):
        question.progress("confirming with full runs", attempt, 6)
        full = evidence_of(
            question.screen,
            entry.configuration,
            servers=servers,
            load=load,
            seeds=question.replications,
            routing=question.routing,
            guess=entry.last.end_to_end,
        )
        if full.meets:
            break
        load *= 0.98
    return full, load
