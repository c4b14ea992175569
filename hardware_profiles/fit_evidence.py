"""What a fit leaves beside its profile: the residual of every row, predictions of rows left out, the covariance.

They are CSV files beside the profile's YAML, written by `simulator.profile_writer`.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass

from hardware_profiles.profile import HardwareProfile

__all__ = ["Covariance", "HeldOutRow", "ResidualRow", "load_covariance", "load_held_out", "load_residuals"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualRow:
    """One measured point beside what the fitted profile says of it."""

    tensor_parallel_size: int
    isl: int
    osl: int
    concurrency: int | None
    """Requests in flight; None = an open loop."""
    request_rate_rps: float | None
    measured_tpot_s: float
    predicted_tpot_s: float
    measured_tokens_per_s: float | None
    """Input and output tokens per second of the replica; None = not in the row."""
    predicted_tokens_per_s: float | None
    measured_ttft_s: float | None
    predicted_ttft_s: float | None
    weight: float
    """1 = full weight; less = down-weighted, and `note` says why."""
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutRow:
    """One metric of one measured row, predicted by a fit that did not see its group."""

    evaluation: str
    """leave one concurrency, shape or TP out."""
    tensor_parallel_size: int
    isl: int
    osl: int
    load: str
    """Requests in flight, or a rate."""
    metric: str
    """tpot (s), throughput (tokens/s of the replica) or ttft (s)."""
    measured: float
    predicted: float
    stated_sd: float
    """Standard deviation of ln(predicted) that the refit states, `interval_scale` not applied."""
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Covariance:
    """How well the coefficients of a profile are known together."""

    terms: tuple[str, ...]
    """Paths in the profile's file, as `tensor_parallel.2.weight_efficiency`; `typical.…`: a degree not measured."""
    matrix: tuple[tuple[float, ...], ...]
    """Covariance of ln(value), prior included. `typical` leaves out the deviation itself: see `deviation_sd`."""


def load_covariance(profile: HardwareProfile) -> Covariance | None:
    """The `.covariance.csv` beside a profile; None for a profile without one."""
    path = profile.path.with_suffix(".covariance.csv")
    if not path.exists():
        return None
    with path.open(newline="") as file:
        header, *lines = csv.reader(file)
    return Covariance(terms=tuple(header), matrix=tuple(tuple(float(cell) for cell in line) for line in lines))


def load_held_out(profile: HardwareProfile) -> tuple[HeldOutRow, ...]:
    """Every prediction of a row left out: the `.held-out.csv` beside a profile."""
    path = profile.path.with_suffix(".held-out.csv")
    if not path.exists():
        return ()
    with path.open(newline="") as file:
        return tuple(
            HeldOutRow(
                evaluation=row["evaluation"],
                tensor_parallel_size=int(row["tensor_parallel_size"]),
                isl=int(row["isl"]),
                osl=int(row["osl"]),
                load=row["load"],
                metric=row["metric"],
                measured=float(row["measured"]),
                predicted=float(row["predicted"]),
                stated_sd=float(row["stated_sd"]),
                weight=float(row["weight"]),
            )
            for row in csv.DictReader(file)
        )


def load_residuals(profile: HardwareProfile) -> tuple[ResidualRow, ...]:
    """Every measured row that the profile was fitted from, with its residual: the `.residuals.csv` beside it."""
    path = profile.path.with_suffix(".residuals.csv")
    if not path.exists():
        return ()

    def number(row: dict[str, str], name: str) -> float | None:
        return float(row[name]) if row.get(name) else None

    with path.open(newline="") as file:
        return tuple(
            ResidualRow(
                tensor_parallel_size=int(row["tensor_parallel_size"]),
                isl=int(row["isl"]),
                osl=int(row["osl"]),
                concurrency=int(row["concurrency"]) if row["concurrency"] else None,
                request_rate_rps=number(row, "request_rate_rps"),
                measured_tpot_s=float(row["measured_tpot_s"]),
                predicted_tpot_s=float(row["predicted_tpot_s"]),
                measured_tokens_per_s=number(row, "measured_tokens_per_s"),
                predicted_tokens_per_s=number(row, "predicted_tokens_per_s"),
                measured_ttft_s=number(row, "measured_ttft_s"),
                predicted_ttft_s=number(row, "predicted_ttft_s"),
                weight=float(row["weight"]),
                note=row["note"],
            )
            for row in csv.DictReader(file)
        )
