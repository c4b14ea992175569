"""Who watches a reference run, step by step."""

from __future__ import annotations

from typing import Protocol

from simulator.scheduler import Batch

__all__ = ["StepObserver"]


class StepObserver(Protocol):
    """Called once per executed step of each rank, when it is scheduled."""

    def step(
        self, *, replica: int, start_s: float, end_s: float, batch: Batch, waiting: int, running: int, free_blocks: int
    ) -> None: ...
