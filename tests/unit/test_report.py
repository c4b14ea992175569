"""The page of a plan: the answer first, figures that are those of plan.json, text that stays text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from planner.plan_file import NearestMiss, Plan, load_plan, plan_sha256
from planner.report.figures import FORMATS
from planner.report.html import render_html
from planner.report.markup import el, prose
from planner.report.names import candidate_names
from planner.report.picture import Point, front_of, ticks

CASE = Path(__file__).parent / "cases" / "plan.json"
HOSTILE = """<script>alert(1)</script>"'><img src=x onerror=alert(1)>&"""
VOID = {"meta", "link", "br", "wbr"}
SVG = re.compile(r"<svg.*?</svg>", re.DOTALL)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return load_plan(CASE)


@dataclass
class Page(HTMLParser):
    """What a browser would see: elements in order, open ones, figures and text."""

    source: str
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    figures: list[tuple[str, float, str]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "data":
            kind, value = dict(attrs)["class"], dict(attrs)["value"]
            assert kind is not None
            assert value is not None
            self.figures.append((kind, float(value), ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "data":
            kind, value, text = self.figures[-1]
            self.figures[-1] = (kind, value, text + data)
        elif not {"style", "svg", "title"} & set(self.open):
            self.text.append(data)


def numbers(value: object) -> Iterator[float]:
    if isinstance(value, dict):
        for part in value.values():
            yield from numbers(part)
    elif isinstance(value, list):
        for part in value:
            yield from numbers(part)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def first_sentence(page: str) -> str:
    """The page's heading as text, non-breaking spaces as spaces."""
    heading = re.search(r"<h1>(.*?)</h1>", page, re.DOTALL)
    assert heading is not None
    return re.sub(r"<[^>]*>", "", heading[1]).replace("\u00a0", " ")


def changed(plan: Plan, **parts: Any) -> Plan:
    return Plan.model_validate(plan.model_dump() | parts)


def unanswered(plan: Plan) -> Plan:
    assert plan.best is not None
    miss = NearestMiss(
        label="8 × TP1, max_num_seqs 64",
        node="mi355x",
        precision="mxfp4",
        engine={"tensor_parallel_size": 1},
        servers=64,
        workload="short-chat",
        target="ttft_ms",
        value=61.25,
        limit=20.0,
        attainment={"short-chat": 0.125, "rag": 0.5},
        what_would_have_to_change=("raise the target to at least 45 ms",),
    )
    return changed(
        plan, status="nothing_meets_targets", best=None, tied=(), nearest_miss=miss, candidates=(), shortlist=()
    )


def swept(plan: Plan, longest_ms: tuple[float, ...] = (131.25, 246.5, 329.832, 412.75)) -> Plan:
    """With the gaps that readers feel, and the fleet under four limits on a step's tokens; the first is too small."""
    data = plan.model_dump(mode="json")
    for row in data["best"]["workloads"].values():
        row |= {"itl_p50_ms": 16.788, "stall_p50_ms": 201.125, "stall_p99_ms": 238.5}
    names = list(data["best"]["workloads"])
    limits = (1024, 2048, data["best"]["engine"]["max_num_batched_tokens"], 32768)
    data["best"]["batched_tokens_sweep"] = [
        {
            "max_num_batched_tokens": limit,
            "chosen": index == 2,
            "saturated": index == 0,
            "preemptions": 0,
            "workloads": {
                name: {
                    "attainment": 0.9875,
                    "ttft_p50_ms": 61.5 + place,
                    "ttft_p99_ms": (9_000.5, 761.75, 276.25, 270.5)[index] + place,
                    "itl_p50_ms": 16.788,
                    "itl_p99_ms": longest_ms[index] / 2,
                    "stall_p50_ms": longest_ms[index] / 3,
                    "stall_p99_ms": longest_ms[index] - 1,
                    "longest_stall_ms": longest_ms[index],
                }
                for place, name in enumerate(names)
            },
        }
        for index, limit in enumerate(limits)
    ]
    return Plan.model_validate_json(json.dumps(data))


def stalls_of(page: str) -> str:
    section = re.search(r'<section id="stalls">.*?</section>', page, re.DOTALL)
    assert section is not None
    return section[0]


def test_the_answer_is_the_first_sentence(plan: Plan) -> None:
    page = render_html(plan)
    assert plan.best is not None
    said = first_sentence(page)
    assert said.startswith("4 servers (mi355x) with gpt-oss-120b in mxfp4 as 8 × TP1")
    for part in ("max_num_batched_tokens 12288", "USD 61,662.72 a month", "probability of 72 %"):
        assert part in said
    assert said.endswith("simulated, not validated on hardware.")
    assert page.index("<h1>") < page.index("<h2>")


def test_every_figure_on_the_page_is_the_plans_own(plan: Plan) -> None:
    for answer in (plan, swept(plan), unanswered(plan)):
        held = {abs(number) for number in numbers(answer.model_dump(mode="json"))}
        shown = Page(render_html(answer)).figures
        for kind, value, text in shown:
            assert text == FORMATS[kind](value)
            assert kind == "tally" or abs(value) in held, (kind, value)
    kinds = {kind for kind, _, _ in Page(render_html(plan)).figures}
    assert kinds >= {"usd", "usd-unit", "attainment", "share", "servers", "count", "ms", "rate", "bytes"}


def test_money_servers_and_shares_are_shown_as_figures_only(plan: Plan) -> None:
    page = render_html(swept(plan))
    text = " ".join(Page(page).text).replace("\u00a0", " ")
    written = json.dumps(plan.model_dump(mode="json"), ensure_ascii=False)
    assert {found for found in re.findall(r"USD [\d,.]+\d", text)} == {f"USD {plan.price['price']}"}
    for found in re.findall(r"\d+ servers?|\d[\d.]* %", text):
        assert found in written or found == "95 %", found


def test_money_in_the_picture_is_that_of_the_candidates(plan: Plan) -> None:
    drawn = SVG.findall(render_html(plan))
    assert len(drawn) == 2
    costs = {FORMATS["usd"](c.cost_usd_per_month).replace("\u00a0", " ") for c in plan.candidates}
    for picture in drawn:
        assert set(re.findall(r"USD [\d,]+\.\d\d", picture)) == costs


def test_the_page_holds_every_part_in_its_order(plan: Plan) -> None:
    page = Page(render_html(plan))
    parts = [attributes["id"] for tag, attributes in page.tags if tag == "section"]
    assert parts == [
        *("notes", "servers", "workloads", "pareto", "tp", "baseline", "ruled-out", "memory", "cost"),
        *("assumptions", "repeat"),
    ]
    text = " ".join(page.text)
    assert plan.best is not None
    for said in (
        *plan.notes[:2],
        plan.best.one_server_fewer,
        plan.scenario_sha256,
        plan_sha256(plan),
        plan.price["sku"],
    ):
        assert said in text
    for workload in plan.best.workloads:
        assert workload in text
    for mark in ("measured", "simulated", "extrapolated", "assumed"):
        assert f"known {mark}" in render_html(plan)


def test_stalls_stand_behind_the_workloads_and_are_told_from_the_runs(plan: Plan) -> None:
    page = render_html(swept(plan))
    parts = [attributes["id"] for tag, attributes in Page(page).tags if tag == "section"]
    assert parts[2:5] == ["workloads", "stalls", "pareto"]
    section = stalls_of(page)
    said = re.sub(r"<svg.*?</svg>|<[^>]*>", "", section, flags=re.DOTALL).replace("\u00a0", " ")
    assert "Half of the gaps between two tokens are under about 17 ms; the longest stall is 330 ms" in said
    assert "In the runs below, with 12,288 the longest is 330 ms." in said
    assert "With 2,048 it is 246 ms, and TTFT p99 of short-chat rises from 276 ms to 762 ms" in said
    assert "above its target of 500 ms" in said
    assert "With 32,768 it is 413 ms, and TTFT p99 stays where it is." in said
    assert "With 1,024 the fleet no longer carries the load." in said
    assert "No workload has a target on its gaps" in said


def test_the_curves_show_every_value_the_targets_and_the_chosen_one(plan: Plan) -> None:
    answer = swept(plan)
    assert answer.best is not None
    drawn = SVG.findall(stalls_of(render_html(answer)))
    assert ["wide" in picture[:400] for picture in drawn] == [True, False]
    for picture in drawn:
        assert picture.count('class="upright"') == 1
        assert picture.count(">saturated<") == 3
        assert picture.count('class="line c0"') == 3
        assert picture.count("<circle") == 3 * 3 * len(answer.best.workloads)
        assert len(re.findall(r'class="target c\d"', picture)) == 3  # ttft_ms of 500, 2000 and 1500
        assert "short-chat: ttft_ms 500" in picture
    assert "12,288" in drawn[0]
    assert "12k" in drawn[1]


def test_values_at_which_a_target_is_missed_are_named_beside_the_curves(plan: Plan) -> None:
    data = swept(plan).model_dump(mode="json")
    for point in data["best"]["batched_tokens_sweep"]:
        for row in point["workloads"].values():
            row["attainment"] = 1.0
    complete = stalls_of(render_html(Plan.model_validate_json(json.dumps(data))))
    assert "too few requests meet every target" not in complete
    steady = next(p for p in data["best"]["batched_tokens_sweep"] if not p["saturated"])
    steady["workloads"]["short-chat"]["attainment"] = 0.5
    section = stalls_of(render_html(Plan.model_validate_json(json.dumps(data))))
    said = re.sub(r"<[^>]*>", "", section).replace("\u00a0", " ")
    assert "In these runs too few requests meet every target at 2,048 (short-chat: 50.00 % good)." in said


def test_a_limit_that_makes_no_difference_is_said_to_make_none(plan: Plan) -> None:
    section = stalls_of(render_html(swept(plan, (250.0, 250.0, 251.0, 250.0))))
    assert "makes no stall longer here: the longest in the runs below is <b><data" in section
    assert "A step with a long prompt" not in section


def test_a_plan_without_a_sweep_or_from_before_shows_what_it_has(plan: Plan) -> None:
    assert 'id="stalls"' not in render_html(plan)
    data = swept(plan).model_dump(mode="json")
    data["best"]["batched_tokens_sweep"] = data["best"]["batched_tokens_sweep"][2:3]
    section = stalls_of(render_html(Plan.model_validate_json(json.dumps(data))))
    assert "longest stall p99" in section
    assert "<svg" not in section


def test_servers_and_memory_add_up(plan: Plan) -> None:
    assert plan.best is not None
    servers = re.search(r'<section id="servers">.*?</section>', render_html(plan), re.DOTALL)
    assert servers is not None
    counts = [int(value) for kind, value, _ in Page(servers[0]).figures if kind == "count"]
    reasons = len(plan.best.servers_by_reason)
    assert counts[:reasons] == list(plan.best.servers_by_reason.values())
    assert counts[-1] == sum(counts[:reasons]) == plan.best.servers
    left = sum(line["bytes"] for line in plan.best.memory)
    assert f">{FORMATS['bytes'](left)}<" in render_html(plan)


def test_text_of_a_users_file_is_never_markup(plan: Plan) -> None:
    data = swept(plan).model_dump(mode="json")
    data["scenario"]["name"] = HOSTILE
    for point in data["best"]["batched_tokens_sweep"]:
        point["workloads"][HOSTILE] = point["workloads"].pop("rag")
    for part in (data["scenario"]["workloads"], data["best"]["workloads"], data["best"]["attainment"]):
        part[HOSTILE] = part.pop("rag")
    profile = data["profiles"].pop(data["profile"])
    profile |= {"caveats": [HOSTILE, f"`{HOSTILE}` https://example.org/{HOSTILE}"], "sources": [HOSTILE]}
    data["profiles"][HOSTILE] = profile
    data |= {"profile": HOSTILE, "notes": [HOSTILE], "scenario_path": HOSTILE}
    data["price"] |= dict.fromkeys(("sku", "provider", "source", "term"), HOSTILE)
    data["candidates"][0] |= {"label": HOSTILE, "node": HOSTILE, "tightest": HOSTILE}
    data["rejections"][0] |= {"constraint": HOSTILE, "detail": HOSTILE}
    data["baseline"] |= {"label": HOSTILE, "note": HOSTILE}
    data["best"]["memory"][0] |= {"name": HOSTILE, "note": HOSTILE, "how_known": HOSTILE}
    page = Page(render_html(Plan.model_validate_json(json.dumps(data))))
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "img", "iframe", "object", "embed", "form"}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert "".join(page.text).count("<script>alert(1)</script>") > 10
    assert page.open == []


def test_the_page_loads_nothing_and_runs_nothing(plan: Plan) -> None:
    source = render_html(plan)
    page = Page(source)
    assert page.open == []
    loading = {name for tag, attributes in page.tags if tag != "a" for name in attributes if name in ("src", "srcset")}
    assert loading == set()
    assert [a["href"] for tag, a in page.tags if tag == "link"] == ["data:,"]
    assert "url(" not in source
    assert "@import" not in source
    assert "script" not in {tag for tag, _ in page.tags}
    assert len(source.encode()) < 300_000


def test_the_picture_has_a_finding_axis_units_and_its_data(plan: Plan) -> None:
    section = re.search(r'<section id="pareto">.*?</section>', render_html(plan), re.DOTALL)
    assert section is not None
    assert "No candidate costs less than" in section[0]
    assert "391\u00a0ms" in section[0]
    for picture in SVG.findall(section[0]):
        assert "USD in the first month" in picture
        assert ", ms" in picture
        assert "chosen" in picture
    rows = re.search(r"<details>.*</details>", section[0], re.DOTALL)
    assert rows is not None
    assert rows[0].count("<tr>") == len(plan.candidates) + 1


def test_when_nothing_meets_the_targets_the_first_sentence_says_so(plan: Plan) -> None:
    page = render_html(unanswered(plan))
    said = first_sentence(page)
    assert said.startswith("No configuration meets the targets: short-chat ttft_ms binds.")
    assert "8 × TP1, max_num_seqs 64 on 64 servers, gives short-chat ttft_ms 61 ms against 20 ms" in said
    assert "raise the target to at least 45 ms" in page
    assert "USD" not in said


def test_when_nothing_can_run_the_constraint_is_named(plan: Plan) -> None:
    answer = unanswered(plan)
    assert answer.nearest_miss is not None
    miss = answer.nearest_miss.model_dump() | {
        "label": "no configuration can run", "servers": None, "workload": None, "target": "memory", "value": None,
        "limit": None, "attainment": {},
    }  # fmt: skip
    said = first_sentence(render_html(changed(answer, nearest_miss=miss, baseline=None, notes=())))
    assert said.startswith("No configuration meets the targets: memory binds.")
    assert said.endswith("no configuration can run, is ruled out by memory.")


def test_an_undecided_workload_is_called_undecided(plan: Plan) -> None:
    data = plan.model_dump(mode="json")
    data["best"]["workloads"]["rag"]["decided"] = False
    page = render_html(Plan.model_validate_json(json.dumps(data)))
    assert "Undecided, too few requests or too short a run: rag" in page
    assert ">undecided</b>" in page


def test_percentile_targets_stand_beside_their_own_percentile(plan: Plan) -> None:
    data = plan.model_dump(mode="json")
    row = data["best"]["workloads"]["long-chat"]
    row["targets"] = {"ttft_p99_ms": 500.0, "itl_p95_ms": 160.0, "e2e_p50_ms": 70_000.0}
    page = Page(render_html(Plan.model_validate_json(json.dumps(data))))
    text = " ".join(page.text)
    assert "TTFT p99 over all requests" in text
    assert "ITL p95 over all requests" in text
    shown = [value for kind, value, _ in page.figures if kind == "ms"]
    wanted = [500.0, row["ttft_p99_ms"], 160.0, row["itl_p99_ms"], 70_000.0, row["e2e_p50_ms"]]
    assert any(shown[start : start + 6] == wanted for start in range(len(shown)))


def test_an_equally_dear_baseline_is_no_saving(plan: Plan) -> None:
    data = plan.model_dump(mode="json")
    data["baseline"] |= {"saving_usd_per_month": 0.0}
    page = render_html(Plan.model_validate_json(json.dumps(data)))
    assert "for the same load and costs the same" in page
    assert "than the baseline" not in page


def test_several_nodes_and_reasons_are_told_apart(plan: Plan) -> None:
    data = plan.model_dump(mode="json")
    for row in data["candidates"][8:]:
        row["node"] = "mi300x"
    data["candidates"][5]["ttft_p99_ms"] = None
    data["best"] |= {
        "servers": 9,
        "servers_by_reason": {"traffic": 3, "headroom": 1, "growth": 2, "batch": 1, "spare": 2},
    }
    answer = Plan.model_validate_json(json.dumps(data))
    page = render_html(answer)
    assert "mi300x TP8" in page
    assert page.count('class="box spare"') == 3
    assert len(set(candidate_names(answer))) == len(answer.candidates)
    assert first_sentence(page).startswith("9 servers (mi355x) with gpt-oss-120b in mxfp4 as 8 × TP1, max_num_seqs")


def test_names_add_the_flags_in_which_equal_labels_differ(plan: Plan) -> None:
    names = candidate_names(plan)
    assert plan.candidates[0].label == plan.candidates[1].label
    assert (names[0], names[1]) == tuple(
        f"{c.label}, gpu_memory_utilization {c.engine['gpu_memory_utilization']}" for c in plan.candidates[:2]
    )


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("attainment", 1.0, "100 %"),
        ("attainment", 0.99996, ">99.99 %"),
        ("attainment", 0.9949, "99.49 %"),
        ("share", 0.0, "0 %"),
        ("share", 0.0001, "<1 %"),
        ("share", 0.999, ">99 %"),
        ("usd", 61662.7, "USD 61,662.70"),
        ("usd-unit", 0.169253476, "USD 0.169253476"),
        ("servers", 1, "1 server"),
        ("ms", 7.25, "7.2 ms"),
        ("ms", 27_780.54, "27.8 s"),
        ("seconds", 1440.0000000000014, "24 min"),
        ("memory", -312737, "−0.30 MiB"),
    ],
)
def test_figures_are_written_as_people_read_them(kind: str, value: float, text: str) -> None:
    assert FORMATS[kind](value).replace("\u00a0", " ") == text


def test_markup_escapes_everything_but_itself() -> None:
    assert el("p", "a<b", el("b", "&"), title='"') == '<p title="&quot;">a&lt;b<b>&amp;</b></p>'
    assert prose("see https://a.org/x, or `<b>`") == (
        'see <a href="https://a.org/x" rel="noopener noreferrer">https://a.org/x</a>, or <code>&lt;b&gt;</code>'
    )
    assert "<a" not in prose("javascript:alert(1)")


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0.0, 224_000.0, 5) == [0, 50_000, 100_000, 150_000, 200_000]
    assert ticks(361.0, 782.0, 8) == [400, 500, 600, 700]


def test_the_front_keeps_what_nothing_beats() -> None:
    spots = [(1.0, 9.0), (2.0, 5.0), (3.0, 6.0), (4.0, 5.0), (5.0, 1.0)]
    points = [Point(x=x, y=y, group="TP1", count=1, mark="sized", label="", hover="") for x, y in spots]
    assert [(p.x, p.y) for p in front_of(points)] == [(1.0, 9.0), (2.0, 5.0), (5.0, 1.0)]
