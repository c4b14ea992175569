"""What every engine step schedules, for a workload by steps: the lines that vLLM's own scheduler is compared with.

    python -m simulator.schedule_trace workload.json --engine reference
    {"step": 0, "scheduled": [["a", 16]], "preempted": [], "free_blocks": 398}

`scheduled` is ordered as vLLM orders it (running requests, then admitted ones); `free_blocks` is counted after
scheduling and without the null block. Nothing is decided here: `stepped.py` and `counted_steps.py` ask the tellings
that a run takes, too. Steps in which the engine holds no request are not printed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from hardware_profiles.errors import InputError
from simulator.counted_steps import counted_steps
from simulator.schedule_workload import ScheduleWorkload, load_schedule_workload
from simulator.stepped import ScheduledStep, SteppedFullKernel, SteppedReference, drive, settings_of

__all__ = ["ENGINES", "ScheduledStep", "kernel_steps", "main", "reference_steps"]


def reference_steps(workload: ScheduleWorkload) -> Iterator[ScheduledStep]:
    """What `scheduler.Scheduler` schedules."""
    return drive(workload, SteppedReference(workload))


def full_kernel_steps(workload: ScheduleWorkload) -> Iterator[ScheduledStep]:
    """What `full_kernel` schedules."""
    return drive(workload, SteppedFullKernel(workload))


def kernel_steps(workload: ScheduleWorkload) -> Iterator[ScheduledStep]:
    """What the kernel schedules that a run with these flags would take."""
    settings = settings_of(workload)
    counts_do = settings.countable and not settings.async_scheduling and not settings.enable_prefix_caching
    ends_known = all(request.eos_after is None for request in workload.requests)
    return counted_steps(workload) if counts_do and ends_known else full_kernel_steps(workload)


ENGINES: dict[str, Callable[[ScheduleWorkload], Iterator[ScheduledStep]]] = {
    "reference": reference_steps,
    "kernel": kernel_steps,
    "full-kernel": full_kernel_steps,
}
"""The tellings of the scheduler, by name."""


def main(arguments: list[str] | None = None) -> int:
    """Print the steps of a workload file; 0, or 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m simulator.schedule_trace", description=__doc__.splitlines()[0])
    parser.add_argument("workload", type=Path, help="JSON file: flags, num_blocks, requests")
    parser.add_argument("--engine", choices=list(ENGINES), default="reference", help="which telling of the scheduler")
    chosen = parser.parse_args(arguments)
    try:
        workload = load_schedule_workload(chosen.workload)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        for step in ENGINES[chosen.engine](workload):
            print(step.line())
    except BrokenPipeError:  # the reader of a pipe has gone; nothing is wrong
        sys.stderr.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
