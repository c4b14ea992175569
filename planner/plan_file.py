"""The Plan: the ranked answer, with all that is needed to repeat it; the interface between laptop and GPU server.

`plan.json` is this model, written as it is; `docs/plan.schema.json` is its JSON Schema. Equal inputs and seed give
equal bytes, apart from the recorded times in `screened`; hashes leave those out.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from hardware_profiles.errors import InputError

__all__ = [
    "Baseline",
    "Best",
    "Candidate",
    "ChanceRow",
    "NearestMiss",
    "Plan",
    "Pool",
    "ProfileUsed",
    "RejectionRow",
    "Screened",
    "SweepPoint",
    "SweepWorkload",
    "TargetSpread",
    "UncertaintyRow",
    "WorkloadAnswer",
    "load_plan",
    "plan_sha256",
    "write_plan",
]


RECORDED_TIMES = ("wall_s", "cpu_s", "compile_s")

EngineFlagValues = dict[str, bool | int | float | str]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, ser_json_inf_nan="null")


class IntervalRow(_Part):
    """A figure with its 95 % interval over replications."""

    value: float
    low: float
    high: float


class ChanceRow(_Part):
    """A probability from independent runs, with its 95 % interval (Clopper and Pearson)."""

    value: float
    low: float
    high: float
    met: int
    """Runs in which every target held."""
    runs: int


class TargetSpread(_Part):
    """One target's value over the runs, in ms; null where too many requests never finished."""

    p10_ms: float | None
    p50_ms: float | None
    p90_ms: float | None


class UncertaintyRow(_Part):
    """How sure the answer is, and of what: every stream is played with the fitted profile and with a drawn one."""

    profile_error: Literal["coefficients and residual", "residual only"]
    """What was drawn; residual only: the profile has no covariance file, and the plan is surer than it may be."""
    interval_scale: float
    """Of the profile: factor on every drawn standard deviation."""
    probability: ChanceRow
    """Of meeting all targets, profile and seeds drawn: `probability_of_meeting_targets` with its interval."""
    probability_seeds_alone: ChanceRow
    """The same on the same streams with the profile taken as exact."""
    workload: str
    """Of `target`."""
    target: str
    """The target nearest to breaking."""
    limit_ms: float
    with_drawn_profiles: TargetSpread
    with_exact_profile: TargetSpread
    profile_share: IntervalRow | None
    """Share of the variance of ln(value of the target) that is the profile's uncertainty, with a 95 % jackknife
    interval; null when all runs are alike."""
    seeds_share: float | None
    """The rest: which requests come when."""
    window_s: float
    """Mean length of what a run judges; longer windows scatter less by seed."""


class Pool(_Part):
    """Replicas of one configuration and role."""

    name: str
    role: Literal["serve", "prefill", "decode"]
    workloads: tuple[str, ...]
    node: str
    engine: EngineFlagValues
    """vLLM's flags."""
    precision: str
    gpus_per_replica: int
    replicas: int
    replicas_per_server: int
    servers: int


class WorkloadAnswer(_Part):
    """What one workload gets from the fleet, at the load it is sized for."""

    rate_rps: float
    """At the load the fleet is sized for: demand x (1 + headroom)."""
    attainment: IntervalRow
    target_attainment: float
    judged: int
    """Requests, over all replications."""
    decided: bool
    """Enough judged requests per replication for this attainment, in steady runs."""
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    tpot_p50_ms: float | None
    tpot_p99_ms: float | None
    itl_p99_ms: float | None
    e2e_p50_ms: float | None
    e2e_p99_ms: float | None
    longest_stall_ms: float | None
    """Longest gap of any finished request."""
    itl_p50_ms: float | None = None
    stall_p50_ms: float | None = None
    """Of the longest gap of each finished request."""
    stall_p99_ms: float | None = None
    targets: dict[str, float]
    """As the scenario gives them, in ms (within_hours in s)."""
    output_tokens_per_s: float
    goodput_tokens_per_s: float
    cached_fraction: float | None = None
    """Share of its prompt tokens found in the prefix cache; null when that was off."""
    rejected_fraction: float | None = None
    """Share of its judged requests that were answered 503 and so count as missed; null when no limit on a queue is
    set (`max_num_queued_reqs`, `max_num_queued_tokens`)."""


