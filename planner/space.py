"""The search space: every combination of the values a scenario lists, on every node type and precision it names.

Without `search:` a default grid is used: the tensor-parallel degrees that were measured, and the two batch limits in
steps of about 1.5. Changing the KV cache's type changes answers, so it is searched only when asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from planner.feasibility import Configuration, Platform, Rejection, check
from simulator.flags import FlagValue
from simulator.scenario import LoadedScenario, Scenario
from simulator.traffic import ClosedTraffic

__all__ = [
    "baseline_configuration",
    "combinations",
    "refuse_closed_loops",
    "searched_flags",
    "searched_values",
]

DEFAULT_MAX_NUM_SEQS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
DEFAULT_MAX_NUM_BATCHED_TOKENS = (1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768)


def combinations(scenario: Scenario, platform: Platform) -> Iterator[dict[str, FlagValue]]:
    """The flags of every combination on one platform, fixed flags included."""
    fixed = scenario.engine.given()
    lists = _lists(scenario, platform)
    for values in itertools.product(*lists.values()):
        yield {**fixed, **dict(zip(lists, values, strict=True))}


def searched_flags(scenario: Scenario) -> tuple[str, ...]:
    """The flags that a user lists values of: what labels tell apart."""
    return tuple(scenario.search.lists()) if scenario.search is not None else ()


def searched_values(scenario: Scenario, platform: Platform, flag: str) -> tuple[FlagValue, ...]:
    """The values of one flag that a plan looks at; none where it is held fixed or left to vLLM."""
    return tuple(_lists(scenario, platform).get(flag, ()))


def _lists(scenario: Scenario, platform: Platform) -> Mapping[str, Sequence[FlagValue]]:
    fixed = scenario.engine.given()
    lists: dict[str, Sequence[FlagValue]] = {}
    if scenario.search is not None:
        lists = dict(scenario.search.lists())
    if not lists:
        lists = {
            "tensor_parallel_size": tuple(platform.profile.tensor_parallel),
            "max_num_seqs": DEFAULT_MAX_NUM_SEQS,
            "max_num_batched_tokens": DEFAULT_MAX_NUM_BATCHED_TOKENS,
        }
        return {name: values for name, values in lists.items() if name not in fixed}
    if "tensor_parallel_size" not in lists and "tensor_parallel_size" not in fixed:
        return {"tensor_parallel_size": tuple(platform.profile.tensor_parallel), **lists}
    return lists


def baseline_configuration(scenario: Scenario, platform: Platform) -> Configuration | Rejection:
    """What runs today, else vLLM's defaults; without a given TP the smallest that can run, or why none can."""
    flags = scenario.baseline_flags()
    given = flags.get("tensor_parallel_size")
    degrees = [given] if given is not None else sorted(platform.profile.tensor_parallel)
    results = [check(platform, {**flags, "tensor_parallel_size": degree}) for degree in degrees]
    return next((r for r in results if isinstance(r, Configuration)), results[-1])


def refuse_closed_loops(loaded: LoadedScenario) -> None:
    """A closed loop slows down with the server, so no fleet size follows from it."""
    for name, workload in loaded.scenario.workloads.items():
        if isinstance(workload.traffic, ClosedTraffic):
            problem = (
                "a closed loop has no rate, so no number of servers follows from it; "
                "give `traffic: {rate_rps: …}`, or use `goodfleet simulate`"
            )
            raise loaded.error(problem, ("workloads", name, "traffic", "concurrency"))
