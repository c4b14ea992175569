"""Processes of this machine as Linux shows them under /proc: who descends from whom, and what the CPUs gave each.

`/proc/<pid>/schedstat` holds nanoseconds on a CPU and nanoseconds ready but waiting for one (kernel
Documentation/scheduler/sched-stats.rst); `/proc/<pid>/stat` the ticks used, all threads and reaped children included
(proc_pid_stat(5)). Elsewhere there is no /proc, and everything here is None or empty.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["boot_id", "busy_s", "cpu_s", "group_of", "machine_s", "start_of", "tree_of", "waited_s"]

PROC = Path("/proc")
ENDED = "Z"
"""State of a process that has ended and whose parent has not asked how."""


def tree_of(pid: int) -> tuple[int, ...]:
    """A process and all that descend from it, parents first; empty when it is gone."""
    parents: dict[int, list[int]] = {}
    for entry in PROC.glob("[0-9]*"):
        fields = _stat(int(entry.name))
        if fields:
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid] if _stat(pid) else []
    for member in found:  # grows while it is walked
        found += parents.get(member, [])
    return tuple(found)


def start_of(pid: int) -> int | None:
    """When a process started, in ticks since boot: with its number it names one process for ever.

    None = it has ended.
    """
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] != ENDED else None


def group_of(leader: int) -> tuple[int, ...]:
    """The processes of the session that a process started for itself, those that have ended left out.

    Linux gives a number to no other process while a session has it, so they are its own even when it is gone.
    """
    numbers = (int(entry.name) for entry in PROC.glob("[0-9]*"))
    found = ((number, _stat(number)) for number in numbers)
    return tuple(n for n, fields in found if fields and fields[0] != ENDED and int(fields[3]) == leader)


def boot_id() -> str:
    """Names this run of the machine, since numbers of processes begin anew with each; empty where Linux is not."""
    try:
        return (PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    except OSError:
        return ""


def cpu_s(pid: int) -> float:
    """CPU seconds of all its threads and of the children that it has waited for; 0 when it is gone."""
    fields = _stat(pid)
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def waited_s(pid: int) -> float | None:
    """Seconds for which the main thread was ready and had no CPU; None where Linux does not say."""
    try:
        return int((PROC / str(pid) / "schedstat").read_text().split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):
        return None


def machine_s() -> tuple[float, float] | None:
    """(CPU seconds that this machine's CPUs worked, seconds that the hypervisor gave to others); None without /proc."""
    try:
        line = (PROC / "stat").read_text().splitlines()[0].split()
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(ticks) for ticks in line[1:9])
    tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) * tick_s, steal * tick_s


def busy_s(pids: tuple[int, ...]) -> float:
    """CPU seconds of several processes."""
    return sum(cpu_s(pid) for pid in pids)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat behind the command's name, which may hold blanks and any bytes."""
    try:
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
