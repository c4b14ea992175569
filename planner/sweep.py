"""The best fleet with each searched `max_num_batched_tokens`: what a larger or smaller step does to readers.

A step gives every open stream its next token, and takes as long as the prompt chunks in it. So the limit on a step's
tokens bounds the longest stall, and a smaller limit makes new requests wait for more steps.

One run per value, all on one stream, with the other flags, the number of servers and the load held. They are search
runs, a third as long as those that certify: full runs would take 6 s of a plan's 25 s (`examples/four-workloads.yaml`),
these take 0.8 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.confirm import Confirmed
from planner.feasibility import Configuration, check
from planner.question import Question
from planner.space import searched_values
from simulator.score import Score

__all__ = ["Swept", "sweep_batched_tokens"]

MOST_VALUES = 10
"""More are thinned evenly: the sweep draws a picture, and must stay a small part of a plan's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """One value, one run."""

    max_num_batched_tokens: int
    chosen: bool
    score: Score


def sweep_batched_tokens(question: Question, best: Confirmed) -> tuple[Swept, ...]:
    """In rising order; a value that cannot run with the other flags is left out."""
    configuration = best.option.configuration
    chosen = configuration.engine.max_num_batched_tokens
    searched = searched_values(question.loaded.scenario, configuration.platform, "max_num_batched_tokens")
    values = _thinned(sorted({chosen, *(int(value) for value in searched)}), chosen)
    swept: list[Swept] = []
    for done, value in enumerate(values):
        question.progress("sweeping max_num_batched_tokens", done, len(values))
        flags = {**configuration.engine.values(), "max_num_batched_tokens": value}
        other = check(configuration.platform, flags, searched=configuration.searched)
        if not isinstance(other, Configuration):
            continue
        run = question.screen.fleet_run(
            other,
            servers=best.option.servers,
            multiplier=question.load,
            seed=question.replications[0],
            routing=question.routing,
            guess=best.option.ranked.last.end_to_end,
            certify=False,
        )
        swept.append(Swept(max_num_batched_tokens=value, chosen=value == chosen, score=run.score))
    return tuple(swept)


def _thinned(values: Sequence[int], chosen: int) -> list[int]:
    """At most so many, the smallest, the largest and the chosen one among them."""
    if len(values) <= MOST_VALUES:
        return list(values)
    last = len(values) - 1
    kept = {values[round(i * last / (MOST_VALUES - 2))] for i in range(MOST_VALUES - 1)}
    return sorted(kept | {chosen})
