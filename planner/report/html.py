"""plan.html: one file without network or script, on a screen, a phone or paper, dark or light."""

from __future__ import annotations

from pathlib import Path

from planner.plan_file import Plan
from planner.report.answer import answer, nearest_miss, notes, saving, servers
from planner.report.assumptions import assumptions, repeat
from planner.report.candidates import cost_against_latency, ruled_out, tensor_parallel
from planner.report.figures import FORMATS
from planner.report.markup import Html, el, join
from planner.report.memory import memory
from planner.report.money import money
from planner.report.stalls import stalls
from planner.report.workloads import latencies, workloads

__all__ = ["render_html"]

STYLE = Path(__file__).with_name("style.css")


def render_html(plan: Plan) -> str:
    """The page of a plan: the answer first, then what it rests on."""
    name = str(plan.scenario.get("name", plan.scenario_path))
    best = plan.best
    if best is not None:
        title = f"{name}: {FORMATS['servers'](best.servers)}, {FORMATS['usd'](best.cost_usd_per_month)} a month"
        middle = [
            servers(plan, best),
            join(workloads(plan, best), latencies(best)),
            stalls(plan, best),
            cost_against_latency(plan),
            tensor_parallel(plan),
            saving(plan),
            ruled_out(plan),
            memory(best),
            money(plan, best),
        ]
    else:
        title = f"{name}: nothing meets the targets"
        middle = [nearest_miss(plan), cost_against_latency(plan), tensor_parallel(plan), saving(plan), ruled_out(plan)]
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("link", rel="icon", href="data:,"),
        el("title", title),
        el("style", Html(STYLE.read_text(encoding="utf-8"))),
    )
    kicker = el("p", f"goodfleet plan · {name} · prices and months as of {plan.as_of}", class_="kicker")
    body = el("main", el("header", kicker, answer(plan)), notes(plan), *middle, assumptions(plan), repeat(plan))
    return join(Html("<!doctype html>\n"), el("html", head, el("body", body), lang="en"), Html("\n"))
