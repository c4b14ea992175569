"""What a plan says of fleets that are not the answer: the baseline, and the nearest miss when nothing meets."""

from __future__ import annotations

from math import isfinite

import numpy as np

from planner.answer import Findings
from planner.feasibility import Rejection
from planner.plan_file import Baseline, NearestMiss
from planner.question import Question
from planner.queue_limits import binding_sentence, raise_limit, rejected_fraction
from planner.search import Ranked
from planner.server_count import servers_text
from planner.sizing import FleetEvidence

__all__ = ["baseline_of", "nearest_miss_of"]


def baseline_of(findings: Findings) -> Baseline:
    question, found, configuration = findings.question, findings.baseline, findings.baseline_configuration
    today = question.loaded.scenario.baseline.servers if question.loaded.scenario.baseline is not None else None
    if isinstance(found, Rejection):
        return Baseline(
            label="baseline",
            engine=dict(found.engine),
            node=found.node,
            servers=None,
            servers_today=today,
            cost_usd_per_month=None,
            saving_usd_per_month=None,
            note=f"It cannot run: {found.detail}",
        )
    assert configuration is not None
    if isinstance(found, FleetEvidence):
        missed = binding_sentence(found, configuration.engine.values())
        note = f"Misses its targets even on {servers_text(found.servers)}: {missed}"
        servers, cost = None, None
    else:
        servers, cost = found.servers + question.spare_servers, float(found.cost_usd)
        note = "Sized for the same load and targets, with the same spare servers"
    best = findings.best
    saving = cost - float(best.option.cost_usd) if cost is not None and best is not None else None
    return Baseline(
        label=configuration.label,
        engine=configuration.engine.flags(),
        node=configuration.platform.node.name,
        servers=servers,
        servers_today=today,
        cost_usd_per_month=cost,
        saving_usd_per_month=saving,
        note=note,
    )


def nearest_miss_of(findings: Findings) -> NearestMiss | None:
    if findings.best is not None:
        return None
    question = findings.question
    if findings.nearest is None:  # nothing could even run
        first = findings.rejections[0]
        return NearestMiss(
            label="no configuration can run",
            node=first.node,
            precision=first.precision,
            engine=dict(first.engine),
            servers=None,
            workload=None,
            target=first.constraint,
            value=None,
            limit=None,
            attainment={},
            what_would_have_to_change=(first.detail,),
        )
    ranked, evidence = findings.nearest
    workload, target, value_s, limit_s = evidence.binding
    configuration = ranked.configuration
    return NearestMiss(
        label=configuration.label,
        node=configuration.platform.node.name,
        precision=configuration.platform.precision,
        engine=configuration.engine.flags(),
        servers=evidence.servers,
        workload=workload,
        target=target,
        value=round(value_s * 1e3, 3) if isfinite(value_s) else None,
        limit=round(limit_s * 1e3, 3),
        rejected_fraction=round(rejected_fraction([s.workload(workload) for s in evidence.scores]), 6),
        attainment={name: interval.value for name, interval in evidence.attainment.items()},
        what_would_have_to_change=_changes(question, ranked, evidence),
    )


def _changes(question: Question, ranked: Ranked, evidence: FleetEvidence) -> tuple[str, ...]:
    """What would turn the nearest miss into an answer."""
    workload, target, value_s, limit_s = evidence.binding
    cure = raise_limit(evidence, ranked.configuration.engine.values())
    changes = [cure] if cure is not None else []
    if ranked.load > 0:
        needed = int(np.ceil(question.load / ranked.load))
        changes.append(
            f"about {servers_text(needed)}: raise fleet.max_servers from {question.max_servers}, or lower the rates to "
            f"{question.max_servers * ranked.load / question.load:.0%} of the scenario's"
        )
    else:
        floor = ranked.last.score.workload(workload)
        at_rest = next((p.value_s for p in floor.pressures if p.target == target), value_s)
        if not isfinite(at_rest):
            if cure is None:
                changes.append(f"more servers do not help: on an almost idle replica {workload} does not finish")
        elif at_rest > limit_s:
            changes.append(
                f"more servers do not help: on an almost idle replica {workload} {target} is already "
                f"{at_rest * 1e3:,.0f} ms; raise the target to at least that, shorten the requests, or use another "
                "model, precision or machine"
            )
        elif isfinite(value_s):
            changes.append(f"a looser {target} for {workload}: it is {value_s * 1e3:,.0f} ms on the largest fleet")
        elif cure is None:
            changes.append(f"more servers, or lower rates: requests of {workload} do not finish on the largest fleet")
    return tuple(changes)
