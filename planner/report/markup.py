"""HTML in pieces. Plain `str` is text and is always escaped; only `Html` goes into the page as it is.

So a `<script>` in a scenario's name, a caveat or a price source can only ever be read, never run.
"""

from __future__ import annotations

import re
from html import escape

__all__ = ["Html", "el", "join", "prose"]

VOID = frozenset({"meta", "link", "br", "wbr"})
SPECIAL = re.compile(r"`(?P<code>[^`\n]+)`|(?P<url>https?://[^\s<>\"'`]+[^\s<>\"'`.,;:)\]])")


class Html(str):
    """Markup, made by this module's functions only."""

    __slots__ = ()


def join(*children: str | None) -> Html:
    """Pieces in a row; text is escaped, None is left out."""
    return Html("".join(c if isinstance(c, Html) else escape(str(c)) for c in children if c is not None))


def el(tag: str, *children: str | None, **attributes: str | int | float | None) -> Html:
    """An element. `class_="x"` and `stroke_width=1` are written class and stroke-width; None leaves one out."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(f"{value:g}" if isinstance(value, float) else str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Html(f"<{tag}{written}>" if tag in VOID else f"<{tag}{written}>{join(*children)}</{tag}>")


def prose(text: str) -> Html:
    """A sentence with its `code` set as code and its web addresses as links; nothing is loaded before a click."""
    parts: list[str] = []
    end = 0
    for match in SPECIAL.finditer(text):
        code, url = match["code"], match["url"]
        piece = el("code", code) if code else el("a", url, href=url, rel="noopener noreferrer")
        parts += [text[end : match.start()], piece]
        end = match.end()
    return join(*parts, text[end:])
