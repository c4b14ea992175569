"""candidates.csv: everything scored, safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from planner.exports import write_candidates_csv
from planner.plan_file import Plan, load_plan
from simulator.flags import flag_text

CASE = Path(__file__).parent / "cases" / "plan.json"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return load_plan(CASE)


def read(plan: Plan, folder: Path) -> list[dict[str, str]]:
    path = folder / "candidates.csv"
    write_candidates_csv(plan, path)
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_candidate_has_a_row_with_the_plans_figures(plan: Plan, tmp_path: Path) -> None:
    rows = read(plan, tmp_path)
    assert len(rows) == len(plan.candidates)
    for rank, (row, candidate) in enumerate(zip(rows, plan.candidates, strict=True), start=1):
        assert row["rank"] == str(rank)
        assert float(row["cost_usd_per_month"]) == candidate.cost_usd_per_month
        assert int(row["servers"]) == candidate.servers
        assert {name: row[name] for name in candidate.engine} == {n: flag_text(v) for n, v in candidate.engine.items()}
        assert (row["tied"] == "yes") == candidate.tied
        assert row["evidence"] == candidate.evidence
    assert list(rows[0])[:6] == ["rank", "label", "node", "precision", "tensor_parallel_size", "max_num_seqs"]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_text_that_a_spreadsheet_would_run_is_disarmed(start: str, plan: Plan, tmp_path: Path) -> None:
    data = plan.model_dump(mode="json")
    formula = f'{start}HYPERLINK("http://a",1)'
    data["candidates"][0] |= {"label": formula, "tightest": formula}
    data["candidates"][0]["engine"]["kv_cache_dtype"] = formula
    row = read(Plan.model_validate_json(json.dumps(data)), tmp_path)[0]
    assert row["label"] == row["tightest"] == row["kv_cache_dtype"] == f"'{formula}"


def test_numbers_stay_numbers_and_the_unknown_stays_empty(plan: Plan, tmp_path: Path) -> None:
    data = plan.model_dump(mode="json")
    data["candidates"][0] |= {"load_per_server": -0.5, "ttft_p99_ms": None}
    del data["candidates"][0]["engine"]["block_size"]
    row = read(Plan.model_validate_json(json.dumps(data)), tmp_path)[0]
    assert (row["load_per_server"], row["ttft_p99_ms"], row["block_size"]) == ("-0.5", "", "")


def test_a_switch_is_written_as_in_a_scenario_and_vllms_default_stands_where_a_plan_leaves_it_out(
    plan: Plan, tmp_path: Path
) -> None:
    data = plan.model_dump(mode="json")
    del data["candidates"][0]["engine"]["enable_prefix_caching"]
    data["candidates"][1]["engine"] |= {"async_scheduling": False, "max_num_queued_reqs": 9}
    first, second = read(Plan.model_validate_json(json.dumps(data)), tmp_path)[:2]
    flags = ("enable_prefix_caching", "async_scheduling", "max_num_queued_reqs")
    assert [first[name] for name in flags] == ["true", "true", ""]
    assert [second[name] for name in flags] == ["false", "false", "9"]


def test_a_plan_without_candidates_gives_the_heads_alone(plan: Plan, tmp_path: Path) -> None:
    data = plan.model_dump(mode="json") | {"candidates": []}
    assert read(Plan.model_validate_json(json.dumps(data)), tmp_path) == []
    assert (tmp_path / "candidates.csv").read_text(encoding="utf-8").startswith("rank,label,node,precision,replicas")