class SweepWorkload(_Part):
    """One workload under one limit, from one run; null where nothing applies or too many never finished."""

    attainment: float
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    itl_p50_ms: float | None
    itl_p99_ms: float | None
    stall_p50_ms: float | None
    stall_p99_ms: float | None
    longest_stall_ms: float | None


class SweepPoint(_Part):
    """The best fleet with this max_num_batched_tokens, all else held: one search run at the load it is sized for.

    All points see the same stream, so they may be compared; none certifies.
    """

    max_num_batched_tokens: int
    chosen: bool
    """The best's own value."""
    saturated: bool
    """The queue grew: latencies depend on how long the run was."""
    preemptions: int
    workloads: dict[str, SweepWorkload]


class Candidate(_Part):
    """A scored fleet."""

    label: str
    node: str
    precision: str
    engine: EngineFlagValues
    replicas_per_server: int
    servers: int
    """With spare servers."""
    cost_usd_per_month: float
    load_per_server: float
    """Largest multiple of the whole demand that one server carries, from rank runs."""
    tightest: str
    """Workload and target nearest to breaking."""
    ttft_p99_ms: float | None
    """Largest among the workloads with such a target, at that load, from the rank run."""
    tpot_p99_ms: float | None
    evidence: Literal["rank run", "fleet", "confirmed"]
    """rank run: estimated from one replica; fleet: n meets and n-1 does not, 3 seeds; confirmed: full runs."""
    tied: bool
    """The evidence cannot tell it from the best."""
    probability_of_meeting_targets: float | None = None
    """Of a confirmed fleet of this size, on the streams and drawn profiles of all; null for the rest."""


class Best(_Part):
    """The answer."""

    label: str
    pools: tuple[Pool, ...]
    engine: EngineFlagValues | None
    """The only pool's flags; null when there are several pools."""
    replicas_per_server: int | None
    servers: int
    servers_by_reason: dict[str, int]
    """Adds up to `servers`."""
    cost_usd_per_month: float
    """First month."""
    cost_usd_by_month: dict[str, float]
    usd_per_million_output_tokens: float | None
    """At the demand of the scenario, kept up all month."""
    usd_per_million_good_tokens: float | None
    attainment: dict[str, IntervalRow]
    """By workload, at demand x (1 + headroom) without the spare servers."""
    probability_of_meeting_targets: float
    """Share of draws of profile and seed in which every target held."""
    probability_draws: int
    uncertainty: UncertaintyRow | None = None
    """The probability's interval, and what of it is the profile's; null in plans of older versions."""
    workloads: dict[str, WorkloadAnswer]
    utilization: dict[str, float]
    """Share of replica time in prefill, decode, idle, at the load it is sized for."""
    binding: str
    """The target nearest to breaking."""
    one_server_fewer: str
    """What happens with one serving server fewer."""
    meets_with_one_more: bool
    how_known: str
    memory: tuple[dict[str, Any], ...]
    """The KV ledger: name, bytes, how_known, note."""
    kv_tokens: int
    cached_fraction: float | None = None
    """Share of all prompt tokens found in the prefix cache, by replicas that had served the documents before; null when
    that was off."""
    most_cached_fraction: float | None = None
    """The same of a cache that holds every document: what a replica comes near to after a while."""
    batched_tokens_sweep: tuple[SweepPoint, ...] = ()
    """By rising max_num_batched_tokens: what the limit on a step's tokens does to stalls and to TTFT."""


