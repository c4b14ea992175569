"""Panels of curves over one axis, as inline SVG: figures of each workload against a flag, with their targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.report.markup import Html, el, join
from planner.report.picture import ticks

__all__ = ["Curve", "Panel", "curves"]

COLOURS = 6
LEFT, RIGHT = 62, 22
PANEL, GAP, FIRST, LAST = 150, 46, 40, 52
"""Height of a panel, room between two, above the first and below the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One workload."""

    name: str
    values: tuple[float | None, ...]
    """One for each place of the axis; None is not drawn."""
    limit: float | None
    """Its target."""
    limit_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Curves with a scale of their own."""

    title: str
    curves: tuple[Curve, ...]


def curves(
    panels: Sequence[Panel], places: Sequence[int], *, chosen: int, off: Sequence[int], x_title: str, title: str
) -> Html:
    """For a desk and for a phone. `chosen` and `off` index places; at those in `off` nothing steady is known."""
    names = list(dict.fromkeys(curve.name for panel in panels for curve in panel.curves))
    limits = any(curve.limit is not None for panel in panels for curve in panel.curves)
    items = [el("li", el("i", class_=f"dot c{i % COLOURS}"), name) for i, name in enumerate(names)]
    items += [el("li", el("i", class_="dash"), "its target")] if limits else []
    items.append(el("li", el("i", class_="upright"), "chosen"))
    return join(
        el("ul", *items, class_="legend", aria_hidden="true"),
        *(_draw(panels, places, names, chosen, off, width, x_title, title) for width in (860, 360)),
    )


def _draw(
    panels: Sequence[Panel],
    places: Sequence[int],
    names: Sequence[str],
    chosen: int,
    off: Sequence[int],
    width: int,
    x_title: str,
    title: str,
) -> Html:
    wide = width > 500
    right, inner_w = width - RIGHT, width - LEFT - RIGHT
    height = FIRST + len(panels) * PANEL + (len(panels) - 1) * GAP + LAST
    spacing = inner_w / len(places)

    def x_of(place: int) -> float:
        return round(LEFT + spacing * (place + 0.5), 1)

    foot = height - LAST
    parts: list[Html] = [el("title", title)]
    parts.append(el("line", x1=x_of(chosen), x2=x_of(chosen), y1=FIRST - 6, y2=foot, class_="upright"))
    every = 1 if spacing >= 40 else 2
    for place, value in enumerate(places):
        parts.append(el("line", x1=x_of(place), x2=x_of(place), y1=foot, y2=foot + 5, class_="axis"))
        if place == chosen or (place % every == chosen % every):
            kind = "label chosen" if place == chosen else None
            text = f"{value:,}" if wide else _short(value)
            parts.append(el("text", text, x=x_of(place), y=foot + 20, text_anchor="middle", class_=kind))
    parts.append(el("text", x_title, x=LEFT + inner_w / 2, y=height - 8, text_anchor="middle", class_="title"))
    side = "middle" if wide else "start"
    for index, panel in enumerate(panels):
        top = FIRST + index * (PANEL + GAP)
        xs = [x_of(place) for place in range(len(places))]
        parts += _panel(panel, top, xs, right, names)
        for place in off:
            x = x_of(place) if wide else LEFT + 6.0
            parts.append(el("text", "saturated", x=x, y=top + 12, text_anchor=side, class_="label"))
    kind = "wide" if wide else "narrow"
    return el("svg", *parts, viewBox=f"0 0 {width} {height}", role="img", aria_label=title, class_=f"picture {kind}")


def _panel(panel: Panel, top: int, xs: Sequence[float], right: int, names: Sequence[str]) -> list[Html]:
    """Scale from zero to a little above the highest value or target."""
    shown = [value for curve in panel.curves for value in (*curve.values, curve.limit) if value is not None]
    most = 1.1 * max(shown, default=1.0)

    def y_of(value: float) -> float:
        return round(top + PANEL * (1 - value / most), 1)

    parts: list[Html] = [el("text", panel.title, x=4, y=top - 16, class_="title")]
    for value in ticks(0.0, most, 4):
        parts.append(el("line", x1=LEFT, x2=right, y1=y_of(value), y2=y_of(value), class_="grid"))
        parts.append(el("text", f"{value:,g}", x=LEFT - 8, y=y_of(value) + 4, text_anchor="end"))
    parts.append(el("line", x1=LEFT, x2=right, y1=top + PANEL, y2=top + PANEL, class_="axis"))
    for limit in dict.fromkeys(curve.limit for curve in panel.curves if curve.limit is not None):
        held = [curve for curve in panel.curves if curve.limit == limit]
        colour = names.index(held[0].name) % COLOURS
        text = el("title", f"{', '.join(curve.name for curve in held)}: {held[0].limit_name} {limit:,g}")
        parts.append(el("line", text, x1=LEFT, x2=right, y1=y_of(limit), y2=y_of(limit), class_=f"target c{colour}"))
    for curve in panel.curves:
        colour = names.index(curve.name) % COLOURS
        spots = [(x, y_of(value), value) for x, value in zip(xs, curve.values, strict=True) if value is not None]
        path = "L".join(f"{x:g} {y:g}" for x, y, _ in spots)
        parts += [el("path", d=f"M{path}", class_=f"line c{colour}")] if len(spots) > 1 else []
        parts += [
            el("circle", el("title", f"{curve.name}: {value:,.0f} ms"), cx=x, cy=y, r=3, class_=f"c{colour}")
            for x, y, value in spots
        ]
    return parts


def _short(value: int) -> str:
    """2048 is 2k, as people say of tokens."""
    return f"{value / 1024:g}k" if value % 512 == 0 else f"{value:,}"
