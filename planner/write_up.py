"""Findings written down as a `Plan`: every figure with its interval, every assumption named, every rejection kept."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from typing import Any, Literal

import numpy as np

from hardware_profiles.memory import KvLedger
from hardware_profiles.profile import HardwareProfile
from planner.answer import Findings, find_answer
from planner.confirm import SAME_CAPACITY, Confirmed
from planner.cost import fleet_cost_per_hour, monthly_cost_usd, per_million_tokens
from planner.feasibility import Rejection
from planner.plan_file import (
    Baseline,
    Best,
    Candidate,
    IntervalRow,
    NearestMiss,
    Plan,
    Pool,
    ProfileUsed,
    RejectionRow,
    Screened,
    WorkloadAnswer,
)
from planner.question import Option, Progress, Question, make_question
from planner.recipe import shortlisted
from planner.search import Ranked
from planner.sizing import FleetEvidence, Interval
from simulator.scenario import LoadedScenario

__all__ = ["VLLM_VERSION", "make_plan"]

VLLM_VERSION = "0.32.0"
"""The release whose scheduler and defaults the simulator follows."""


def make_plan(loaded: LoadedScenario, progress: Progress | None = None) -> Plan:
    """Answer a scenario. A user's mistake is an `InputError`; that nothing meets the targets is an answer."""
    question = make_question(loaded, progress if progress is not None else lambda stage, done, total: None)
    return write_up(find_answer(question))


def write_up(findings: Findings) -> Plan:
    """The plan of these findings."""
    question = findings.question
    spent = question.screen.spent
    best = findings.best
    tied = _tied(findings) if best is not None else []
    scenario = question.loaded.scenario
    chosen = best.option.configuration if best is not None else None
    price = question.price(chosen) if chosen is not None else next(iter(question.prices.values()))
    candidates = tuple(_candidate(question, o, best, tied) for o in _best_first(findings))
    return Plan(
        goodfleet_version=_own_version(),
        vllm_version=VLLM_VERSION,
        status="answered" if best is not None else "nothing_meets_targets",
        notes=_notes(findings),
        scenario=scenario.model_dump(mode="json", exclude_none=True),
        scenario_path=question.loaded.path.name,
        scenario_sha256=question.loaded.sha256,
        seed=scenario.seed,
        as_of=question.as_of.isoformat(),
        load=question.load,
        price={
            "sku": price.sku,
            "provider": price.provider or "",
            "price": str(price.price),
            "unit": price.unit,
            "currency": price.currency,
            "term": price.term,
            "date": price.date.isoformat(),
            "source": price.source,
            "available": "yes" if price.available else "no",
        },
        profile=chosen.platform.profile.name if chosen is not None else None,
        profiles={p.profile.name: _profile(p.profile) for p in question.platforms},
        screened=Screened(
            configurations=findings.combinations,
            feasible=findings.feasible,
            pruned_by_bound=sum(f.pruned_by_bound for f in findings.funnels),
            pruned_by_run=sum(f.pruned_by_run for f in findings.funnels),
            simulated=findings.simulated,
            candidates=len(findings.options),
            confirmed=len(findings.confirmed),
            simulations=spent.simulations,
            simulated_requests=spent.simulated_requests,
            engine_steps=spent.engine_steps,
            wall_s=round(findings.wall_s, 3),
            cpu_s=round(findings.cpu_s, 3),
            compile_s=round(spent.compile_s, 3),
        ),
        best=_best(question, best) if best is not None else None,
        tied=tuple(o.configuration.label for o in tied),
        nearest_miss=_nearest(findings),
        baseline=_baseline(findings),
        candidates=candidates,
        rejections=tuple(
            RejectionRow(
                node=r.node, precision=r.precision, engine=dict(r.engine), constraint=r.constraint, detail=r.detail
            )
            for r in findings.rejections
        ),
        shortlist=tuple(f"shortlist/{i:02d}.yaml" for i in range(1, len(shortlisted(candidates)) + 1)),
    )


def _own_version() -> str:
    try:
        return version("goodfleet")
    except PackageNotFoundError:
        return "0+source"


def _best_first(findings: Findings) -> list[Option]:
    """All options, the confirmed best in front, with the number of servers that its confirmation found."""
    if findings.best is None:
        return list(findings.options)
    best = findings.best.option
    return [best, *(o for o in findings.options if o.configuration is not best.configuration)]


