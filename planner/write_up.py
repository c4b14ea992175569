"""Findings written down as a `Plan`: every figure with its interval, every assumption named, every rejection kept."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from typing import Literal

from hardware_profiles.profile import HardwareProfile
from planner.answer import Findings, find_answer
from planner.confirm import SAME_CAPACITY, Confirmed
from planner.extrapolation import extrapolations
from planner.plan_file import (
    Candidate,
    Plan,
    ProfileUsed,
    RejectionRow,
    Screened,
)
from planner.question import Option, Question, make_question
from planner.queue_limits import limits_text, rejected_fraction
from planner.recipe import shortlisted
from planner.search import Progress
from planner.write_best import best_of
from planner.write_miss import baseline_of, nearest_miss_of
from simulator.scenario import LoadedScenario
from simulator.score import cached_fraction

__all__ = ["VLLM_VERSION", "make_plan"]

VLLM_VERSION = "0.32.0"
"""The release whose scheduler and defaults the simulator follows."""


def make_plan(loaded: LoadedScenario, progress: Progress | None = None) -> Plan:
    """Answer a scenario. A user's mistake is an `InputError`; that nothing meets the targets is an answer."""
    question = make_question(loaded, progress)
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
    candidates = tuple(_candidate(findings, o, tied) for o in _best_first(findings))
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
            sweep_simulations=findings.sweep_simulations,
            simulated_requests=spent.simulated_requests,
            engine_steps=spent.engine_steps,
            wall_s=round(findings.wall_s, 3),
            cpu_s=round(findings.cpu_s, 3),
            compile_s=round(spent.compile_s, 3),
        ),
        best=best_of(question, best, findings.sweep) if best is not None else None,
        tied=tuple(o.configuration.label for o in tied),
        nearest_miss=nearest_miss_of(findings),
        baseline=baseline_of(findings),
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
    notes: list[str] = _prefix_cache_notes(findings)
    best, base = findings.best, findings.baseline_configuration
    if best is not None:
        chosen = best.option.configuration
        if base is not None and chosen.engine.kv_cache_dtype != base.engine.kv_cache_dtype:
            notes.append(
                f"The plan changes kv_cache_dtype from {base.engine.kv_cache_dtype} to {chosen.engine.kv_cache_dtype}; "
                "answer quality is not modelled."
            )
        if base is not None and chosen.platform.precision != base.platform.precision:
            notes.append(
                f"The plan changes the weights' precision from {base.platform.precision} to "
                f"{chosen.platform.precision}; answer quality is not modelled."
            )
        if base is not None and chosen.engine.enable_prefix_caching != base.engine.enable_prefix_caching:
            with_cache, without = "plan", "baseline"
            if base.engine.enable_prefix_caching:
                with_cache, without = without, with_cache
            notes.append(
                f"The {with_cache} counts on prefix caching, the {without} runs without it. vLLM's own default is on: "
                "say in baseline: {enable_prefix_caching: …} what runs today."
            )
        notes += _turned_away(question, best)
        notes += extrapolations(question, best)
        age = (question.as_of - question.price(chosen).date).days
        if age > 90:
            notes.append(f"The price is {age} days old; ask for a quote.")
        if not best.uncertainty.coefficients_drawn:
            notes.append(
                f"Profile {chosen.platform.profile.name} has no covariance file: its common residual alone is drawn, "
                "so the probability is surer than it may be. Fit it anew with `goodfleet profile fit`."
            )
        if not best.at.steady:
            notes.append("Some confirmation runs were shorter than their own E2E asks; the attainment is undecided.")
        notes.append("Simulated, not validated on hardware: measure the shortlist on a real server before you buy.")
    notes.append("The rates of the scenario are taken to hold all day and all month.")
    return tuple(notes)


def _prefix_cache_notes(findings: Findings) -> list[str]:
    """What the prefix cache finds, or that prefixes are shared and nothing looks for them."""
    scenario, best = findings.question.loaded.scenario, findings.best
    if best is not None and best.option.configuration.engine.enable_prefix_caching:
        share = cached_fraction([row for s in best.at.scores for row in s.workloads])
        if share is None:
            return []
        who = "had served the documents before" if any(w.prefix for w in scenario.workloads.values()) else "began empty"
        found = f"{share:.1%} of the prompt tokens were found by replicas that {who}"
        return [f"Prefix caching is on: {found}."]
    searched = scenario.search.enable_prefix_caching if scenario.search is not None else None
    recorded = {name for name, trace in findings.question.mix.traces.items() if trace.prefix_ids is not None}
    sharing = [name for name, workload in scenario.workloads.items() if workload.prefix or name in recorded]
    if not sharing or scenario.engine.enable_prefix_caching or (searched is not None and True in searched):
        return []
    who = f"Workload {sharing[0]} shares" if len(sharing) == 1 else f"Workloads {', '.join(sharing)} share"
    return [
        f"{who} prefixes, but prefix caching is off: no prompt is found again; search enable_prefix_caching: "
        "[true, false] to see what it is worth."
    ]


def _turned_away(question: Question, best: Confirmed) -> list[str]:
    """With a limit on a queue: how many requests of each workload it costs."""
    flags = best.option.configuration.engine.values()
    shares = {name: rejected_fraction([s.workload(name) for s in best.at.scores]) for name in question.mix.workloads}
    if not (limits := limits_text(flags)):
        return []
    each = ", ".join(f"{share:.2%} of {name}" for name, share in shares.items())
    return [
        f"{limits}: {each} are answered 503 and count as missed."
        if any(shares.values())
        else f"{limits}: no request of the confirmation runs was answered 503."
    ]


def _candidate(findings: Findings, option: Option, tied: list[Option]) -> Candidate:
    question, best, configuration = findings.question, findings.best, option.configuration
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
        probability_of_meeting_targets=_probability(findings, option),
    )


def _probability(findings: Findings, option: Option) -> float | None:
    """Of a fleet that went through full runs at the size it is listed with."""
    for confirmed in findings.confirmed:
        same = confirmed.option.configuration is option.configuration
        if same and confirmed.option.servers == option.servers:
            return confirmed.uncertainty.both.interval.value
    return None


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
