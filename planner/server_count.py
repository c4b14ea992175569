"""How many servers, in words: one server carries, two servers carry."""

from __future__ import annotations

__all__ = ["servers_text"]


def servers_text(count: int, one: str = "", more: str = "") -> str:
    """The count with its noun, and the verb that goes with one or with more where a verb follows."""
    noun, verb = ("server", one) if count == 1 else ("servers", more)
    return f"{count} {noun}{f' {verb}' if verb else ''}"
