"""The page's few building blocks: sections, tables that fit a phone, bars, marks that say how a figure is known."""

from __future__ import annotations

from collections.abc import Sequence

from planner.report.markup import Html, el, join

__all__ = ["bar", "facts", "known", "section", "table"]


def section(name: str, title: str, *children: str | None) -> Html:
    """A part of the page; the title states what was found."""
    return el("section", el("h2", title), *children, id=name)


def table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[int] = (),
    foot: bool = False,
    kind: str = "stack",
) -> Html:
    """A table. `right` aligns columns of figures, `foot` sets the last row as a total.

    On a phone a row of a `stack` becomes a block of its own with the heads as labels; any other kind scrolls sideways.
    """
    sides = ["num" if index in right else None for index in range(len(head))]
    heads = [el("th", _breakable(text), scope="col", class_=side) for text, side in zip(head, sides, strict=True)]
    lines = [
        el(
            "tr",
            *(
                el("td", cell, class_=side, data_label=name or None)
                for cell, side, name in zip(row, sides, head, strict=True)
            ),
            class_=last,
        )
        for row, last in zip(rows, [*[None] * (len(rows) - 1), "total" if foot else None], strict=True)
    ]
    body = el("table", el("caption", caption), el("thead", el("tr", *heads)), el("tbody", *lines), class_=kind)
    return el("div", body, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _breakable(name: str) -> Html:
    """A flag's name may break after an underscore."""
    first, *others = name.split("_")
    return join(first, *(join("_", el("wbr"), part) for part in others))


def facts(*rows: tuple[str, str | None]) -> Html:
    """Names with what belongs to them, one a line; None leaves a line out."""
    return el("dl", *(join(el("dt", name), el("dd", value)) for name, value in rows if value is not None))


def bar(share: float, *, start: float = 0.0, kind: str = "") -> Html:
    """A bar from `start`, as shares of the cell's width; for the eye only, the figure stands beside it."""
    begin = min(max(start, 0.0), 1.0)
    width = min(max(share, 0.0), 1.0 - begin)
    style = f"margin-left:{100 * begin:.2f}%;width:{100 * width:.2f}%"
    return el("span", el("i", class_=kind or None, style=style), class_="bar", aria_hidden="true")


def known(how: str) -> Html:
    """How a figure is known: measured, simulated, extrapolated, assumed; given is what a user's file says."""
    return el("span", how, class_=f"known {how if how.isalpha() else ''}".strip())
