"""One big replica or several small ones? A server cut into replicas of one tensor-parallel degree or another.

Both sides hold the same number of requests in flight; replicas share them equally. Measured ratios come from two rows:
a server of 8 GPUs as 2 x TP4 at 64 requests is twice the row of TP4 at 32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hardware_profiles.fit_evidence import ResidualRow

__all__ = ["SplitComparison", "split_comparisons"]

TRUSTED_WEIGHT = 0.4
"""Rows of less weight in the fit are no witnesses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitComparison:
    """One server split in two ways, at the same number of requests in flight, both measured."""

    isl: int
    osl: int
    concurrency: int
    """Requests in flight on the whole server."""
    few: int
    """The larger tensor-parallel degree: fewer replicas."""
    many: int
    """The smaller one: more replicas."""
    measured_ratio: float
    """Tokens per second of the server with many replicas over that with few."""
    predicted_ratio: float


def split_comparisons(rows: Sequence[ResidualRow], gpus_per_server: int) -> tuple[SplitComparison, ...]:
    """Every pair of trusted rows that answers the question 1 x TP8, 2 x TP4 or 8 x TP1 at equal load on the server."""
    rows = [row for row in rows if row.weight >= TRUSTED_WEIGHT and row.concurrency is not None]

    def server(row: ResidualRow) -> tuple[int, int, int]:
        return row.isl, row.osl, (row.concurrency or 0) * gpus_per_server // row.tensor_parallel_size

    def ratio(many: tuple[float | None, int], few: tuple[float | None, int]) -> float:
        return ((many[0] or math.nan) / many[1]) / ((few[0] or math.nan) / few[1])

    found = [
        SplitComparison(
            isl=few.isl,
            osl=few.osl,
            concurrency=server(few)[2],
            few=few.tensor_parallel_size,
            many=many.tensor_parallel_size,
            measured_ratio=ratio(
                (many.measured_tokens_per_s, many.tensor_parallel_size),
                (few.measured_tokens_per_s, few.tensor_parallel_size),
            ),
            predicted_ratio=ratio(
                (many.predicted_tokens_per_s, many.tensor_parallel_size),
                (few.predicted_tokens_per_s, few.tensor_parallel_size),
            ),
        )
        for few in rows
        for many in rows
        if many.tensor_parallel_size < few.tensor_parallel_size and server(few) == server(many)
    ]
    found = [split for split in found if math.isfinite(split.measured_ratio)]
    return tuple(sorted(found, key=lambda c: (c.isl, c.osl, c.concurrency, -c.few, -c.many)))
