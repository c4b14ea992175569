"""Measures what an all-reduce costs on this node, per tensor-parallel degree, and writes it as profiles read it.

The time of a message of m bytes is latency + m / bandwidth up to 3 MB, fitted to the medians with relative errors;
larger messages take another algorithm, whose bandwidth the profile's fit finds from prefill-heavy rows
(`simulator/all_reduce_curve.py`).
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from validator.child import run_child
from validator.targets.local import free_port

__all__ = ["measure_all_reduce", "python_of"]

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
        first = script.readline().decode("utf-8", errors="replace")
    return first[2:].split()[0] if first.startswith("#!") and "python" in first else None


def measure_all_reduce(python: str, degrees: Sequence[int], *, gpu: str, date: str, out: Path) -> dict[int, str]:
    """Measure every degree above 1 and write `out`; returns, by degree, why one could not be measured."""
    lines, failed = [], {}
    for degree in degrees:
        if degree == 1:
            continue
        points = out.with_name(f"all-reduce-tp{degree}.points.csv")
        problem = _probe(python, degree, points)
        if problem is None:
            lines.append(_line(degree, points))
        else:
            failed[degree] = problem
    if lines:
        _write(out, lines, gpu=gpu, date=date)
    return failed


def _probe(python: str, degree: int, points: Path) -> str | None:
    points.unlink(missing_ok=True)
    sizes = ",".join(map(str, SIZES))
    log = points.with_suffix(".log")
    code = run_child((python, str(PROBE), str(degree), sizes, str(free_port()), str(points)), log, within_s=WITHIN_S)
    if code is None:
        return f"no end within {WITHIN_S:g} s"
    if code != 0 or not points.exists():
        return f"the probe ended with {code}; {log} says why"
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
    with out.open("w", newline="", encoding="utf-8") as file:
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
