"""Somebody who watches the engine's steps while the reference simulation plays them.

One method wide: a step that has ended says all there is to see. The kernels have no such watcher.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["SeenRequest", "SeenWork", "StepObserver"]


class SeenRequest(Protocol):
    """What an observer may read of a request; it never writes."""

    @property
    def index(self) -> int: ...  # its place in the stream
    @property
    def arrival_s(self) -> float: ...  # at the engine, behind the front end
    @property
    def workload(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def emitted_tokens(self) -> int: ...  # given when the step has ended


class SeenWork(Protocol):
    """What one request did in a step."""

    @property
    def sequence(self) -> SeenRequest: ...
    @property
    def tokens(self) -> int: ...  # computed in the step
    @property
    def before_tokens(self) -> int: ...  # in the cache before it
    @property
    def decode(self) -> bool: ...  # its prompt was complete before; else a chunk of it was computed
    @property
    def given(self) -> int: ...  # answer tokens that its reader got
    @property
    def last(self) -> bool: ...  # it ended with them


class StepObserver(Protocol):
    """Called once per executed step of each replica, when it has ended."""

    def step(
        self,
        *,
        replica: int,
        start_s: float,
        end_s: float,
        work: Sequence[SeenWork],
        preempted: Sequence[SeenRequest],
        waiting: int,
        running: int,
        free_blocks: int,
    ) -> bool:
        """`preempted` are those whom the replica threw out since its last step, for this one or before it; `waiting`,
        `running` and `free_blocks` are those after the step was scheduled. False ends the whole run."""
        ...