def _tied(findings: Findings) -> list[Option]:
    """Options that cost the same and whose capacity the rank runs cannot tell from the best's."""
    assert findings.best is not None
    best = findings.best.option
    return [
        o
        for o in findings.options
        if o.configuration is not best.configuration
        and o.cost_usd == best.cost_usd
        and o.ranked.load >= (1 - SAME_CAPACITY) * best.ranked.load
    ]


def _notes(findings: Findings) -> tuple[str, ...]:
    """What must be said before the numbers."""
    question = findings.question
    notes: list[str] = []
    best, base = findings.best, findings.baseline_configuration
    if best is not None:
        chosen = best.option.configuration
        if base is not None and chosen.engine.kv_cache_dtype != base.engine.kv_cache_dtype:
            notes.append(
                f"The plan changes kv_cache_dtype from {base.engine.kv_cache_dtype} to {chosen.engine.kv_cache_dtype}; "
                "answer quality is not modelled, and that type's speed was not measured but assumed from its bytes."
            )
        if base is not None and chosen.platform.precision != base.platform.precision:
            notes.append(
                f"The plan changes the weights' precision from {base.platform.precision} to "
                f"{chosen.platform.precision}; answer quality is not modelled."
            )
        notes += _extrapolations(question, best)
        age = (question.as_of - question.price(chosen).date).days
        if age > 90:
            notes.append(f"The price is {age} days old; ask for a quote.")
        if not best.at.steady:
            notes.append("Some confirmation runs were shorter than their own E2E asks; the attainment is undecided.")
        notes.append("Simulated, not validated on hardware: measure the shortlist on a real server before you buy.")
    notes.append("The rates of the scenario are taken to hold all day and all month.")
    return tuple(notes)


def _extrapolations(question: Question, best: Confirmed) -> list[str]:
    """Where the answer leaves what was measured."""
    profile = best.option.configuration.platform.profile
    measured = profile.measured
    notes: list[str] = []
    longest = max(sum(question.mix.mean_tokens(name)) for name in question.mix.workloads)
    if longest > measured.context[1]:
        notes.append(
            f"Extrapolated: requests of {longest:,.0f} tokens, the profile was measured up to {measured.context[1]:,}."
        )
    running = max(s.in_flight_mean for s in best.at.scores) / (best.option.servers * _replicas(best.option))
    if running > measured.concurrency[1]:
        notes.append(
            f"Extrapolated: {running:,.0f} requests in flight per replica, measured up to {measured.concurrency[1]}."
        )
    chunk = best.option.configuration.engine.max_num_batched_tokens
    curve = profile.all_reduce.get(best.option.configuration.engine.tensor_parallel_size)
    if curve is not None and chunk * question.card.hidden * 2 > curve.to_bytes:
        notes.append(
            f"Extrapolated all-reduce: a full step of {chunk:,} tokens exchanges "
            f"{chunk * question.card.hidden * 2 / 1e6:,.0f} MB, measured up to {curve.to_bytes / 1e6:,.0f} MB."
        )
    return notes


def _replicas(option: Option) -> int:
    return option.configuration.replicas_per_server


