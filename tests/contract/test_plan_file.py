"""plan.json is a contract: its keys are those of the design, its JSON Schema lies in docs, the file fits the schema."""

import json
from pathlib import Path

from planner.plan_file import Plan, write_plan

ROOT = Path(__file__).parents[2]

TOP = [
    "schema_version",
    "goodfleet_version",
    "vllm_version",
    "status",
    "nearest_miss",
    "scenario",
    "scenario_sha256",
    "seed",
    "as_of",
    "profile",
    "profiles",
    "screened",
    "best",
    "tied",
    "baseline",
    "candidates",
    "rejections",
    "shortlist",
]
SCREENED = [
    "configurations",
    "feasible",
    "pruned_by_bound",
    "simulated",
    "candidates",
    "confirmed",
    "simulations",
    "simulated_requests",
    "engine_steps",
    "wall_s",
    "cpu_s",
    "compile_s",
]
BEST = [
    "pools",
    "engine",
    "replicas_per_server",
    "servers",
    "servers_by_reason",
    "cost_usd_per_month",
    "usd_per_million_output_tokens",
    "usd_per_million_good_tokens",
    "attainment",
    "probability_of_meeting_targets",
]
UNCERTAINTY = [
    "profile_error",
    "interval_scale",
    "probability",
    "probability_seeds_alone",
    "workload",
    "target",
    "limit_ms",
    "with_drawn_profiles",
    "with_exact_profile",
    "profile_share",
    "seeds_share",
    "window_s",
]
POOL = [
    "name",
    "role",
    "workloads",
    "node",
    "engine",
    "precision",
    "gpus_per_replica",
    "replicas",
    "replicas_per_server",
    "servers",
]


def test_the_stored_schema_is_the_models(tmp_path: Path) -> None:
    stored = json.loads((ROOT / "docs" / "plan.schema.json").read_text())
    assert stored == Plan.model_json_schema(), "write it anew: goodfleet schema plan > docs/plan.schema.json"


def test_a_written_plan_holds_every_key_of_the_contract(small_plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_plan(small_plan, path)
    data = json.loads(path.read_text())
    assert set(TOP) <= set(data)
    assert set(SCREENED) <= set(data["screened"])
    assert set(BEST) <= set(data["best"])
    assert set(UNCERTAINTY) == set(data["best"]["uncertainty"])
    assert set(data["best"]["uncertainty"]["probability"]) == {"value", "low", "high", "met", "runs"}
    assert set(POOL) <= set(data["best"]["pools"][0])
    assert set(data["best"]["attainment"]["chat"]) == {"value", "low", "high"}
    assert set(data["rejections"][0]) >= {"engine", "constraint", "detail"}
    assert data["status"] in ("answered", "nothing_meets_targets")


def test_nothing_in_a_written_plan_is_infinite_or_not_a_number(small_plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_plan(small_plan, path)

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} in plan.json")

    json.loads(path.read_text(), parse_constant=refuse)
