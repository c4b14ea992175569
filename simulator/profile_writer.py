"""Writes a fitted profile: the YAML file, and beside it the residual of every row and the covariance, as CSV.

Numbers are rounded before anything is computed from them, so the files say exactly what was evaluated, and equal fits
give byte-equal files.
"""

from __future__ import annotations

import csv
import math
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, overload

import yaml
from pydantic import BaseModel

from hardware_profiles.profile import ResidualRow

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
    """`path` (YAML), and beside it `.residuals.csv` and `.covariance.csv`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = fitted.file.model_dump(mode="json", exclude_none=True)
    data["command"] = f"{data['command']} --out {path.name}"
    for terms in ("all_reduce", "tensor_parallel"):  # JSON has no integer keys; YAML does
        data[terms] = {int(degree): values for degree, values in data[terms].items()}
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=118)
    path.write_text(f"# Made by `goodfleet profile fit`; do not edit by hand.\n{text}", encoding="utf-8")
    with path.with_suffix(".residuals.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, [field.name for field in fields(ResidualRow)], lineterminator="\n")
        table.writeheader()
        table.writerows(
            {k: f"{v:g}" if k == "weight" else v for k, v in asdict(row).items()} for row in fitted.residuals
        )
    with path.with_suffix(".covariance.csv").open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(fitted.covariance.terms)
        lines.writerows([[f"{cell:.4g}" for cell in row] for row in fitted.covariance.matrix])
