"""What all commands share at a terminal: where they print, and how Ctrl-C ends them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import typer
from rich.console import Console

__all__ = ["INTERRUPTED", "THRESHOLD_MISSED", "console", "interruptible"]

THRESHOLD_MISSED = 6
INTERRUPTED = 130
"""Exit codes (docs/design.md, 1)."""

Function = TypeVar("Function", bound=Callable[..., None])


def console() -> Console:
    """Standard output; 120 columns when it is piped, so that tables do not wrap."""
    found = Console()
    return found if found.is_terminal else Console(width=120)


def interruptible(function: Function) -> Function:
    """Ctrl-C ends a command with exit code 130 and one line."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except KeyboardInterrupt:
            Console(stderr=True).print("interrupted; nothing was written", style="yellow")
            raise typer.Exit(INTERRUPTED) from None

    return wrapped  # type: ignore[return-value]
