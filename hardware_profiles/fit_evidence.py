"""What a fit leaves beside its profile: the residual of every row, predictions of rows left out, the covariance.

They are CSV files beside the profile's YAML, written by `simulator.profile_writer`. A file that a fit cannot have
written is an `InputError` that names the line: figures of a half-written or hand-edited one would be believed.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from hardware_profiles.errors import InputError
from hardware_profiles.profile import HardwareProfile

__all__ = [
    "COMPANIONS",
    "Covariance",
    "HeldOutRow",
    "ResidualRow",
    "load_covariance",
    "load_held_out",
    "load_residuals",
]

COMPANIONS = (".residuals.csv", ".held-out.csv", ".covariance.csv")
"""Suffixes of the files beside a profile."""
MAY_LACK = ("request_rate_rps", "measured_ttft_s", "predicted_ttft_s")
"""Columns that older fits did not write."""
CURE = "fit the profile anew"


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
    (_, header), *lines = _lines(path)
    return Covariance(
        terms=tuple(header),
        matrix=tuple(
            tuple(_number(cell, path, line, term) for term, cell in zip(header, cells, strict=True))
            for line, cells in lines
        ),
    )


def load_held_out(profile: HardwareProfile) -> tuple[HeldOutRow, ...]:
    """Every prediction of a row left out: the `.held-out.csv` beside a profile."""
    return tuple(
        HeldOutRow(
            evaluation=row.text("evaluation"),
            tensor_parallel_size=row.count("tensor_parallel_size"),
            isl=row.count("isl"),
            osl=row.count("osl"),
            load=row.text("load"),
            metric=row.text("metric"),
            measured=row.positive("measured"),
            predicted=row.positive("predicted"),
            stated_sd=row.positive("stated_sd"),
            weight=row.number("weight"),
        )
        for row in _rows(profile.path.with_suffix(".held-out.csv"), HeldOutRow)
    )


def load_residuals(profile: HardwareProfile) -> tuple[ResidualRow, ...]:
    """Every measured row that the profile was fitted from, with its residual: the `.residuals.csv` beside it."""
    return tuple(
        ResidualRow(
            tensor_parallel_size=row.count("tensor_parallel_size"),
            isl=row.count("isl"),
            osl=row.count("osl"),
            concurrency=row.count("concurrency") if row.text("concurrency") else None,
            request_rate_rps=row.known("request_rate_rps"),
            measured_tpot_s=row.positive("measured_tpot_s"),
            predicted_tpot_s=row.positive("predicted_tpot_s"),
            measured_tokens_per_s=row.known("measured_tokens_per_s"),
            predicted_tokens_per_s=row.known("predicted_tokens_per_s"),
            measured_ttft_s=row.known("measured_ttft_s"),
            predicted_ttft_s=row.known("predicted_ttft_s"),
            weight=row.number("weight"),
            note=row.text("note"),
        )
        for row in _rows(profile.path.with_suffix(".residuals.csv"), ResidualRow)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One line, and where it stands."""

    cells: Mapping[str, str]
    path: Path
    line: int

    def text(self, name: str) -> str:
        return self.cells[name]

    def number(self, name: str) -> float:
        return _number(self.cells[name], self.path, self.line, name)

    def positive(self, name: str) -> float:
        value = self.number(name)
        if value <= 0:
            raise _broken(f"{value:g} is not above 0", self.path, self.line, name)
        return value

    def known(self, name: str) -> float | None:
        return self.positive(name) if self.cells.get(name) else None

    def count(self, name: str) -> int:
        value = self.number(name)
        if value < 1 or value != int(value):
            raise _broken(f"{value:g} is no whole number from 1", self.path, self.line, name)
        return int(value)


def _rows(path: Path, kind: type[ResidualRow] | type[HeldOutRow]) -> Sequence[_Row]:
    """The lines below a header that names the fields of a kind; none where there is no such file."""
    if not path.exists():
        return ()
    (_, header), *lines = _lines(path)
    missing = [field.name for field in fields(kind) if field.name not in header and field.name not in MAY_LACK]
    if missing:
        raise _broken(f"has no column {', '.join(missing)}", path, 1)
    return [_Row(cells=dict(zip(header, cells, strict=True)), path=path, line=line) for line, cells in lines]


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """Line number and cells of the header and of every line below it, all of one length."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise _broken(f"cannot be read: {reason}", path) from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        found = [(reader.line_num, cells) for cells in reader]
    except csv.Error as error:
        raise _broken(f"is no CSV: {error}", path, reader.line_num) from None
    if not found:
        raise _broken("the file is empty", path)
    for line, cells in found:
        if len(cells) != len(found[0][1]):
            raise _broken(f"has {len(cells)} fields where the header has {len(found[0][1])}", path, line)
    return found


def _number(text: str, path: Path, line: int, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _broken(f"{text!r} is no finite number", path, line, name)
    return value


def _broken(problem: str, path: Path, line: int | None = None, key: str | None = None) -> InputError:
    return InputError(f"{problem}; {CURE}", file=str(path), line=line, key=key)
