"""What else was looked at: cost against latency, the tensor-parallel degrees, and what ruled the others out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from planner.plan_file import Candidate, Plan
from planner.report.figures import figure
from planner.report.layout import bar, section, table
from planner.report.markup import Html, el, join
from planner.report.names import candidate_names, flags_text, varying_flags
from planner.report.picture import Point, front_of, pictures
from planner.server_count import servers_text
from simulator.engine import flag_value
from simulator.flags import FlagValue, flag_text

__all__ = ["cost_against_latency", "ruled_out", "tensor_parallel"]

EVIDENCE = {"confirmed": "full runs", "fleet": "fleet simulated", "rank run": "estimated"}
LATENCY = {"ttft": "p99 time to first token", "tpot": "p99 time per output token"}
ROWS = 200
"""Candidates in the table behind the picture; candidates.csv has all."""


def _metric(plan: Plan) -> str:
    """TTFT, unless only the pace of tokens has targets."""
    slos = [workload.get("slo", {}) for workload in plan.scenario.get("workloads", {}).values()]
    names = [name for slo in slos for name in slo if name != "attainment"]
    return "tpot" if names and all(name.startswith(("tpot", "itl")) for name in names) else "ttft"


def _latency_ms(candidate: Candidate, metric: str) -> float | None:
    return candidate.ttft_p99_ms if metric == "ttft" else candidate.tpot_p99_ms


def _degree(candidate: Candidate) -> int:
    return int(candidate.engine.get("tensor_parallel_size", 1))


def _groups(plan: Plan) -> dict[int, str]:
    """Name of the group of each candidate: its TP degree, with the node where there are several."""
    several = len({c.node for c in plan.candidates}) > 1
    return {i: (f"{c.node} " if several else "") + f"TP{_degree(c)}" for i, c in enumerate(plan.candidates)}


def cost_against_latency(plan: Plan) -> Html | None:
    """The Pareto picture with the table it is drawn from."""
    metric = _metric(plan)
    names = candidate_names(plan)
    drawn = [i for i, c in enumerate(plan.candidates) if _latency_ms(c, metric) is not None]
    if len(drawn) < 2:
        return None
    group_of = _groups(plan)
    groups = sorted(set(group_of.values()))
    points = _points(plan, drawn, metric, group_of, names)
    spoken = f"Monthly cost against {LATENCY[metric]} of {len(plan.candidates)} candidates"
    picture = pictures(
        points,
        groups,
        x_title=f"{LATENCY[metric]} of the slowest workload, ms, at the largest load one server carries",
        x_short=f"{metric.upper()} p99 of the slowest workload, ms",
        y_title="USD in the first month, spare servers included",
        title=spoken,
    )
    explained = (
        "Latencies come from the rank runs: each candidate at the largest load that one server of it carries, so all "
        "are equally hard pressed. They place candidates against each other; what users get from the chosen fleet "
        "stands in the workload table."
    )
    return section(
        "pareto",
        _finding(plan, front_of(points), metric),
        el("figure", picture, el("figcaption", explained, class_="small")),
        el("details", el("summary", f"The {len(plan.candidates)} candidates behind the picture"), _rows(plan)),
    )


def _points(
    plan: Plan, drawn: Sequence[int], metric: str, group_of: dict[int, str], names: Sequence[str]
) -> list[Point]:
    """Candidates that lie on the same spot become one point, the chosen one among them first."""
    spots: dict[tuple[float, float, str, bool], list[int]] = {}
    for i in drawn:
        c = plan.candidates[i]
        ranked = c.evidence == "rank run"
        key = (round(_latency_ms(c, metric) or 0.0, 1), c.cost_usd_per_month, group_of[i], ranked)
        spots.setdefault(key, []).append(i)
    points: list[Point] = []
    labelled: set[str] = set()
    for (x, y, group, ranked), members in spots.items():
        rows = [plan.candidates[i] for i in members]
        chosen = plan.best is not None and members[0] == 0
        ties = sum(c.tied for c in rows)
        mark = "chosen" if chosen else "tied" if ties else "ranked" if ranked else "sized"
        label = "" if group in labelled else f"{group}, {servers_text(rows[0].servers)}"
        labelled.add(group)
        if chosen:
            label = f"chosen: {servers_text(rows[0].servers)}" + (f" (+ {ties} tied)" if ties else "")
        hover = f"{names[members[0]]}{f' and {len(rows) - 1} more' if len(rows) > 1 else ''}"
        hover += f": {servers_text(rows[0].servers)}, USD {y:,.2f} a month, {metric.upper()} p99 {x:,.0f} ms"
        points.append(Point(x=x, y=y, group=group, count=len(rows), mark=mark, label=label, hover=hover))
    return points


def _finding(plan: Plan, front: Sequence[Point], metric: str) -> Html:
    """The picture in a sentence."""
    fastest, cheapest = front[0], front[-1]
    tied = sum(c.tied for c in plan.candidates)
    if plan.best is None:
        return join("What the rank runs found cheapest costs ", figure("usd", cheapest.y), " a month, and still misses")
    chosen = plan.candidates[0]
    ties = join(" (", figure("tally", tied), f" {'ties' if tied == 1 else 'tie'} with it)") if tied else None
    title = join("No candidate costs less than ", figure("usd", chosen.cost_usd_per_month), " a month", ties)
    if fastest.y <= chosen.cost_usd_per_month:
        return title
    least = min(ms for c in plan.candidates if (ms := _latency_ms(c, metric)) is not None)
    return join(title, f"; the lowest {LATENCY[metric]}, ", figure("ms", least), ", costs ", figure("usd", fastest.y))


def _rows(plan: Plan) -> Html:
    """One row per candidate; a flag has a column where two candidates differ in it, else it stands in the caption."""
    varying = varying_flags(plan)
    first = plan.candidates[0].engine
    same = flags_text(first, [name for name in first if name not in varying])
    several = len({(c.node, c.precision) for c in plan.candidates}) > 1
    rows = [
        (
            "chosen" if i == 0 and plan.best is not None else "tied" if c.tied else "",
            *([f"{c.node}, {c.precision}"] if several else []),
            *(_cell(flag_value(c.engine, name)) for name in varying),
            figure("count", c.servers),
            figure("usd", c.cost_usd_per_month),
            figure("times", c.load_per_server),
            figure("ms", c.ttft_p99_ms),
            figure("ms", c.tpot_p99_ms),
            c.tightest,
            EVIDENCE[c.evidence],
        )
        for i, c in enumerate(plan.candidates[:ROWS])
    ]
    measured = ("servers", "USD a month", "demand per server", "TTFT p99", "TPOT p99")
    head = ("", *(["on"] if several else []), *varying, *measured, "tightest", "evidence")
    caption = f"All candidates, cheapest first; the same in all: {same}" if same else "All candidates, cheapest first"
    left = len(plan.candidates) - len(rows)
    rest = el("p", f"{left} more stand in candidates.csv.") if left else None
    return join(table(caption, head, rows, right=range(1 + several, len(head) - 2), kind="wide"), rest)


def _cell(value: FlagValue | None) -> str:
    return "" if value is None else flag_text(value)


def tensor_parallel(plan: Plan) -> Html | None:
    """The best candidate of every tensor-parallel degree: one large replica, or several small ones on a server?"""
    firsts: dict[tuple[str, str, int], int] = {}
    for i, c in enumerate(plan.candidates):
        firsts.setdefault((c.node, c.precision, _degree(c)), i)
    if not firsts:
        return None
    names = candidate_names(plan)
    several = len({(node, precision) for node, precision, _ in firsts}) > 1
    dearest = max(plan.candidates[i].cost_usd_per_month for i in firsts.values())
    rows = []
    for (node, precision, degree), i in sorted(firsts.items()):
        c = plan.candidates[i]
        rows.append(
            (
                join(
                    el("b", f"{c.replicas_per_server}\u00a0×\u00a0TP{degree}"),
                    f" on {node}, {precision}" if several else None,
                ),
                figure("count", c.servers),
                figure("usd", c.cost_usd_per_month),
                bar(c.cost_usd_per_month / dearest if dearest else 0.0),
                figure("times", c.load_per_server),
                EVIDENCE[c.evidence],
                names[i].partition(f"× TP{degree}, ")[2] or names[i],
            )
        )
    ordered = sorted((plan.candidates[i] for i in firsts.values()), key=lambda c: c.cost_usd_per_month)
    degrees = [f"TP{_degree(c)}" + (f" on {c.node} in {c.precision}" if several else "") for c in ordered]
    title = join(f"{degrees[0]} is the cheapest with ", figure("servers", ordered[0].servers))
    if len(ordered) == 1:
        title = join(f"Only {degrees[0]} is among the candidates")
    elif ordered[0].cost_usd_per_month == ordered[1].cost_usd_per_month:
        title = join(f"{degrees[0]} and {degrees[1]} cost the same, ", figure("usd", ordered[0].cost_usd_per_month))
    else:
        title = join(title, f"; the next, {degrees[1]}, takes ", figure("count", ordered[1].servers))
    head = ("per server", "servers", "USD a month", "", "demand per server", "evidence", "best flags")
    return section("tp", title, table("The best candidate of each tensor-parallel degree", head, rows, right=(1, 2, 4)))


def ruled_out(plan: Plan) -> Html:
    """From all combinations to the answer: how many fell where, and why."""
    seen = plan.screened
    missed = "near the best capacity known then" if plan.best is not None else "others came nearer"
    steps = [
        ("combinations of flags", "count", seen.configurations, ""),
        ("cannot run", "tally", len(plan.rejections), "by vLLM's rules or memory, below"),
        ("could not reach the best by arithmetic", "count", seen.pruned_by_bound, "an optimistic bound on capacity"),
        ("simulated at token level", "count", seen.simulated, "the baseline included"),
        ("missed their targets in the first run", "count", seen.pruned_by_run, missed),
        ("candidates: capacity measured, fleet priced", "count", seen.candidates, ""),
        ("confirmed with full runs", "count", seen.confirmed, ""),
    ]
    whole = max(1, seen.configurations)
    funnel = [(name, figure(kind, number), bar(number / whole), why) for name, kind, number, why in steps]
    counts = Counter(r.constraint for r in plan.rejections)
    title = join(
        "What ruled the others out: of ", figure("count", seen.configurations), " combinations ",
        figure("tally", len(plan.rejections)), " cannot run, ", figure("count", seen.pruned_by_run),
        " miss their targets in the first run",
    )  # fmt: skip
    rejected: Html = el("p", "Every combination of the search can run: none was rejected.")
    if counts:
        rows: list[tuple[str, ...]] = []
        for constraint, number in counts.most_common():
            example = next(r for r in plan.rejections if r.constraint == constraint)
            which = f"{example.node}: {flags_text(example.engine)}"
            rows.append((constraint, figure("tally", number), example.detail, which))
        head = ("constraint", "combinations", "for example", "which")
        rejected = table("Combinations that cannot run, by the constraint that binds", head, rows, right=(1,))
    return section(
        "ruled-out",
        title,
        table("From all combinations to the answer", ("", "number", "", ""), funnel, right=(1,)),
        rejected,
    )
