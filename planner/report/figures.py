"""Figures of the plan, formatted once and the same everywhere on the page.

Each stands in a `<data>` element with the value of plan.json as its `value`, so that a program can check the page
against the file. `tally` is the one kind that is counted from the plan's lists instead of read from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from planner.plan_file import IntervalRow
from planner.report.markup import Html, el, join

__all__ = ["FORMATS", "figure", "interval"]

MIB, GIB = 1024**2, 1024**3
NBSP = "\u00a0"


def _usd(value: float) -> str:
    return f"USD{NBSP}{value:,.2f}"


def _share(value: float, places: int) -> str:
    """A share in per cent that says 0 and 100 only when it is."""
    smallest = 10.0**-places
    percent = 100 * value
    if percent != 100 and round(percent, places) >= 100:
        return f">{100 - smallest:.{places}f}{NBSP}%"
    if percent != 0 and round(percent, places) == 0:
        return f"<{smallest:.{places}f}{NBSP}%"
    return f"{percent:.{0 if percent in (0, 100) else places}f}{NBSP}%"


def _ms(value: float) -> str:
    if value >= 10_000:
        return _seconds(value / 1e3)
    return f"{value:,.{0 if value >= 10 else 1}f}{NBSP}ms"


def _seconds(value: float) -> str:
    if value >= 600:
        return f"{value / 60:,.0f}{NBSP}min"
    return f"{value:,.{0 if value >= 100 else 1}f}{NBSP}s"


def _memory(value: float) -> str:
    size, unit = (GIB, "GiB") if abs(value) >= GIB / 100 or value == 0 else (MIB, "MiB")
    return f"{value / size:,.2f}{NBSP}{unit}".replace("-", "−")


def _number(value: float) -> str:
    """Three significant digits, whole from 100 on."""
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"


FORMATS: Mapping[str, Callable[[float], str]] = {
    "usd": _usd,
    "usd-unit": lambda value: f"USD{NBSP}{value:.9f}",
    "attainment": lambda value: _share(value, 2),
    "share": lambda value: _share(value, 0),
    "error": lambda value: _share(value, 1),
    "servers": lambda value: f"{value:,.0f}{NBSP}{'server' if value == 1 else 'servers'}",
    "count": lambda value: f"{value:,.0f}",
    "tally": lambda value: f"{value:,.0f}",
    "times": lambda value: f"{value:.3g}{NBSP}×",
    "ms": _ms,
    "seconds": _seconds,
    "rate": lambda value: f"{_number(value)}{NBSP}requests/s",
    "tokens": lambda value: f"{_number(value)}{NBSP}tokens/s",
    "memory": _memory,
    "bytes": lambda value: f"{value:,.0f}".replace("-", "−"),
}
"""By kind, which is also the element's class."""


def figure(kind: str, value: float | None, missing: str = "–") -> Html:
    """One figure; None and NaN are shown as `missing`."""
    if value is None or value != value:
        return join(missing)
    return el("data", FORMATS[kind](value), class_=kind, value=repr(value))


def interval(kind: str, row: IntervalRow) -> Html:
    """A figure with its 95 % interval."""
    if row.low == row.high:
        return join(figure(kind, row.value), " in every run")
    low, high = figure(kind, row.low), figure(kind, row.high)
    return join(figure(kind, row.value), " ", el("span", "(", low, " to ", high, ")", class_="interval"))