def _best(question: Question, best: Confirmed) -> Best:
    option, configuration = best.option, best.option.configuration
    price = question.price(configuration)
    serving, total = option.servers, option.servers + question.spare_servers
    hourly = fleet_cost_per_hour(price, total)
    demand_tokens = float(np.mean([s.output_tokens_per_s for s in best.at_demand.scores]))
    good_tokens = float(np.mean([s.goodput_tokens_per_s for s in best.at_demand.scores]))
    output_usd, good_usd = per_million_tokens(hourly, demand_tokens), per_million_tokens(hourly, good_tokens)
    prefill = float(np.mean([s.prefill_fraction for s in best.at.scores]))
    decode = float(np.mean([s.decode_fraction for s in best.at.scores]))
    workload, target, value_s, limit_s = best.at.binding
    engine = configuration.engine
    return Best(
        label=configuration.label,
        pools=(
            Pool(
                name="all",
                role="serve",
                workloads=tuple(question.mix.workloads),
                node=configuration.platform.node.name,
                engine=engine.flags(),
                precision=configuration.platform.precision,
                gpus_per_replica=engine.tensor_parallel_size,
                replicas=total * configuration.replicas_per_server,
                replicas_per_server=configuration.replicas_per_server,
                servers=total,
            ),
        ),
        engine=engine.flags(),
        replicas_per_server=configuration.replicas_per_server,
        servers=total,
        servers_by_reason={
            "traffic": best.traffic_servers,
            "headroom": serving - best.traffic_servers,
            "spare": question.spare_servers,
        },
        cost_usd_per_month=float(monthly_cost_usd(price, total, question.months[0])),
        cost_usd_by_month={month: float(monthly_cost_usd(price, total, month)) for month in question.months},
        usd_per_million_output_tokens=float(output_usd) if output_usd is not None else None,
        usd_per_million_good_tokens=float(good_usd) if good_usd is not None else None,
        attainment={name: _row(interval) for name, interval in best.at.attainment.items()},
        probability_of_meeting_targets=best.met_draws / best.draws,
        probability_draws=best.draws,
        workloads={name: _workload(question, best.at, name) for name in question.mix.workloads},
        utilization={"prefill": prefill, "decode": decode, "idle": 1 - prefill - decode},
        binding=f"{workload} {target}: {value_s * 1e3:,.0f} ms against {limit_s * 1e3:,.0f} ms",
        one_server_fewer=_fewer(best),
        meets_with_one_more=best.more.meets,
        how_known="simulated",
        memory=_memory(configuration.ledger),
        kv_tokens=configuration.ledger.kv_tokens,
    )


def _fewer(best: Confirmed) -> str:
    if best.fewer is None:
        return "one serving server is the least there can be"
    workload, target, value_s, limit_s = best.fewer.binding
    attained = best.fewer.attainment[workload].value
    if any(s.saturated for s in best.fewer.scores):
        return f"{best.fewer.servers} servers are saturated: the queue grows ({workload} {target})"
    return (
        f"{best.fewer.servers} servers miss {workload} {target}: {value_s * 1e3:,.0f} ms against "
        f"{limit_s * 1e3:,.0f} ms, attainment {attained:.4f}"
    )


def _workload(question: Question, evidence: FleetEvidence, name: str) -> WorkloadAnswer:
    rows = [s.workload(name) for s in evidence.scores]
    targets = question.mix.targets[name]
    limits = {f"{metric}_ms": limit_s * 1e3 for metric, limit_s in targets.per_request_s.items()}
    limits |= {f"{t.metric}_p{t.percentile}_ms": t.limit_s * 1e3 for t in targets.percentiles}
    if targets.deadline_s is not None:
        limits["deadline_s"] = targets.deadline_s

    def ms(values_s: Sequence[float]) -> float | None:
        mean = float(np.mean(values_s)) * 1e3
        return round(mean, 3) if isfinite(mean) else None

    return WorkloadAnswer(
        rate_rps=question.mix.rates_rps[name] * evidence.load,
        attainment=_row(evidence.attainment[name]),
        target_attainment=targets.attainment,
        judged=sum(r.judged for r in rows),
        decided=evidence.steady and all(r.decidable for r in rows),
        ttft_p50_ms=ms([r.percentiles_s["ttft"][0] for r in rows]),
        ttft_p99_ms=ms([r.percentiles_s["ttft"][3] for r in rows]),
        tpot_p50_ms=ms([r.percentiles_s["tpot"][0] for r in rows]),
        tpot_p99_ms=ms([r.percentiles_s["tpot"][3] for r in rows]),
        itl_p99_ms=ms([r.percentiles_s["itl"][3] for r in rows]),
        e2e_p50_ms=ms([r.percentiles_s["e2e"][0] for r in rows]),
        e2e_p99_ms=ms([r.percentiles_s["e2e"][3] for r in rows]),
        longest_stall_ms=ms([max(r.longest_stall_s for r in rows)]),
        targets=limits,
        output_tokens_per_s=float(np.mean([r.output_tokens_per_s for r in rows])),
        goodput_tokens_per_s=float(np.mean([r.goodput_tokens_per_s for r in rows])),
    )


