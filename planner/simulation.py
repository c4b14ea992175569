"""`goodfleet simulate`: one fleet as it stands, replicated, with everything a reader needs to trust or doubt it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from hardware_profiles.errors import InputError
from planner.extrapolation import host_time_missing, other_engine
from planner.feasibility import Configuration, Rejection
from planner.platforms import find_platforms
from planner.queue_limits import binding_sentence, rejected_fraction, rejected_sentence
from planner.screen import Screen
from planner.search import Progress
from planner.server_count import servers_text
from planner.sizing import FleetEvidence
from planner.space import baseline_configuration
from simulator.hardware_check import load_model_and_nodes
from simulator.mix import Mix
from simulator.run import Routing, simulate
from simulator.scenario import LoadedScenario
from simulator.score import Score, WorkloadScore, cached_fraction, score
from simulator.steady import SteadyRun, end_to_end
from simulator.steptime import StepTimeModel
from simulator.timeline import Drawn, Timeline, write_timeline
from simulator.traffic import ClosedTraffic
from simulator.workload import make_stream

__all__ = ["FleetSimulation", "print_simulation", "simulate_fleet", "write_first_timeline"]

CLOSED_LOOP_REQUESTS = 10
"""Requests per user of a closed loop, as InferenceX does it; at least 1,000 in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSimulation:
    """Replications of one fleet."""

    configuration: Configuration
    model: StepTimeModel
    servers: int
    routing: Routing
    multiplier: float
    mix: Mix
    runs: tuple[SteadyRun, ...]

    @property
    def scores(self) -> tuple[Score, ...]:
        return tuple(run.score for run in self.runs)

    @property
    def saturated(self) -> bool:
        return any(s.saturated for s in self.scores)

    def little(self) -> tuple[float, float]:
        """Mean requests in flight, and rate times mean time in the system: equal in a steady run.

        Of the requests that entered: one that is turned away is nowhere in flight.
        """
        flight = float(np.mean([s.in_flight_mean for s in self.scores]))
        rejected_rps = [sum(row.rejected for row in s.workloads) / s.window_s for s in self.scores]
        rate = float(np.mean([s.offered_rps for s in self.scores])) - float(np.mean(rejected_rps))
        return flight, rate * float(np.mean([run.end_to_end.mean_s for run in self.runs]))

    def utilization(self) -> dict[str, float]:
        prefill = float(np.mean([s.prefill_fraction for s in self.scores]))
        decode = float(np.mean([s.decode_fraction for s in self.scores]))
        return {"prefill": prefill, "decode": decode, "idle": max(0.0, 1 - prefill - decode)}

    def _cached(self, rows: Sequence[WorkloadScore]) -> float | None:
        """Share of the prompt tokens found in the prefix cache; None where it is off."""
        return cached_fraction(rows) if self.configuration.engine.enable_prefix_caching else None

    def caching(self) -> str:
        """One sentence on the prefix cache."""
        share = self._cached([row for s in self.scores for row in s.workloads])
        if share is None:
            return "Prefix caching is off."
        return f"Prefix caching is on: {share:.1%} of the prompt tokens were found."

    def evidence(self) -> FleetEvidence:
        return FleetEvidence(
            servers=self.servers,
            load=self.multiplier,
            scores=self.scores,
            steady=all(run.steady for run in self.runs),
        )

    def as_dict(self) -> dict[str, Any]:
        """For `--json`; infinite percentiles (too many unfinished) are null."""
        evidence = self.evidence()
        flight, product = self.little()
        return {
            "configuration": self.configuration.label,
            "engine": self.configuration.engine.flags(),
            "node": self.configuration.platform.node.name,
            "servers": self.servers,
            "replicas": self.servers * self.configuration.replicas_per_server,
            "multiplier": self.multiplier,
            "replications": len(self.runs),
            "saturated": self.saturated,
            "steady": evidence.steady,
            "meets": evidence.meets,
            "conservation": "checked in every run: requests, tokens, gaps, KV blocks, Little's identity",
            "little": {"in_flight_mean": flight, "rate_times_time": product},
            "utilization": self.utilization(),
            "preemptions": int(sum(s.preemptions for s in self.scores)),
            "cached_fraction": self._cached([row for s in self.scores for row in s.workloads]),
            "workloads": {name: self._workload(name, evidence) for name in evidence.names},
        }

    def _workload(self, name: str, evidence: FleetEvidence) -> dict[str, Any]:
        rows = [s.workload(name) for s in self.scores]
        attained = evidence.attainment[name]
        figures: dict[str, Any] = {
            "judged": evidence.judged[name],
            "decidable": all(r.decidable for r in rows),
            "required_requests": rows[0].required_requests,
            "attainment": {"value": attained.value, "low": attained.low, "high": attained.high},
            "target_attainment": rows[0].target_attainment,
            "rejected": sum(r.rejected for r in rows),
            "rejected_fraction": rejected_fraction(rows),
            "cached_fraction": self._cached(rows),
            "goodput_tokens_per_s": float(np.mean([r.goodput_tokens_per_s for r in rows])),
            "output_tokens_per_s": float(np.mean([r.output_tokens_per_s for r in rows])),
            "tightest": rows[0].pressures[0].sentence if rows[0].pressures else None,
        }
        for metric in ("ttft", "tpot", "itl", "e2e"):
            for index, percentile in enumerate((50, 90, 95, 99)):
                value = float(np.mean([r.percentiles_s[metric][index] for r in rows]))
                figures[f"{metric}_p{percentile}_ms"] = round(value * 1e3, 3) if np.isfinite(value) else None
        stalls_s = {
            "stall_p50_ms": float(np.mean([r.stall_p50_s for r in rows])),
            "stall_p99_ms": float(np.mean([r.stall_p99_s for r in rows])),
            "longest_stall_ms": max(r.longest_stall_s for r in rows),
        }
        for key, stall_s in stalls_s.items():
            figures[key] = round(stall_s * 1e3, 3) if np.isfinite(stall_s) else None
        return figures


