"""What an all-reduce costs by message size: measured where somebody did, else a guess from the links that says so.

An all-reduce of m bytes over TP GPUs moves 2 m (TP - 1) / TP bytes through each GPU's TP - 1 links of a full mesh, so
m / time is at most TP / 2 x the rate of one link (design 4.3); behind a switch it is TP / (2 (TP - 1)) x the rate of
the port. Messages above 8 MB leave vLLM's custom all-reduce for RCCL, NCCL or ROCm's quick reduce.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hardware_profiles.errors import InputError
from hardware_profiles.node import Node
from hardware_profiles.shipped import PACKAGE
from simulator.tidy_csv import read_tidy_csv

__all__ = ["MeasuredCurve", "all_reduce_curves", "link_bytes_per_s"]

COLUMNS = ("world_size", "latency_floor_us", "effective_gb_per_s", "valid_to_bytes", "source")
LARGE_FROM_BYTES = 8e6
LEAST_FLOOR_S, MOST_FLOOR_S = 1e-7, 0.1
"""No message crosses a link faster, and none takes as long: such a number is in another unit."""
MOST_GPUS = 1024
ASSUMED_FLOOR_S = 10e-6
ASSUMED_TO_BYTES = 3e6
ASSUMED_LINK_SHARE = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCurve:
    """Standalone time of vLLM's custom all-reduce: floor_s + message bytes / bytes_per_s."""

    floor_s: float
    bytes_per_s: float
    to_bytes: float
    """Largest message it was measured with."""
    large_from_bytes: float
    """From here on another algorithm takes over."""
    how_known: str
    other_gpu: str | None = None
    """The GPU it was measured on where that is not the node's."""


def link_bytes_per_s(node: Node, degree: int) -> float:
    """The most message bytes per second that the links of one server allow."""
    if node.scaleup_topology == "full_mesh" and node.link_bytes_per_s is not None:
        return degree / 2 * node.link_bytes_per_s
    return degree / (2 * (degree - 1)) * node.scaleup_bytes_per_s


def all_reduce_curves(node: Node, degrees: tuple[int, ...], path: Path | None = None) -> Mapping[int, MeasuredCurve]:
    """The curve of each degree above 1: from a file, else `hardware_profiles/measurements/<node>-all-reduce.csv`."""
    shipped = PACKAGE / "measurements" / f"{node.name}-all-reduce.csv"
    measured: Mapping[int, MeasuredCurve] = {}
    if path is not None or shipped.exists():
        measured = _measured(path or shipped, node)
    return {degree: measured.get(degree, _assumed(node, degree)) for degree in degrees if degree > 1}


def _measured(path: Path, node: Node) -> dict[int, MeasuredCurve]:
    """The curves of a file, by degree; a file that holds none is an `InputError`."""
    found: dict[int, MeasuredCurve] = {}
    for line, cells in read_tidy_csv(path, [(name,) for name in COLUMNS]).records:
        degree = _number(cells, "world_size", 2, MOST_GPUS, path, line)
        if degree in found or degree != int(degree):
            problem = "stands twice; keep one" if degree in found else "must be a whole number"
            raise InputError(f"{degree:g} {problem}", file=str(path), line=line, key="world_size")
        found[int(degree)] = _curve(cells, node, path, line)
    if not found:
        raise InputError("holds no curve; write one line per tensor-parallel degree above 1", file=str(path))
    return found


def _curve(cells: Mapping[str, str], node: Node, path: Path, line: int) -> MeasuredCurve:
    to_bytes = _number(cells, "valid_to_bytes", 1, LARGE_FROM_BYTES * 0.999, path, line)
    floor_us = _number(cells, "latency_floor_us", 0, MOST_FLOOR_S * 1e6, path, line)
    gpu = cells.get("gpu") or node.gpu
    same = gpu.lower() == node.name or set(gpu.lower().split()) <= set(node.gpu.lower().split())
    other = "" if same else f" on {gpu}, another GPU than {node.gpu}"
    return MeasuredCurve(
        floor_s=max(floor_us * 1e-6, LEAST_FLOOR_S),
        bytes_per_s=_number(cells, "effective_gb_per_s", 1e-3, 1e6, path, line) * 1e9,
        to_bytes=to_bytes,
        large_from_bytes=LARGE_FROM_BYTES,
        how_known=(
            f"measured to {to_bytes / 1e6:g} MB{other} ({cells['source']}), latency scaled to fit; "
            f"above {LARGE_FROM_BYTES / 1e6:g} MB fitted; interpolated between"
        ),
        other_gpu=gpu if other else None,
    )


def _number(cells: Mapping[str, str], name: str, least: float, most: float, path: Path, line: int) -> float:
    try:
        value = float(cells[name])
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        problem = f"{cells[name]!r} is not allowed; it must be a number from {least:g} to {most:g}"
        raise InputError(problem, file=str(path), line=line, key=name)
    return value


def _assumed(node: Node, degree: int) -> MeasuredCurve:
    return MeasuredCurve(
        floor_s=ASSUMED_FLOOR_S,
        bytes_per_s=ASSUMED_LINK_SHARE * link_bytes_per_s(node, degree),
        to_bytes=ASSUMED_TO_BYTES,
        large_from_bytes=LARGE_FROM_BYTES,
        how_known=f"assumed below 3 MB: 10 us and {ASSUMED_LINK_SHARE:.0%} of the link rate; above 8 MB fitted",
    )
