"""A CSV file that people write: one header, one record a line, lines of `#` and blank ones anywhere between.

What spreadsheets make of it (semicolons, tabs, another encoding, a column twice) is told as what it is, with the line.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hardware_profiles.errors import InputError

__all__ = ["NotRows", "TidyCsv", "read_tidy_csv"]

SEPARATORS = {";": "semicolons", "\t": "tabs"}


class NotRows(InputError):
    """A file that holds no rows at all, which is no mistake where a folder was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TidyCsv:
    """The cells of a file, without spaces around them."""

    notes: tuple[tuple[int, str], ...]
    """Line number and text of the lines of `#` before the header."""
    records: tuple[tuple[int, Mapping[str, str]], ...]
    """Line number and cells by column."""


def read_tidy_csv(path: Path, needs: Sequence[Sequence[str]]) -> TidyCsv:
    """Read a file whose header has one of each of these groups of columns; another file is `NotRows`."""
    file = str(path)
    kept = [(number, line) for number, line in enumerate(_lines(path), start=1) if line.strip()]
    start = next((i for i, (_, line) in enumerate(kept) if not line.startswith("#")), len(kept))
    body = [(number, line) for number, line in kept[start:] if not line.lstrip().startswith("#")]
    words = ", ".join(" or ".join(group) for group in needs)
    if not body:
        problem = "holds only lines of #" if kept else "the file is empty"
        raise NotRows(f"{problem}; it needs a header with {words}", file=file)
    reader = csv.reader([line for _, line in body], strict=True)
    try:
        header = next(reader)
        _check_header(header, body[0], needs, file)
        records = []
        for cells in reader:
            line = body[reader.line_num - 1][0]
            if len(cells) != len(header):
                problem = f"has {len(cells)} fields where the header has {len(header)}; quote fields that hold commas"
                raise InputError(problem, file=file, line=line)
            records.append((line, dict(zip(header, (cell.strip() for cell in cells), strict=True))))
    except csv.Error as error:
        raise InputError(f"is no CSV: {error}", file=file, line=body[reader.line_num - 1][0]) from None
    return TidyCsv(notes=tuple(kept[:start]), records=tuple(records))


def _lines(path: Path) -> list[str]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise NotRows(f"cannot be read: {error.strerror or error}", file=str(path)) from None
    try:
        return raw.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        problem = f"byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise NotRows(problem, file=str(path), line=line) from None


def _check_header(header: Sequence[str], first: tuple[int, str], needs: Sequence[Sequence[str]], file: str) -> None:
    number, written = first
    if twice := next((name for name in header if name and header.count(name) > 1), None):
        raise InputError(f"the column {twice} stands twice; keep one", file=file, line=number)
    missing = [group for group in needs if not set(group) & set(header)]
    if not missing:
        return
    for mark, word in SEPARATORS.items():
        if written.count(mark) > written.count(","):
            raise NotRows(f"its fields are separated by {word}; separate them by commas", file=file, line=number)
    plain = {name.strip().lower(): name for name in header}
    for group in missing:
        if near := next((plain[name] for name in group if name in plain), None):
            cure = f"write {near.strip().lower()}, in lower case and without spaces"
            raise NotRows(f"has the column {near!r}; {cure}", file=file, line=number)
    words = ", ".join(" or ".join(group) for group in missing)
    raise NotRows(f"has no column {words}; it needs {', '.join(' or '.join(group) for group in needs)}", file=file)