def _row(interval: Interval) -> IntervalRow:
    return IntervalRow(value=interval.value, low=interval.low, high=interval.high)


def _memory(ledger: KvLedger) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"name": line.name, "bytes": line.bytes, "how_known": line.how_known, "note": line.note}
        for line in ledger.lines
    )


def _candidate(question: Question, option: Option, best: Confirmed | None, tied: list[Option]) -> Candidate:
    configuration = option.configuration
    evidence: Literal["rank run", "fleet", "confirmed"] = "fleet" if option.sized is not None else "rank run"
    if best is not None and option.configuration is best.option.configuration:
        evidence = "confirmed"
    return Candidate(
        label=configuration.label,
        node=configuration.platform.node.name,
        precision=configuration.platform.precision,
        engine=configuration.engine.flags(),
        replicas_per_server=configuration.replicas_per_server,
        servers=option.servers + question.spare_servers,
        cost_usd_per_month=float(option.cost_usd),
        load_per_server=round(option.ranked.load, 6),
        tightest=option.ranked.last.binding,
        ttft_p99_ms=_worst_ms(question, option, "ttft"),
        tpot_p99_ms=_worst_ms(question, option, "tpot"),
        evidence=evidence,
        tied=option in tied,
    )


def _worst_ms(question: Question, option: Option, metric: Literal["ttft", "tpot"]) -> float | None:
    """Largest p99 among the workloads that have a target on the metric, at the capacity the rank run found."""
    promised = [
        name
        for name, targets in question.mix.targets.items()
        if metric in targets.per_request_s or any(t.metric == metric for t in targets.percentiles)
    ]
    rows = [w for w in option.ranked.last.score.workloads if w.name in promised or not promised]
    finite = [v for w in rows if isfinite(v := w.percentiles_s[metric][3])]
    return round(max(finite) * 1e3, 3) if finite else None


def _profile(profile: HardwareProfile) -> ProfileUsed:
    in_sample = profile.errors.get("in sample", {})
    return ProfileUsed(
        node=profile.node,
        model=profile.model,
        precision=profile.precision,
        engine=profile.engine,
        engine_version=profile.engine_version,
        as_of=profile.as_of,
        tier=profile.tier,
        sources=profile.sources,
        caveats=profile.caveats,
        assumed_flags=dict(profile.assumed_flags),
        kv_sensitivity=profile.kv_sensitivity,
        measured=profile.measured.model_dump(mode="json"),
        residual_sd=profile.residual_sd,
        median_error={metric: figures.median for metric, figures in in_sample.items()},
    )


def _baseline(findings: Findings) -> Baseline | None:
    question, found, configuration = findings.question, findings.baseline, findings.baseline_configuration
    if found is None:
        return None
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
        workload, target, value_s, limit_s = found.binding
        note = (
            f"Misses its targets even on {found.servers} servers: {workload} {target} is {value_s * 1e3:,.0f} ms "
            f"against {limit_s * 1e3:,.0f} ms"
        )
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


def _nearest(findings: Findings) -> NearestMiss | None:
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
        attainment={name: interval.value for name, interval in evidence.attainment.items()},
        what_would_have_to_change=_changes(question, ranked, evidence),
    )


def _changes(question: Question, ranked: Ranked, evidence: FleetEvidence) -> tuple[str, ...]:
    """What would turn the nearest miss into an answer."""
    workload, target, value_s, limit_s = evidence.binding
    changes: list[str] = []
    if ranked.load > 0:
        needed = int(np.ceil(question.load / ranked.load))
        changes.append(
            f"about {needed} servers: raise fleet.max_servers from {question.max_servers}, or lower the rates to "
            f"{question.max_servers * ranked.load / question.load:.0%} of the scenario's"
        )
    else:
        floor = ranked.last.score.workload(workload)
        at_rest = next((p.value_s for p in floor.pressures if p.target == target), value_s)
        if at_rest > limit_s:
            changes.append(
                f"more servers do not help: on an almost idle replica {workload} {target} is already "
                f"{at_rest * 1e3:,.0f} ms; raise the target to at least that, shorten the requests, or use another "
                "model, precision or machine"
            )
        else:
            changes.append(f"a looser {target} for {workload}: it is {value_s * 1e3:,.0f} ms on the largest fleet")
    return tuple(changes)
