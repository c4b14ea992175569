"""Requests that a fleet turned away, told with the limit that did it.

vLLM answers 503 when a replica is at `max_num_queued_reqs` or `max_num_queued_tokens`. A run's log also calls a request
rejected that is longer than the whole KV cache; `feasibility.check` rules out configurations whose cache holds fewer
tokens than `max_model_len`, and lengths are cut to that. So where a limit is set, rejected means 503.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from planner.sizing import FleetEvidence
from simulator.flags import FlagValue
from simulator.score import WorkloadScore

__all__ = ["binding_sentence", "limits_text", "raise_limit", "rejected_fraction", "rejected_sentence"]

LIMITS = ("max_num_queued_reqs", "max_num_queued_tokens")

Flags = Mapping[str, FlagValue]


def limits_text(flags: Flags) -> str:
    """The limits on a queue with their values; empty without any."""
    return " and ".join(f"{name} {flags[name]}" for name in LIMITS if name in flags)


def rejected_fraction(rows: Sequence[WorkloadScore]) -> float:
    """Share of a workload's judged requests that were turned away, over all runs."""
    judged = sum(row.judged for row in rows)
    return sum(row.rejected for row in rows) / judged if judged else 0.0


def rejected_sentence(rows: Sequence[WorkloadScore], flags: Flags) -> str | None:
    """How many requests of one workload were turned away, of how many, and by what; None where it was none."""
    rejected, judged = sum(row.rejected for row in rows), sum(row.judged for row in rows)
    if not rejected:
        return None
    limits = limits_text(flags)
    how = f"answered 503: {limits}" if limits else "refused: they are longer than the KV cache of a replica"
    verb = "was" if rejected == 1 else "were"
    return f"{rejected:,} of {judged:,} requests ({rejected / judged:.1%}) {verb} {how}"


def binding_sentence(evidence: FleetEvidence, flags: Flags) -> str:
    """The tightest target with its value and limit; where too few requests finished for one, what became of them."""
    workload, target, value_s, limit_s = evidence.binding
    against = f"{limit_s * 1e3:,.0f} ms"
    if isfinite(value_s):
        return f"{workload} {target} is {value_s * 1e3:,.0f} ms against {against}"
    share = rejected_fraction([s.workload(workload) for s in evidence.scores])
    if share == 0:
        return f"{workload} {target} of {against} is missed: too many requests never finished"
    how = f"answered 503 ({limits})" if (limits := limits_text(flags)) else "refused"
    return f"{workload} {target} of {against} is missed: {share:.1%} of its requests were {how}"


def raise_limit(evidence: FleetEvidence, flags: Flags) -> str | None:
    """The cure where the answers of 503 alone are more misses than a workload may have; None elsewhere."""
    limits = limits_text(flags)
    for name in evidence.names:
        rows = [s.workload(name) for s in evidence.scores]
        if limits and (share := rejected_fraction(rows)) > 1 - rows[0].target_attainment:
            return f"{share:.1%} of the requests of {name} were answered 503; raise {limits}"
    return None
