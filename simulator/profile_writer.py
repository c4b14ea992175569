"""Writes a fitted profile: the YAML file, and beside it the residual of every row, the
predictions of rows left out and the covariance, as CSV.

Numbers are rounded before anything is computed from them, so the files say exactly what was evaluated, and equal fits
give byte-equal files.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, overload

import yaml
from pydantic import BaseModel

from hardware_profiles.fit_evidence import HeldOutRow, ResidualRow

if TYPE_CHECKING:
    from simulator.calibration import FittedProfile

__all__ = ["rounded", "write_profile"]

Terms = TypeVar("Terms", bound=BaseModel)

DIGITS = 5


@overload
def rounded(value: float, digits: int = DIGITS) -> float: ...
@overload
def rounded(value: Terms, digits: int = DIGITS) -> Terms: ...
def rounded(value: float | Terms, digits: int = DIGITS) -> float | Terms:
    """A number, or every number of a set of terms, to so many significant digits."""
    if isinstance(value, BaseModel):
        numbers = {k: rounded(v, digits) for k, v in value if isinstance(v, float)}
        return value.model_copy(update=numbers)
    return float(f"{value:.{digits}g}") if math.isfinite(value) else value


def write_profile(fitted: FittedProfile, path: Path) -> None:
    """`path` (YAML), and beside it `.residuals.csv`, `.held-out.csv` and `.covariance.csv`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = fitted.file.model_dump(mode="json", exclude_none=True)
    data["command"] = f"{data['command']} --out {path.name}"
    for terms in ("all_reduce", "tensor_parallel"):  # JSON has no integer keys; YAML does
        data[terms] = {int(degree): values for degree, values in data[terms].items()}
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=118)
    path.write_text(f"# Made by `goodfleet profile fit`; do not edit by hand.\n{text}", encoding="utf-8")
    _write_rows(path.with_suffix(".residuals.csv"), ResidualRow, fitted.residuals)
    held_out = path.with_suffix(".held-out.csv")
    if fitted.held_out:
        _write_rows(held_out, HeldOutRow, fitted.held_out)
    else:
        held_out.unlink(missing_ok=True)  # of an earlier fit of the same name
    with path.with_suffix(".covariance.csv").open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(fitted.covariance.terms)
        lines.writerows([[f"{cell:.4g}" for cell in row] for row in fitted.covariance.matrix])


def _write_rows(
    path: Path, kind: type[ResidualRow] | type[HeldOutRow], rows: Sequence[ResidualRow] | Sequence[HeldOutRow]
) -> None:
    """One line a row; None is an empty cell."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, [field.name for field in fields(kind)], lineterminator="\n")
        table.writeheader()
        table.writerows({k: f"{v:g}" if k == "weight" else v for k, v in asdict(row).items()} for row in rows)
