"""One progress bar on stderr while a long command works; silent when it is not a terminal or not wanted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from planner.search import Progress as Callback

__all__ = ["shown"]


@contextmanager
def shown(*, quiet: bool) -> Iterator[Callback]:
    """A callback `(stage, done, total)` that draws a bar."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        stages: list[str] = []

        def line(stage: str, done: int, total: int) -> None:
            kind = stage.split(",")[0]
            if not quiet and (not stages or stages[-1] != kind):
                stages.append(kind)
                console.print(f"{kind} …", highlight=False)

        yield line
        return
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task("starting", total=None)

        def update(stage: str, done: int, total: int) -> None:
            progress.update(task, description=stage, completed=done, total=total)

        yield update
