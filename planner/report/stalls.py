"""What readers of an open stream feel: gaps between tokens, stalls behind long prompts, and what bounds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.plan_file import Best, Plan, SweepPoint, SweepWorkload
from planner.report.curves import Curve, Panel, curves
from planner.report.figures import figure
from planner.report.layout import section, table
from planner.report.markup import Html, el, join

__all__ = ["stalls"]

SAME = 1.06
"""Figures nearer than this are called equal: gaps are read from bins, at most 6 % off."""
FLAG = "max_num_batched_tokens"


def stalls(plan: Plan, best: Best) -> Html | None:
    """Gaps by workload, then the sweep. None for a plan from before there were such figures."""
    if all(row.stall_p50_ms is None for row in best.workloads.values()):
        return None
    rows = [
        (
            name,
            figure("ms", row.itl_p50_ms),
            figure("ms", row.itl_p99_ms),
            figure("ms", row.stall_p50_ms),
            figure("ms", row.stall_p99_ms),
            figure("ms", row.longest_stall_ms),
        )
        for name, row in best.workloads.items()
    ]
    head = ("workload", "gap p50", "gap p99", "longest stall p50", "longest stall p99", "longest of all")
    note = (
        "Gap: the time between two tokens of a stream (ITL), over all gaps, from a fine histogram. Longest stall: the "
        "longest gap of one request, over the finished requests. Means over the confirmation runs; the last column is "
        "the longest in any of them."
    )
    points = best.batched_tokens_sweep
    return section(
        "stalls",
        _title(best),
        table("Between two tokens of a stream", head, rows, right=range(1, 6)),
        el("p", note, class_="small"),
        _sweep(plan, best, points) if len(points) > 1 else None,
    )


def _title(best: Best) -> Html:
    """Half the gaps against the longest stall."""
    rows = best.workloads.values()
    usual = max((row.itl_p50_ms for row in rows if row.itl_p50_ms is not None), default=None)
    longest = max((row.longest_stall_ms for row in rows if row.longest_stall_ms is not None), default=None)
    if usual is None or longest is None:
        return join("No stream has two tokens, so none can stall")
    under, most = figure("ms", usual), figure("ms", longest)
    if longest < 2 * usual:
        return join("Streams flow evenly: half of the gaps are under ", under, ", and none is longer than ", most)
    return join("Half of the gaps between two tokens are under about ", under, "; the longest stall is ", most)


def _sweep(plan: Plan, best: Best, points: Sequence[SweepPoint]) -> Html:
    """The finding, the picture and its rows."""
    chosen = next(i for i, point in enumerate(points) if point.chosen)
    off = [i for i, point in enumerate(points) if point.saturated]
    slos: Mapping[str, Mapping[str, float]] = {
        name: workload.get("slo", {}) for name, workload in plan.scenario.get("workloads", {}).items()
    }
    asked = {name: row.target_attainment for name, row in best.workloads.items()}
    spoken = f"p99 of ITL, longest stall and TTFT of each workload against {FLAG}, {len(points)} values"
    panels = (
        _panel("ITL p99, ms", "itl", points, slos),
        _panel("longest stall of a request, p99, ms", "stall", points, slos),
        _panel("TTFT p99, ms", "ttft", points, slos),
    )
    places = [point.max_num_batched_tokens for point in points]
    limited = any(curve.limit is not None for curve in panels[0].curves)
    unlimited = "No workload has a target on its gaps (ITL); a TPOT target binds only their mean over a request."
    explained = join(
        "The chosen fleet and its other flags held, at ", figure("times", plan.load), " the demand; one short run per ",
        "value, all on the same requests: they show the direction and certify nothing. ",
        None if limited else unlimited,
    )  # fmt: skip
    return join(
        el("h3", f"What {FLAG} does to open streams"),
        el("p", *_finding(points, chosen, slos), _misses(points, asked)),
        el(
            "figure",
            curves(panels, places, chosen=chosen, off=off, x_title=f"{FLAG} (tokens a step may have)", title=spoken),
            el("figcaption", explained, class_="small"),
        ),
        el("details", el("summary", f"The {len(points)} runs behind the picture"), _rows(points)),
    )


def _panel(title: str, metric: str, points: Sequence[SweepPoint], slos: Mapping[str, Mapping[str, float]]) -> Panel:
    found: list[Curve] = []
    for name in points[0].workloads:
        values = tuple(None if p.saturated else getattr(p.workloads[name], f"{metric}_p99_ms") for p in points)
        target = next((t for t in (f"{metric}_ms", f"{metric}_p99_ms") if t in slos.get(name, {})), None)
        limit = float(slos[name][target]) if target is not None else None
        found.append(Curve(name=name, values=values, limit=limit, limit_name=target or ""))
    return Panel(title=title, curves=tuple(found))


def _finding(points: Sequence[SweepPoint], chosen: int, slos: Mapping[str, Mapping[str, float]]) -> list[Html]:
    """Longest stall at the chosen value, then what the smallest that carries the load and the largest would do."""
    here, flag = points[chosen], el("code", FLAG)
    longest = _longest_ms(here)
    steady = [point for point in points if not point.saturated]
    if not steady or longest is None:
        return [join("The short runs say nothing of ", flag, ": they are saturated, or no answer has two tokens.")]
    first, last = _longest_ms(steady[0]) or longest, _longest_ms(steady[-1]) or longest
    most = el("b", figure("ms", longest))
    if last < SAME * first:
        return [join("A larger ", flag, " makes no stall longer here: the longest in the runs below is ", most, ".")]
    said: list[Html] = [
        join("A step with a long prompt in it stalls every open stream of its replica, and ", flag, " bounds that "),
        join("stall. In the runs below, with ", el("b", _value(here)), " the longest is ", most, "."),
    ]
    for other in [steady[0], *steady[1:][-1:]]:
        if other is not here:
            said.append(_compared(here, other, slos))
    full = [point for point in points if point.saturated]
    if full:
        values = ", ".join(f"{point.max_num_batched_tokens:,}" for point in full)
        said.append(join(f" With {values} the fleet no longer carries the load."))
    if here.preemptions:
        said.append(join(" ", figure("count", here.preemptions), " preemptions are part of these stalls."))
    return said


def _compared(here: SweepPoint, other: SweepPoint, slos: Mapping[str, Mapping[str, float]]) -> Html:
    """Another value's longest stall and the time to first token that moves most."""
    name = max(here.workloads, key=lambda n: _moved(here.workloads[n], other.workloads[n]))
    before, after = here.workloads[name].ttft_p99_ms, other.workloads[name].ttft_p99_ms
    limit = slos.get(name, {}).get("ttft_ms", slos.get(name, {}).get("ttft_p99_ms"))
    moved = _moved(here.workloads[name], other.workloads[name])
    if before is None or after is None or moved < SAME:
        ttft = join("TTFT p99 stays where it is")
    else:
        word = "rises" if after > before else "falls"
        ttft = join(f"TTFT p99 of {name} {word} from ", figure("ms", before), " to ", figure("ms", after))
        if limit is not None and before <= limit < after:
            ttft = join(ttft, ", above its target of ", figure("ms", float(limit)))
    return join(" With ", _value(other), " it is ", figure("ms", _longest_ms(other)), ", and ", ttft, ".")


