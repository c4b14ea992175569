"""From a scenario to its findings: screen, size, confirm, price, rank.

    feasibility -> funnel (one replica, common random numbers) -> fleet size (bracket on the fleet)
                -> confirmation (full runs at n-1, n, n+1) -> ranking by monthly cost, with ties
                -> the best with other limits on a step's tokens, for the picture of what readers feel

`make_plan` turns the findings into the `Plan` that is written down (`write_up.py`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from planner.confirm import (
    Confirmed,
    confirm,
    equal_capacity_first,
    nearest_miss,
    order,
    size_baseline,
    size_options,
)
from planner.feasibility import Configuration, Rejection, check
from planner.question import Option, Question
from planner.search import Funnel, Ranked, run_funnel
from planner.sizing import FleetEvidence
from planner.space import combinations, searched_flags
from planner.sweep import Swept, sweep_batched_tokens

__all__ = ["Findings", "find_answer"]

CONFIRM_AT_MOST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything a plan is written from."""

    question: Question
    combinations: int
    feasible: int
    rejections: tuple[Rejection, ...]
    funnels: tuple[Funnel, ...]
    options: tuple[Option, ...]
    """All ranked configurations that need no more than the allowed servers, cheapest first."""
    best: Confirmed | None
    confirmed: tuple[Confirmed, ...]
    simulated: int
    """Configurations of the space that ran at token level."""
    baseline: Option | Rejection | FleetEvidence
    """An option when it can meet the targets; evidence at the limit when it cannot; a rejection when it cannot run."""
    baseline_configuration: Configuration | None
    nearest: tuple[Ranked, FleetEvidence] | None
    sweep: tuple[Swept, ...]
    """The best with each searched max_num_batched_tokens; none without a best."""
    sweep_simulations: int
    """Runs that it took."""
    wall_s: float
    cpu_s: float


def find_answer(question: Question) -> Findings:
    """Search the question's space."""
    began_wall_s, began_cpu_s = time.perf_counter(), time.process_time()
    rejections: list[Rejection] = []
    funnels: list[Funnel] = []
    options: list[Option] = []
    total = feasible_total = 0
    searched = searched_flags(question.loaded.scenario)
    for platform in question.platforms:
        feasible: list[Configuration] = []
        for flags in combinations(question.loaded.scenario, platform):
            total += 1
            result = check(platform, flags, searched=searched)
            if isinstance(result, Rejection):
                rejections.append(result)
            else:
                feasible.append(result)
        feasible_total += len(feasible)
        if feasible:
            question.screen.compile(feasible[0])
            funnel = run_funnel(question.screen, feasible, routing=question.routing, progress=question.progress)
            funnels.append(funnel)
            if funnel.known_load > 0:
                options += size_options(question, funnel)
    options.sort(key=order)

    confirmed: list[Confirmed] = []
    for option in _equal_cost_simpler_first([o for o in options if o.sized is not None])[:CONFIRM_AT_MOST]:
        if confirmed and option.cost_usd >= min(c.option.cost_usd for c in confirmed):
            break
        if (found := confirm(question, option)) is not None:
            confirmed.append(found)
    best = min(confirmed, key=lambda c: order(c.option), default=None)
    nearest = nearest_miss(question, funnels) if best is None and funnels else None
    simulated = len(question.screen.simulated)
    before = question.screen.spent.simulations
    sweep = sweep_batched_tokens(question, best) if best is not None else ()
    sweep_simulations = question.screen.spent.simulations - before
    baseline, baseline_configuration = size_baseline(question)
    return Findings(
        question=question,
        combinations=total,
        feasible=feasible_total,
        rejections=tuple(rejections),
        funnels=tuple(funnels),
        options=tuple(options),
        best=best,
        confirmed=tuple(confirmed),
        simulated=simulated,
        baseline=baseline,
        baseline_configuration=baseline_configuration,
        nearest=nearest,
        sweep=sweep,
        sweep_simulations=sweep_simulations,
        wall_s=time.perf_counter() - began_wall_s,
        cpu_s=time.process_time() - began_cpu_s - question.screen.spent.compile_cpu_s,
    )


def _equal_cost_simpler_first(options: Sequence[Option]) -> list[Option]:
    """Options in order of cost; among the cheapest, equal capacity means the simpler one first."""
    cheapest = [o for o in options if o.cost_usd == options[0].cost_usd]
    by_capacity = equal_capacity_first([o.ranked for o in cheapest])
    return sorted(cheapest, key=lambda o: by_capacity.index(o.ranked)) + list(options[len(cheapest) :])