class Baseline(_Part):
    """What runs today, sized for the same load."""

    label: str
    engine: EngineFlagValues
    node: str
    servers: int | None
    """None when it cannot meet the targets with any allowed number of servers."""
    servers_today: int | None
    """As the scenario says."""
    cost_usd_per_month: float | None
    saving_usd_per_month: float | None
    """Positive: the plan is cheaper."""
    note: str


class NearestMiss(_Part):
    """When nothing meets the targets: what came nearest, what broke, what would have to change."""

    label: str
    node: str
    precision: str
    engine: EngineFlagValues
    servers: int | None
    workload: str | None
    target: str
    """The binding target or constraint."""
    value: float | None
    """ms, or null for a constraint of feasibility."""
    limit: float | None
    rejected_fraction: float | None = None
    """Share of the binding workload's requests that were turned away: answered 503 where a limit on a queue is set."""
    attainment: dict[str, float]
    what_would_have_to_change: tuple[str, ...]


class RejectionRow(_Part):
    """One combination that cannot run."""

    node: str
    precision: str
    engine: EngineFlagValues
    constraint: str
    detail: str


class ProfileUsed(_Part):
    """Where the step times come from."""

    node: str
    model: str
    precision: str
    engine: str
    engine_version: str
    as_of: str
    tier: str
    sources: tuple[str, ...]
    caveats: tuple[str, ...]
    assumed_flags: EngineFlagValues
    """Of the measured rows, which do not state theirs."""
    kv_sensitivity: str
    measured: dict[str, Any]
    residual_sd: float
    median_error: dict[str, float]


class Screened(_Part):
    """What was looked at, and what it took."""

    configurations: int
    feasible: int
    pruned_by_bound: int
    pruned_by_run: int
    simulated: int
    """Configurations that ran at token level."""
    candidates: int
    confirmed: int
    simulations: int
    """All runs, with those of the sweep."""
    sweep_simulations: int = 0
    """Runs for `batched_tokens_sweep`, which neither rank nor certify."""
    simulated_requests: int
    engine_steps: int
    wall_s: float
    cpu_s: float
    """Of all processes, without compilation."""
    compile_s: float
    """Wall time of loading or compiling the kernels."""


class Plan(_Part):
    """The whole answer."""

    schema_version: Literal[1] = 1
    goodfleet_version: str
    vllm_version: str
    """Whose scheduler the simulator follows."""
    status: Literal["answered", "nothing_meets_targets"]
    notes: tuple[str, ...]
    """What a reader must know before the numbers."""
    scenario: dict[str, Any]
    scenario_path: str
    scenario_sha256: str
    seed: int
    as_of: str
    load: float
    """Demand x (1 + headroom)."""
    price: dict[str, str]
    """Of the best's server: sku, provider, amount, unit, term, date, source."""
    profile: str | None
    """The best's."""
    profiles: dict[str, ProfileUsed]
    screened: Screened
    best: Best | None
    tied: tuple[str, ...]
    nearest_miss: NearestMiss | None
    baseline: Baseline | None
    candidates: tuple[Candidate, ...]
    rejections: tuple[RejectionRow, ...]
    shortlist: tuple[str, ...]
    """Recipe files, best first."""


def plan_sha256(plan: Plan) -> str:
    """Digest of the plan without its recorded times."""
    data = plan.model_dump(mode="json")
    for name in RECORDED_TIMES:
        del data["screened"][name]
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def write_plan(plan: Plan, path: Path) -> None:
    """Write plan.json."""
    path.write_text(json.dumps(plan.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def load_plan(path: Path) -> Plan:
    """Read plan.json, or the folder that holds it."""
    file = path / "plan.json" if path.is_dir() else path
    try:
        return Plan.model_validate_json(file.read_bytes())
    except OSError as error:
        problem = f"cannot be read ({error.strerror}); give the folder or the plan.json that `goodfleet plan` wrote"
        raise InputError(problem, file=str(file)) from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or None
        raise InputError(
            f"{first['msg']}; write the plan anew with `goodfleet plan`", file=str(file), key=key
        ) from None
