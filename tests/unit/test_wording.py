"""Counts and money in sentences, as people say them."""

from pathlib import Path

import pytest
from rich.console import Console

from planner.capacity import Capacity
from planner.plan_file import Plan
from planner.report.html import render_html
from planner.server_count import servers_text
from planner.summary import answer_sentence, print_plan


def altered(plan: Plan, part: str, **values: object) -> Plan:
    data = plan.model_dump()
    return Plan.model_validate(data | {part: data[part] | values})


def test_one_server_is_no_servers(small_plan: Plan) -> None:
    assert servers_text(1, "carries", "carry") == "1 server carries"
    assert servers_text(2, "carries", "carry") == "2 servers carry"
    one = altered(small_plan, "best", servers=1)
    assert answer_sentence(one).startswith("1 server (") and " meets every target" in answer_sentence(one)
    assert "1 servers" not in render_html(one).replace("\u00a0", " ")
    found = Capacity(
        servers=1,
        multiplier=2.0,
        label="x",
        engine={},
        binding="b",
        next_binding="c",
        attainment={},
        certified=True,
        note="",
    )
    assert found.sentence().startswith("1 server carries 2 times")


@pytest.mark.parametrize(
    ("saving_usd", "said"), [(-30_831.36, "costs USD 30,831.36 a month more"), (5.0, "saves USD 5.00 a month")]
)
def test_a_plan_that_costs_more_is_not_said_to_save(
    small_plan: Plan, saving_usd: float, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = altered(small_plan, "baseline", saving_usd_per_month=saving_usd)
    print_plan(plan, tmp_path, Console(width=400))
    printed = capsys.readouterr().out
    assert f"the plan {said}." in printed and "-30,831" not in printed
    assert ("costs" if saving_usd < 0 else "saves") in render_html(plan)
