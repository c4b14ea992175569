"""What an all-reduce costs by message size: measured where somebody did, else a guess from the links that says so.

An all-reduce of m bytes over TP GPUs moves 2 m (TP - 1) / TP bytes through each GPU's TP - 1 links of a full mesh, so
m / time is at most TP / 2 x the rate of one link (design 4.3); behind a switch it is TP / (2 (TP - 1)) x the rate of
the port. Messages above 8 MB leave vLLM's custom all-reduce for RCCL, NCCL or ROCm's quick reduce.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hardware_profiles.node import Node
from hardware_profiles.shipped import PACKAGE

__all__ = ["MeasuredCurve", "all_reduce_curves", "link_bytes_per_s"]

LARGE_FROM_BYTES = 8e6
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


def link_bytes_per_s(node: Node, degree: int) -> float:
    """The most message bytes per second that the links of one server allow."""
    if node.scaleup_topology == "full_mesh" and node.link_bytes_per_s is not None:
        return degree / 2 * node.link_bytes_per_s
    return degree / (2 * (degree - 1)) * node.scaleup_bytes_per_s


def all_reduce_curves(node: Node, degrees: tuple[int, ...], path: Path | None = None) -> Mapping[int, MeasuredCurve]:
    """The curve of each degree above 1: from a file, else `hardware_profiles/measurements/<node>-all-reduce.csv`."""
    measured: dict[int, MeasuredCurve] = {}
    path = path or PACKAGE / "measurements" / f"{node.name}-all-reduce.csv"
    if path.exists():
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
        for row in csv.DictReader(lines):
            measured[int(row["world_size"])] = MeasuredCurve(
                floor_s=float(row["latency_floor_us"]) * 1e-6,
                bytes_per_s=float(row["effective_gb_per_s"]) * 1e9,
                to_bytes=float(row["valid_to_bytes"]),
                large_from_bytes=LARGE_FROM_BYTES,
                how_known=(
                    f"measured to {float(row['valid_to_bytes']) / 1e6:g} MB ({row['source']}), latency scaled to fit; "
                    f"above {LARGE_FROM_BYTES / 1e6:g} MB fitted; interpolated between"
                ),
            )
    return {degree: measured.get(degree, _assumed(node, degree)) for degree in degrees if degree > 1}


def _assumed(node: Node, degree: int) -> MeasuredCurve:
    return MeasuredCurve(
        floor_s=ASSUMED_FLOOR_S,
        bytes_per_s=ASSUMED_LINK_SHARE * link_bytes_per_s(node, degree),
        to_bytes=ASSUMED_TO_BYTES,
        large_from_bytes=LARGE_FROM_BYTES,
        how_known=f"assumed below 3 MB: 10 us and {ASSUMED_LINK_SHARE:.0%} of the link rate; above 8 MB fitted",
    )
