"""What all commands share at a terminal: where they print, and how Ctrl-C, a full disk and a closed pipe end them."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import typer
from rich.console import Console
from typer.core import TyperGroup

__all__ = ["INTERRUPTED", "THRESHOLD_MISSED", "Commands", "console", "interruptible"]

THRESHOLD_MISSED = 6
INTERRUPTED = 130
"""Exit codes (docs/design.md, 1)."""

Function = TypeVar("Function", bound=Callable[..., None])


REFUSED_BY_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM)
"""What a disk says that does not take a file; any other `OSError` is a defect of the program."""


class Commands(TyperGroup):
    """The command line. A reader that has gone (`| head -1`) ends it quietly, a full disk with one line and code 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            found = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _drop_output()
            raise typer.Exit(0) from None
        except OSError as error:
            if error.errno not in REFUSED_BY_DISK:
                raise
            _drop_output()
            where = f"{error.filename} " if error.filename else "the output "
            cure = "what stands there is not whole; make room or give another path, and run the command again"
            print(f"error: {where}cannot be written ({error.strerror}); {cure}", file=sys.stderr)
            raise typer.Exit(1) from None
        return found


def _drop_output() -> None:
    """What standard output still holds must not fail once more when the process ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Output(Console):
    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def console() -> Console:
    """Standard output; 120 columns when it is piped, so that tables do not wrap."""
    found = _Output()
    return found if found.is_terminal else _Output(width=120)


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
