"""Measures what an all-reduce costs on this node, per tensor-parallel degree, and writes it as profiles read it.

A degree is measured when its points are there, written whole; one that failed, or that others disturbed, is measured
again by the next command. The time of a message of m bytes is latency + m / bandwidth up to 3 MB, fitted to the medians
with relative errors; larger messages take another algorithm, whose bandwidth the profile's fit finds from
prefill-heavy rows (`simulator/all_reduce_curve.py`).
"""

from __future__ import annotations

import csv
import os
import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from validator.child import run_child
from validator.contention import LIMIT, ContentionWatch
from validator.targets.local import free_port

__all__ = ["measure_all_reduce", "python_of", "unmeasured"]

PROBE = Path(__file__).with_name("all_reduce_probe.py")
SIZES = tuple(int(3e6 / 2**k) // 16 * 16 for k in range(10, -1, -1))
"""3 KB to 3 MB, each twice the one before."""
WITHIN_S = 600.0
COLUMNS = (
    "gpu",
    "op",
    "kernel",
    "world_size",
    "latency_floor_us",
    "effective_gb_per_s",
    "valid_from_bytes",
    "valid_to_bytes",
    "source",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Latency and bandwidth of one degree."""

    degree: int
    floor_s: float
    bytes_per_s: float
    worst: float
    """Largest relative error of the line at a measured size."""


def python_of(command: Sequence[str]) -> str | None:
    """The python that runs vLLM's command line: named in the command, or in the first line of its script."""
    path = shutil.which(command[0])
    if path is None:
        return None
    if Path(path).name.startswith("python"):
        return path
    with open(path, "rb") as script:
        first, second = (script.readline().decode("utf-8", errors="replace") for _ in range(2))
    words = [word for word in first[2:].split() if not word.startswith("-")] if first.startswith("#!") else []
    if words and Path(words[0]).name == "env":  # `#!/usr/bin/env python3`
        words = words[1:]
    if (
        words and Path(words[0]).name == "sh" and second.startswith("'''exec' ")
    ):  # pip's, where the path to python is long
        words = shlex.split(second.removeprefix("'''exec' "))
    return shutil.which(words[0]) if words and Path(words[0]).name.startswith("python") else None


def measure_all_reduce(python: str, degrees: Sequence[int], *, gpu: str, date: str, out: Path) -> dict[int, str]:
    """Measure what `unmeasured` names and write `out`; returns, by degree, why one could not be measured."""
    failed = {}
    for degree in unmeasured(degrees, out):
        problem = _probe(python, degree, _points(out, degree))
        if problem is not None:
            failed[degree] = problem
    measured = [degree for degree in degrees if _points(out, degree).exists()]
    if measured:
        _write(out, [_line(degree, _points(out, degree)) for degree in measured], gpu=gpu, date=date)
    return failed


def unmeasured(degrees: Sequence[int], out: Path) -> tuple[int, ...]:
    """The degrees above 1 of which nothing is held; all of them where the curve is not written."""
    return tuple(d for d in degrees if d > 1 and not (out.exists() and _points(out, d).exists()))


def _points(out: Path, degree: int) -> Path:
    return out.with_name(f"all-reduce-tp{degree}.points.csv")


def _probe(python: str, degree: int, points: Path) -> str | None:
    partial = points.with_suffix(".part")
    for old in (points, partial):
        old.unlink(missing_ok=True)
    sizes = ",".join(map(str, SIZES))
    log = points.with_suffix(".log")
    command = (python, str(PROBE), str(degree), sizes, str(free_port()), str(partial))
    with ContentionWatch(os.getpid()) as watch:  # the probe descends from us
        started_s = time.perf_counter()
        code = run_child(command, log, within_s=WITHIN_S)
        ended_s = time.perf_counter()
    if code is None:
        return f"no end within {WITHIN_S:g} s"
    if code != 0 or not partial.exists():
        return f"the probe ended with {code}; {log} says why"
    found = watch.between(started_s, ended_s)
    if found is None and watch.possible:
        return "it is not known whether others used the machine"
    if found is not None and found.share > LIMIT:
        return f"others took up to {found.share:.1%} of its time (limit {LIMIT:.0%})"
    os.replace(partial, points)
    return None


def _line(degree: int, points: Path) -> Line:
    with points.open(newline="") as file:
        rows = list(csv.DictReader(file))
    size = np.array([float(row["bytes"]) for row in rows])
    time_s = np.array([float(row["median_us"]) for row in rows]) * 1e-6
    design = np.stack([np.ones_like(size), size], axis=1) / time_s[:, None]
    floor_s, per_byte_s = np.linalg.lstsq(design, np.ones_like(size), rcond=None)[0]
    floor_s, per_byte_s = max(floor_s, 0.0), max(per_byte_s, 1e-15)
    worst = float(np.abs((floor_s + per_byte_s * size) / time_s - 1).max())
    return Line(degree=degree, floor_s=float(floor_s), bytes_per_s=float(1 / per_byte_s), worst=worst)


def _write(out: Path, lines: Sequence[Line], *, gpu: str, date: str) -> None:
    partial = out.with_name(f".{out.name}.part")
    with partial.open("w", newline="", encoding="utf-8") as file:
        file.write("# vLLM's all-reduce, timed alone by validator/all_reduce_probe.py with the server's own vLLM.\n")
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for line in lines:
            table.writerow(
                [
                    gpu,
                    "all_reduce",
                    f"vLLM's choice; the line is within {line.worst:.0%}",
                    line.degree,
                    f"{line.floor_s * 1e6:.4g}",
                    f"{line.bytes_per_s / 1e9:.4g}",
                    SIZES[0],
                    SIZES[-1],
                    f"measured here {date}",
                ]
            )
    os.replace(partial, out)