def simulate_fleet(
    loaded: LoadedScenario, servers: int, *, multiplier: float = 1.0, replications: int = 5
) -> FleetSimulation:
    """Run the baseline's flags (else vLLM's defaults at the smallest TP that fits) on so many servers."""
    card, nodes = load_model_and_nodes(loaded)
    result = baseline_configuration(loaded.scenario, find_platforms(loaded, card, nodes)[0])
    if isinstance(result, Rejection):
        raise _cannot_run(loaded, result)
    mix = Mix(workloads=loaded.scenario.workloads, traces=loaded.traces, max_model_len=result.engine.max_model_len)
    seeds = np.random.SeedSequence(loaded.scenario.seed).spawn(3)[1].spawn(replications)
    screen = Screen(mix, np.random.SeedSequence(0))
    routing = loaded.scenario.fleet.routing
    closed = [w.traffic for w in mix.workloads.values() if isinstance(w.traffic, ClosedTraffic)]
    if closed:
        if multiplier != 1.0:
            raise loaded.error("a closed loop has no rate to multiply; leave --multiplier out", ("workloads",))
        runs = [
            _closed_run(mix, result, screen.model(result), servers, closed[0].concurrency, seed, routing)
            for seed in seeds
        ]
    else:
        runs = []
        for seed in seeds:
            guess = runs[-1].end_to_end if runs else None
            runs.append(
                screen.fleet_run(
                    result,
                    servers=servers,
                    multiplier=multiplier,
                    seed=seed,
                    routing=routing,
                    guess=guess,
                )
            )
    return FleetSimulation(
        configuration=result,
        model=screen.model(result),
        servers=servers,
        routing=routing,
        multiplier=multiplier,
        mix=mix,
        runs=tuple(runs),
    )


def _cannot_run(loaded: LoadedScenario, found: Rejection) -> InputError:
    """Where the flag stands that rules the fleet out, else the section that describes the fleet."""
    scenario = loaded.scenario
    given = {"baseline": scenario.baseline.given() if scenario.baseline is not None else {}}
    given["engine"] = scenario.engine.given()
    for section, flags in given.items():
        if found.constraint in flags:
            return loaded.error(f"{found.detail}; change the flag", (section, found.constraint))
    section = "baseline" if scenario.baseline is not None else "engine"
    return loaded.error(f"{found.detail}; change the flags of {section}", (section,))


def _closed_run(
    mix: Mix,
    configuration: Configuration,
    model: StepTimeModel,
    servers: int,
    concurrency: int,
    seed: np.random.SeedSequence,
    routing: Routing,
) -> SteadyRun:
    """A closed loop runs a number of requests, not a time; every request is judged, as benchmarks do."""
    name = next(iter(mix.workloads))
    stream = make_stream(
        mix.workloads,
        multiplier=1.0,
        seed=seed,
        max_model_len=mix.max_model_len,
        requests={name: max(1_000, CLOSED_LOOP_REQUESTS * concurrency)},
        traces=mix.traces,
    )
    log = simulate(
        stream,
        engine=configuration.engine,
        model=model,
        num_blocks=configuration.num_blocks,
        replicas=servers * configuration.replicas_per_server,
        routing=routing,
        warm_prefix_cache=True,
    )
    assert log.replica_times is not None
    return SteadyRun(
        stream=stream,
        window=None,
        log=log,
        score=score(log, mix.targets),
        warmup_s=0.0,
        end_to_end=end_to_end(log),
        steady=True,
        attempts=1,
        simulated_requests=len(log),
        engine_steps=int(log.replica_times.steps.sum()),
    )


