"""Requests that are answered 503 are told as such, with the limit that did it, wherever a miss comes of them."""

from pathlib import Path

import pytest
from rich.console import Console

from planner.plan_file import Plan
from planner.queue_limits import limits_text
from planner.report.html import render_html
from planner.simulation import print_simulation, simulate_fleet
from planner.summary import answer_sentence
from planner.write_up import make_plan
from simulator.scenario import load_scenario
from tests.conftest import SMALL_SCENARIO


def limited(folder: Path, limit: int, *, rate_rps: int = 400, most_servers: int = 1) -> Path:
    text = SMALL_SCENARIO.replace("engine: {max_model_len: 8192}", f"engine: {{max_num_queued_reqs: {limit}}}")
    text = text[: text.index("  labels:")] + text[text.index("baseline:") :]
    text = text.replace("rate_rps: 40", f"rate_rps: {rate_rps}")
    text = text.replace("max_servers: 16", f"max_servers: {most_servers}")
    text = text.replace("max_num_seqs: [8, 256]", "max_num_seqs: [256]").replace("[128, 2048, 16384]", "[2048]")
    path = folder / "limited.yaml"
    path.write_text(text.replace("tensor_parallel_size: [1, 8]", "tensor_parallel_size: [8]"))
    return path


@pytest.fixture(scope="module")
def missed(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return make_plan(load_scenario(limited(tmp_path_factory.mktemp("missed"), 5)))


def test_a_simulation_says_how_many_were_answered_503(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = simulate_fleet(load_scenario(limited(tmp_path, 5)), 1, replications=2)
    print_simulation(found, Console(width=200))
    printed = capsys.readouterr().out
    rows = [score.workload("chat") for score in found.scores]
    rejected, judged = sum(row.rejected for row in rows), sum(row.judged for row in rows)
    assert 0 < rejected < judged
    share = f"{rejected / judged:.1%}"
    assert f"chat: {rejected:,} of {judged:,} requests ({share}) were answered 503: max_num_queued_reqs 5" in printed
    assert f"{share} of its requests were answered 503 (max_num_queued_reqs 5)" in printed
    assert "inf" not in printed
    flight, rate_times_time = found.little()
    assert rate_times_time == pytest.approx(flight, rel=0.05)
    assert found.as_dict()["workloads"]["chat"]["rejected_fraction"] == rejected / judged


def test_a_miss_by_503_names_the_limit_and_its_cure(missed: Plan) -> None:
    miss = missed.nearest_miss
    assert miss is not None and miss.value is None and miss.rejected_fraction is not None
    assert miss.rejected_fraction > 0.05
    assert miss.what_would_have_to_change[0].endswith("were answered 503; raise max_num_queued_reqs 5")
    assert "answered 503 (max_num_queued_reqs 5)" in answer_sentence(missed)
    page = render_html(missed)
    assert "answers 503 to" in page and "max_num_queued_reqs 5" in page
    told = " ".join([*miss.what_would_have_to_change, missed.baseline.note if missed.baseline else "", page])
    assert "inf ms" not in told and "without end" not in told


def test_an_answer_with_a_limit_says_what_it_costs(tmp_path: Path) -> None:
    plan = make_plan(load_scenario(limited(tmp_path, 500, rate_rps=40, most_servers=4)))
    assert plan.best is not None
    assert plan.best.workloads["chat"].rejected_fraction == 0
    assert "max_num_queued_reqs 500: no request of the confirmation runs was answered 503." in plan.notes
    assert "answered 503, counted as missed" in render_html(plan)


def test_a_plan_without_a_limit_does_not_speak_of_503(small_plan: Plan) -> None:
    assert small_plan.best is not None and small_plan.best.workloads["chat"].rejected_fraction is None
    assert "503" not in render_html(small_plan) and limits_text(small_plan.best.engine or {}) == ""
