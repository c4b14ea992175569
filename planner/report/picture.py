"""A scatter of monthly cost against latency as inline SVG: grouped points, the chosen one and its ties marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10, sqrt

from planner.report.markup import Html, el, join

__all__ = ["Point", "front_of", "pictures", "scatter", "ticks"]

COLOURS = 6
LEFT, RIGHT, TOP, BOTTOM = 62, 22, 26, 52
"""Margins, in the picture's own units (about a pixel each)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Candidates that lie on one spot."""

    x: float
    """Latency, ms."""
    y: float
    """USD per month."""
    group: str
    """What the colour stands for."""
    count: int
    """How many candidates."""
    mark: str
    """chosen, tied, sized (simulated as a fleet) or ranked (estimated from a rank run)."""
    label: str
    """Written beside it; empty = nothing."""
    hover: str
    """Shown when pointed at, and read aloud."""


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round values between low and high."""
    span = max(high - low, abs(high) * 1e-3, 1e-9)
    size = 10.0 ** floor(log10(span / about))
    step = next(m * size for m in (1, 2, 2.5, 5, 10) if span / (m * size) <= about)
    return [step * i for i in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def front_of(points: Sequence[Point]) -> list[Point]:
    """Points that no other point beats in both latency and cost, fastest first."""
    front: list[Point] = []
    for point in sorted(points, key=lambda p: (p.x, p.y)):
        if not front or point.y < front[-1].y:
            front.append(point)
    return front


def scatter(
    points: Sequence[Point], groups: Sequence[str], *, width: int, height: int, x_title: str, y_title: str, title: str
) -> Html:
    """The picture; costs start at zero, latencies where they begin."""
    wide = width > 500
    least, most = min(p.x for p in points), max(p.x for p in points)
    room = 0.08 * (most - least) or 0.1 * most or 1.0
    least, most = max(0.0, least - room), most + room
    top = 1.12 * max(p.y for p in points) or 1.0
    inner_w, inner_h = width - LEFT - RIGHT, height - TOP - BOTTOM

    def x_of(value: float) -> float:
        return round(LEFT + inner_w * (value - least) / (most - least), 1)

    def y_of(value: float) -> float:
        return round(TOP + inner_h * (1 - value / top), 1)

    bottom, right = height - BOTTOM, width - RIGHT
    parts: list[Html] = [el("title", title)]
    for value in ticks(0.0, top, 5):
        parts.append(el("line", x1=LEFT, x2=right, y1=y_of(value), y2=y_of(value), class_="grid"))
        parts.append(
            el("text", f"{value / 1e3:,g}k" if value else "0", x=LEFT - 8, y=y_of(value) + 4, text_anchor="end")
        )
    for value in ticks(least, most, 8 if wide else 4):
        parts.append(el("line", x1=x_of(value), x2=x_of(value), y1=bottom, y2=bottom + 5, class_="axis"))
        parts.append(el("text", f"{value:,g}", x=x_of(value), y=bottom + 20, text_anchor="middle"))
    parts.append(el("line", x1=LEFT, x2=right, y1=bottom, y2=bottom, class_="axis"))
    parts.append(el("text", x_title, x=LEFT + inner_w / 2, y=height - 8, text_anchor="middle", class_="title"))
    parts.append(el("text", y_title, x=4, y=14, class_="title"))
    parts.append(_stairs([(x_of(p.x), y_of(p.y)) for p in front_of(points)], right))
    for point in sorted(points, key=lambda p: (p.mark == "chosen", p.mark == "tied", -p.count)):
        parts += _mark(point, x_of(point.x), y_of(point.y), groups.index(point.group) % COLOURS)
    parts += _labels([(p, x_of(p.x), y_of(p.y)) for p in points if p.label], right, short=not wide)
    kind = "wide" if wide else "narrow"
    return el("svg", *parts, viewBox=f"0 0 {width} {height}", role="img", aria_label=title, class_=f"picture {kind}")


def _stairs(corners: Sequence[tuple[float, float]], right: float) -> Html:
    """The Pareto front: at any latency, the least cost that reaches it."""
    path = f"M{corners[0][0]:g} {TOP}"
    for x, y in corners:
        path += f"H{x:g}V{y:g}"
    return el("path", d=f"{path}H{right}", class_="front")


def _radius(point: Point) -> float:
    return min(5 + 1.2 * sqrt(point.count - 1), 11)


def _mark(point: Point, x: float, y: float, colour: int) -> list[Html]:
    radius = _radius(point)
    ring = [el("circle", cx=x, cy=y, r=radius + 5, class_="ring")] if point.mark == "chosen" else []
    if point.mark == "tied":
        ring = [el("circle", cx=x, cy=y, r=radius + 3, class_="ring tied")]
    dot = el("circle", el("title", point.hover), cx=x, cy=y, r=radius, class_=f"dot c{colour} {point.mark}")
    return [*ring, dot]


def _labels(places: Sequence[tuple[Point, float, float]], right: float, *, short: bool) -> list[Html]:
    """Labels beside their points, above the front's line; to the left near the right edge; none covers another.

    The chosen point's label goes below: nothing is cheaper. `short` leaves out what follows the first comma or colon.
    """
    written: list[Html] = []
    taken: list[tuple[float, float, float]] = []
    for point, x, y in sorted(places, key=lambda place: place[0].mark != "chosen"):
        text = point.label.split(",")[0].split(":")[0] if short else point.label
        length = 6.6 * len(text)
        reach = _radius(point) + (9 if point.mark == "chosen" else 5)
        before = x + reach + length > right
        start = x - reach - length if before else x + reach
        line = y + 19 if point.mark == "chosen" else y - 5
        while any(start < b and a < start + length and abs(line - at) < 14 for a, b, at in taken):
            line += 14
        taken.append((start, start + length, line))
        written.append(
            el(
                "text",
                text,
                x=round(x - reach if before else x + reach, 1),
                y=line,
                text_anchor="end" if before else None,
                class_="label chosen" if point.mark == "chosen" else "label",
            )
        )
    return written


def legend(groups: Sequence[str], tied: bool) -> Html:
    """What colours and shapes mean."""
    items = [el("li", el("i", class_=f"dot c{index % COLOURS}"), name) for index, name in enumerate(groups)]
    items.append(el("li", el("i", class_="dot ringed"), "chosen"))
    if tied:
        items.append(el("li", el("i", class_="dot ringed tied"), "tied with it"))
    items.append(el("li", el("i", class_="dot"), "filled: simulated as a fleet"))
    items.append(el("li", el("i", class_="dot open"), "open: estimated from one server"))
    items.append(el("li", el("i", class_="dash"), "least cost at a latency"))
    return el("ul", *items, class_="legend", aria_hidden="true")


def pictures(
    points: Sequence[Point], groups: Sequence[str], *, x_title: str, x_short: str, y_title: str, title: str
) -> Html:
    """The same picture for a desk and for a phone; the style sheet shows one of them."""
    return join(
        legend(groups, any(p.mark == "tied" for p in points)),
        scatter(points, groups, width=860, height=400, x_title=x_title, y_title=y_title, title=title),
        scatter(points, groups, width=360, height=380, x_title=x_short, y_title=y_title, title=title),
    )