def write_first_timeline(
    found: FleetSimulation, path: Path, *, max_events: int, progress: Progress = lambda stage, done, total: None
) -> Drawn:
    """Play the first run once more in the reference simulation, which shows every step, and write what it did."""
    run = found.runs[0]
    replicas = found.servers * found.configuration.replicas_per_server
    stage = "drawing the timeline, events"
    progress(stage, 0, max_events)
    timeline = Timeline(
        whole=run.log,
        num_blocks=found.configuration.num_blocks,
        request_overhead_s=found.model.request_overhead_s,
        max_events=max_events,
        progress=partial(progress, stage),
    )
    simulate(
        run.stream,
        engine=found.configuration.engine,
        model=found.model,
        num_blocks=found.configuration.num_blocks,
        replicas=replicas,
        window=run.window,
        routing=found.routing,
        warm_prefix_cache=True,
        backend="reference",
        observer=timeline,
    )
    title = f"{servers_text(found.servers)}, {found.configuration.label}, {found.multiplier:g} × the demand, first run"
    return write_timeline(timeline, path, title=title)


def print_simulation(found: FleetSimulation, console: Console) -> None:
    """The verdict first; then the table; then the checks."""
    evidence = found.evidence()
    if found.saturated:
        verdict = (
            "SATURATED: offered load is above capacity and the queue grows; latencies below depend on how long it ran"
        )
    elif evidence.meets:
        verdict = "Every target holds"
    else:
        verdict = f"Misses its targets: {binding_sentence(evidence, found.configuration.engine.values())}"
    console.print(
        f"{verdict}. {servers_text(found.servers)}, {found.configuration.label}, {found.multiplier:g} × the demand, "
        f"{len(found.runs)} replications.",
        style="bold",
        highlight=False,
    )
    table = Table()
    columns = "workload|judged|attainment (95 %)|target|TTFT p50|p99|TPOT p50|p99|E2E p99|goodput tok/s"
    for column in columns.split("|"):
        table.add_column(column, justify="left" if column == "workload" else "right")
    for name in evidence.names:
        rows = [s.workload(name) for s in found.scores]
        attained = evidence.attainment[name]
        undecided = "" if all(r.decidable for r in rows) and evidence.steady else " undecided"

        table.add_row(
            name,
            f"{evidence.judged[name]:,}",
            f"{attained.value:.4f} ({attained.low:.4f}-{attained.high:.4f}){undecided}",
            f"{rows[0].target_attainment:g}",
            _ms([r.percentiles_s["ttft"][0] for r in rows]),
            _ms([r.percentiles_s["ttft"][3] for r in rows]),
            _ms([r.percentiles_s["tpot"][0] for r in rows]),
            _ms([r.percentiles_s["tpot"][3] for r in rows]),
            _ms([r.percentiles_s["e2e"][3] for r in rows]),
            f"{np.mean([r.goodput_tokens_per_s for r in rows]):,.0f}",
        )
    for note in (other_engine(found.configuration), host_time_missing(found.configuration)):
        if note is not None:
            console.print(note, highlight=False)
    console.print(table)
    for name in evidence.names:
        rows = [s.workload(name) for s in found.scores]
        if told := rejected_sentence(rows, found.configuration.engine.values()):
            console.print(f"{name}: {told}. They count as missed.", highlight=False)
    console.print(_between_tokens(found, evidence.names))
    share = found.utilization()
    flight, product = found.little()
    console.print(
        "Times in ms. Conservation of requests, tokens, gaps and KV blocks, and Little's identity to 1e-9: "
        "held in every run.\n"
        f"Little: {flight:,.1f} in flight on average; rate × mean time {product:,.1f}.\n"
        f"Replica time: prefill {share['prefill']:.1%}, decode {share['decode']:.1%}, idle {share['idle']:.1%}. "
        f"Preemptions: {sum(s.preemptions for s in found.scores):,}. {found.caching()}",
        highlight=False,
    )


def _between_tokens(found: FleetSimulation, names: Sequence[str]) -> Table:
    """What a reader of an open stream feels: single gaps, and the longest gap of a request."""
    table = Table(title="Between two tokens of a stream", title_justify="left")
    columns = "workload|ITL p50|p99|longest stall of a request p50|p99|of any"
    for column in columns.split("|"):
        table.add_column(column, justify="left" if column == "workload" else "right")
    for name in names:
        rows = [s.workload(name) for s in found.scores]
        table.add_row(
            name,
            _ms([r.percentiles_s["itl"][0] for r in rows]),
            _ms([r.percentiles_s["itl"][3] for r in rows]),
            _ms([r.stall_p50_s for r in rows]),
            _ms([r.stall_p99_s for r in rows]),
            _ms([max(r.longest_stall_s for r in rows)]),
        )
    return table


def _ms(values_s: Sequence[float]) -> str:
    """Mean over the replications."""
    value_ms = float(np.mean(values_s)) * 1e3
    return "-" if np.isnan(value_ms) else f"{value_ms:,.0f}" if np.isfinite(value_ms) else "never"