def _misses(points: Sequence[SweepPoint], asked: Mapping[str, float]) -> Html | None:
    """Values at which too few requests of a workload meet all of its targets, which the curves alone do not show."""
    found: list[Html] = []
    for point in points:
        if point.saturated:
            continue
        short = [(row.attainment, name) for name, row in point.workloads.items() if row.attainment < asked.get(name, 0)]
        if short:
            share, name = min(short)
            found.append(join(_value(point), f" ({name}: ", figure("attainment", share), " good)"))
    if not found:
        return None
    listed = [join(", " if i else None, text) for i, text in enumerate(found)]
    return join(" In these runs too few requests meet every target at ", *listed, ".")


def _moved(here: SweepWorkload, other: SweepWorkload) -> float:
    """By what factor TTFT p99 changes, either way."""
    a, b = here.ttft_p99_ms, other.ttft_p99_ms
    return max(a / b, b / a) if a and b else 0.0


def _value(point: SweepPoint) -> Html:
    return figure("count", point.max_num_batched_tokens)


def _longest_ms(point: SweepPoint) -> float | None:
    return max((ms for row in point.workloads.values() if (ms := row.longest_stall_ms) is not None), default=None)


def _rows(points: Sequence[SweepPoint]) -> Html:
    rows = [
        (
            join(_value(point), " (chosen)" if point.chosen else " (saturated)" if point.saturated else None),
            name,
            figure("attainment", row.attainment),
            figure("ms", row.ttft_p50_ms),
            figure("ms", row.ttft_p99_ms),
            figure("ms", row.itl_p50_ms),
            figure("ms", row.itl_p99_ms),
            figure("ms", row.stall_p99_ms),
            figure("ms", row.longest_stall_ms),
        )
        for point in points
        for name, row in point.workloads.items()
    ]
    head = (FLAG, "workload", "good", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "stall p99", "longest stall")
    return table("One run per value, all on the same requests", head, rows, right=range(2, 9), kind="wide")
