"""The answer's own part of a plan: the fleet, what every server is there for, what each workload gets from it."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np

from hardware_profiles.memory import KvLedger
from hardware_profiles.profile import HardwareProfile
from planner.confirm import Confirmed
from planner.cost import fleet_cost_per_hour, monthly_cost_usd, per_million_tokens
from planner.plan_file import (
    Best,
    ChanceRow,
    IntervalRow,
    Pool,
    SweepPoint,
    SweepWorkload,
    TargetSpread,
    UncertaintyRow,
    WorkloadAnswer,
)
from planner.prefix_cache import most_cached_fraction
from planner.question import Question
from planner.queue_limits import binding_sentence, limits_text, rejected_fraction
from planner.server_count import servers_text
from planner.sizing import FleetEvidence, Interval
from planner.sweep import Swept
from planner.uncertainty import Chance, Uncertainty
from simulator.engine import EngineConfig
from simulator.score import Pressure, WorkloadScore, cached_fraction

__all__ = ["best_of"]


def best_of(question: Question, best: Confirmed, sweep: Sequence[Swept]) -> Best:
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
        probability_of_meeting_targets=best.uncertainty.both.interval.value,
        probability_draws=best.uncertainty.both.runs,
        uncertainty=_uncertainty(best.uncertainty, configuration.platform.profile),
        workloads={name: _workload(question, engine, best.at, name) for name in question.mix.workloads},
        utilization={"prefill": prefill, "decode": decode, "idle": 1 - prefill - decode},
        binding=f"{workload} {Pressure(target=target, value_s=value_s, limit_s=limit_s).sentence}",
        one_server_fewer=_fewer(best),
        meets_with_one_more=best.more.meets,
        how_known="simulated",
        memory=_memory(configuration.ledger),
        kv_tokens=configuration.ledger.kv_tokens,
        cached_fraction=_cached(engine, [row for s in best.at.scores for row in s.workloads]),
        most_cached_fraction=_rounded(most_cached_fraction(question.mix, engine, seed=question.replications[0])),
        batched_tokens_sweep=tuple(_sweep_point(swept) for swept in sweep),
    )


def _fewer(best: Confirmed) -> str:
    if best.fewer is None:
        return "one serving server is the least there can be"
    workload, target, _, _ = best.fewer.binding
    attained = best.fewer.attainment[workload].value
    if any(s.saturated for s in best.fewer.scores):
        return f"{servers_text(best.fewer.servers, 'is', 'are')} saturated: the queue grows ({workload} {target})"
    missed = binding_sentence(best.fewer, best.option.configuration.engine.values())
    return f"{servers_text(best.fewer.servers, 'misses', 'miss')}: {missed}, attainment {attained:.4f}"


def _uncertainty(found: Uncertainty, profile: HardwareProfile) -> UncertaintyRow:
    share = found.profile_share
    return UncertaintyRow(
        profile_error="coefficients and residual" if found.coefficients_drawn else "residual only",
        interval_scale=profile.interval_scale,
        probability=_chance(found.both),
        probability_seeds_alone=_chance(found.seeds_alone),
        workload=found.workload,
        target=found.target,
        limit_ms=round(found.limit_s * 1e3, 3),
        with_drawn_profiles=_spread(found.drawn_s),
        with_exact_profile=_spread(found.exact_s),
        profile_share=_row(share, digits=6) if share is not None else None,
        seeds_share=round(1.0 - share.value, 6) if share is not None else None,
        window_s=round(found.window_s, 3),
    )


def _chance(chance: Chance) -> ChanceRow:
    interval = chance.interval
    low, high = round(interval.low, 6), round(interval.high, 6)
    return ChanceRow(value=interval.value, low=low, high=high, met=chance.met, runs=chance.runs)


def _spread(values_s: Sequence[float]) -> TargetSpread:
    """Runs to which the target does not apply are left out."""
    applying = [v for v in values_s if v == v]
    p10, p50, p90 = (
        _ms([float(np.quantile(applying, q, method="inverted_cdf"))]) if applying else None for q in (0.1, 0.5, 0.9)
    )
    return TargetSpread(p10_ms=p10, p50_ms=p50, p90_ms=p90)


def _workload(question: Question, engine: EngineConfig, evidence: FleetEvidence, name: str) -> WorkloadAnswer:
    rows = [s.workload(name) for s in evidence.scores]
    targets = question.mix.targets[name]
    limits = {f"{metric}_ms": limit_s * 1e3 for metric, limit_s in targets.per_request_s.items()}
    limits |= {f"{t.metric}_p{t.percentile}_ms": t.limit_s * 1e3 for t in targets.percentiles}
    if targets.deadline_s is not None:
        limits["deadline_s"] = targets.deadline_s

    return WorkloadAnswer(
        rate_rps=question.mix.rates_rps[name] * evidence.load,
        attainment=_row(evidence.attainment[name]),
        target_attainment=targets.attainment,
        judged=sum(r.judged for r in rows),
        decided=evidence.steady and all(r.decidable for r in rows),
        ttft_p50_ms=_ms([r.percentiles_s["ttft"][0] for r in rows]),
        ttft_p99_ms=_ms([r.percentiles_s["ttft"][3] for r in rows]),
        tpot_p50_ms=_ms([r.percentiles_s["tpot"][0] for r in rows]),
        tpot_p99_ms=_ms([r.percentiles_s["tpot"][3] for r in rows]),
        itl_p50_ms=_ms([r.percentiles_s["itl"][0] for r in rows]),
        itl_p99_ms=_ms([r.percentiles_s["itl"][3] for r in rows]),
        e2e_p50_ms=_ms([r.percentiles_s["e2e"][0] for r in rows]),
        e2e_p99_ms=_ms([r.percentiles_s["e2e"][3] for r in rows]),
        stall_p50_ms=_ms([r.stall_p50_s for r in rows]),
        stall_p99_ms=_ms([r.stall_p99_s for r in rows]),
        longest_stall_ms=_ms([max(r.longest_stall_s for r in rows)]),
        targets=limits,
        output_tokens_per_s=float(np.mean([r.output_tokens_per_s for r in rows])),
        goodput_tokens_per_s=float(np.mean([r.goodput_tokens_per_s for r in rows])),
        cached_fraction=_cached(engine, rows),
        rejected_fraction=_rounded(rejected_fraction(rows) if limits_text(engine.values()) else None),
    )


def _cached(engine: EngineConfig, rows: Sequence[WorkloadScore]) -> float | None:
    """Over all runs; None with prefix caching off."""
    return _rounded(cached_fraction(rows) if engine.enable_prefix_caching else None)


def _rounded(share: float | None) -> float | None:
    return round(share, 6) if share is not None else None


def _sweep_point(swept: Swept) -> SweepPoint:
    return SweepPoint(
        max_num_batched_tokens=swept.max_num_batched_tokens,
        chosen=swept.chosen,
        saturated=swept.score.saturated,
        preemptions=swept.score.preemptions,
        workloads={
            row.name: SweepWorkload(
                attainment=row.attainment,
                ttft_p50_ms=_ms([row.percentiles_s["ttft"][0]]),
                ttft_p99_ms=_ms([row.percentiles_s["ttft"][3]]),
                itl_p50_ms=_ms([row.percentiles_s["itl"][0]]),
                itl_p99_ms=_ms([row.percentiles_s["itl"][3]]),
                stall_p50_ms=_ms([row.stall_p50_s]),
                stall_p99_ms=_ms([row.stall_p99_s]),
                longest_stall_ms=_ms([row.longest_stall_s]),
            )
            for row in swept.score.workloads
        },
    )


def _ms(values_s: Sequence[float]) -> float | None:
    """Mean over the runs; None where it is infinite or nothing applies."""
    mean_ms = float(np.mean(values_s)) * 1e3
    return round(mean_ms, 3) if isfinite(mean_ms) else None


def _row(interval: Interval, digits: int | None = None) -> IntervalRow:
    values = (interval.value, interval.low, interval.high)
    value, low, high = values if digits is None else (round(v, digits) for v in values)
    return IntervalRow(value=value, low=low, high=high)


def _memory(ledger: KvLedger) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"name": line.name, "bytes": line.bytes, "how_known": line.how_known, "note": line.note}
        for line in ledger.lines
    )
