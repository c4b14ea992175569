"""The mix: the workloads that share a pool, with their traces and targets. What a fleet must carry, at any multiple."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulator.arrivals import offered_rps
from simulator.lengths import Lengths, UniformLengths
from simulator.score import Targets, required_requests, targets_of
from simulator.traces import Trace
from simulator.traffic import Workload

__all__ = ["Mix"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Workloads served together."""

    workloads: Mapping[str, Workload]
    """By name, in the scenario's order."""
    traces: Mapping[str, Trace]
    """Recorded requests of the workloads that replay them."""
    max_model_len: int
    """Longest prompt and answer together; longer ones are cut."""

    @property
    def targets(self) -> dict[str, Targets]:
        return {name: targets_of(workload) for name, workload in self.workloads.items()}

    @property
    def rates_rps(self) -> dict[str, float]:
        """Requests per second of each workload at multiplier 1."""
        return {name: offered_rps(workload, self.traces.get(name)) for name, workload in self.workloads.items()}

    @property
    def rate_rps(self) -> float:
        return sum(self.rates_rps.values())

    def mean_tokens(self, name: str) -> tuple[float, float]:
        """Mean prompt and answer tokens of one workload, before any cut."""
        workload, trace = self.workloads[name], self.traces.get(name)
        if trace is not None:
            return float(trace.prompt_tokens.mean()), float(trace.output_tokens.mean())
        assert workload.isl is not None and workload.osl is not None
        return _mean(workload.isl), _mean(workload.osl)

    @property
    def deciding_span_s(self) -> float:
        """Seconds at multiplier 1 in which every workload sends the requests that its decision takes."""
        return max(required_requests(t.attainment) / self.rates_rps[name] for name, t in self.targets.items())


def _mean(lengths: Lengths) -> float:
    if isinstance(lengths, int):
        return float(lengths)
    return sum(lengths.uniform) / 2 if isinstance(lengths, UniformLengths) else lengths.mean
