"""Recorded requests: when they came and how many tokens they had.

Tables are told apart by their header line, JSON lines (`trace_jsonl.py`) only by the user. `azure` is Microsoft's
AzureLLMInferenceTrace (TIMESTAMP as local date and time with up to seven decimals, ContextTokens, GeneratedTokens).
`burstgpt` is HPMLL/BurstGPT's (Timestamp in seconds, Request tokens, Response tokens; a failed request has no response
tokens and is dropped). `csv` is goodfleet's own: arrival_s, prompt_tokens, output_tokens, where the column's name
states the unit of time. A file that does not state its unit is refused: milliseconds read as seconds leave every count
plausible and the rate wrong by a thousand.

A row that cannot be read stops the import with its line. A row that can, but is no request (no prompt or no answer), is
dropped and counted: rows read = kept + dropped.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from hardware_profiles.errors import InputError
from simulator.rows import Rows
from simulator.trace_jsonl import JsonlFormat, TimeUnit, jsonl_facts, read_jsonl

__all__ = ["TimeUnit", "Trace", "TraceFormat", "read_trace"]

TraceFormat: TypeAlias = Literal["azure", "burstgpt", "csv", "mooncake", "bailian", "vllm_timed"]
Number = TypeVar("Number", int, float)

_COLUMNS: dict[TraceFormat, tuple[str, str, str]] = {
    "azure": ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "burstgpt": ("Timestamp", "Request tokens", "Response tokens"),
    "csv": ("arrival_s", "prompt_tokens", "output_tokens"),
}
_MOST_TOKENS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """The requests of one file in order of arrival, and what the import did to it."""

    path: Path
    "The file."
    format: TraceFormat
    "How it was read."
    sha256: str
    "Of the file's bytes, hexadecimal."
    arrival_s: npt.NDArray[np.float64]
    "Seconds since the first request, ascending, shape (requests,)."
    prompt_tokens: npt.NDArray[np.int64]
    "Tokens of each prompt, at least 1."
    output_tokens: npt.NDArray[np.int64]
    "Tokens of each answer, at least 1."
    rows_read: int
    "Rows of the file; kept + dropped."
    dropped: Mapping[str, int]
    "Rows left out, by reason."
    out_of_order: int
    "Kept rows that came earlier than a row above them; they were sorted."
    session: npt.NDArray[np.int64] | None = None
    "Number of each request's session, counted from 0; None = the file knows no sessions."
    prefix_ids: Rows | None = None
    "Ids of each prompt's blocks, global: equal ids mean that everything up to the block's end is equal."
    prefix_block_tokens: int | None = None
    "Tokens of the blocks that `prefix_ids` names."

    def __post_init__(self) -> None:
        kept = len(self.arrival_s)
        if not kept == len(self.prompt_tokens) == len(self.output_tokens):
            raise ValueError("the columns differ in length")
        if any(column is not None and len(column) != kept for column in (self.session, self.prefix_ids)):
            raise ValueError("the columns differ in length")
        if (self.prefix_ids is None) != (self.prefix_block_tokens is None):
            raise ValueError("ids of blocks and the size of a block come together")
        if self.rows_read != kept + sum(self.dropped.values()):
            raise ValueError(f"{self.rows_read} rows read are not {kept} kept and {dict(self.dropped)} dropped")
        if kept < 2 or not self.arrival_s[-1] > self.arrival_s[0] == 0.0:
            raise ValueError("a rate needs two requests at different times, counted from the first")

    @property
    def period_s(self) -> float:
        """Length of the recording when it is played in a circle: last arrival plus one mean gap."""
        span_s = float(self.arrival_s[-1])
        return span_s + span_s / (len(self.arrival_s) - 1)

    @property
    def rate_rps(self) -> float:
        """Mean requests per second of the recording."""
        return len(self.arrival_s) / self.period_s


def read_trace(
    path: str | Path,
    *,
    format: TraceFormat | None = None,
    time_unit: TimeUnit | None = None,
    block_tokens: int | None = None,
) -> Trace:
    """Read a trace; without ``format`` a CSV's header decides. A broken file is an `InputError` with line and column.

    ``time_unit`` and ``block_tokens`` belong to the formats with one JSON object a line, whose files do not say them.
    """
    path = Path(path)
    raw, text = _text(path)
    if format in ("mooncake", "bailian", "vllm_timed"):
        return _json_lines(path, raw, text, format, time_unit, block_tokens)
    if time_unit is not None or block_tokens is not None:
        problem = "time_unit and block_tokens belong to mooncake, bailian and vllm_timed; a CSV states its unit itself"
        raise InputError(f"{problem}; remove them, or name one of these formats", file=str(path))
    if format is None and text.lstrip().startswith("{"):
        problem = "the lines are JSON objects, which do not say their unit of time nor the tokens of a block"
        raise InputError(f"{problem}; state the format: mooncake, bailian or vllm_timed", file=str(path), line=1)
    reader = csv.reader(text.splitlines(), strict=True)
    rows = _numbered_rows(reader, path)
    header_line, header = next(rows, (1, []))
    names = [name.strip() for name in header]
    chosen = _format_of(names, format, path, header_line)
    columns = _COLUMNS[chosen]
    places = [names.index(name) for name in columns]

    arrivals: list[float] = []
    prompts: list[int] = []
    outputs: list[int] = []
    dropped: dict[str, int] = {}
    for line, row in rows:
        if len(row) != len(names):
            problem = f"{len(row)} columns where the header names {len(names)}; correct or remove the line"
            raise InputError(problem, file=str(path), line=line)
        if chosen == "azure":
            arrival: float = _value(_azure_time_ns, row[places[0]], path, line, columns[0])
        else:
            arrival = _value(_seconds, row[places[0]], path, line, columns[0])
        prompt = _value(_tokens, row[places[1]], path, line, columns[1])
        output = _value(_tokens, row[places[2]], path, line, columns[2])
        if prompt == 0 or output == 0:
            reason = f"{columns[1] if prompt == 0 else columns[2]} is 0"
            dropped[reason] = dropped.get(reason, 0) + 1
            continue
        arrivals.append(arrival)
        prompts.append(prompt)
        outputs.append(output)
    _check_rate(arrivals, dropped, path)
    times = np.array(arrivals)
    order = np.argsort(times, kind="stable")
    return Trace(
        path=path,
        format=chosen,
        sha256=hashlib.sha256(raw).hexdigest(),
        arrival_s=(times[order] - times[order[0]]) * (1e-9 if chosen == "azure" else 1.0),
        prompt_tokens=np.array(prompts, dtype=np.int64)[order],
        output_tokens=np.array(outputs, dtype=np.int64)[order],
        rows_read=len(arrivals) + sum(dropped.values()),
        dropped=dropped,
        out_of_order=int((times < np.maximum.accumulate(times)).sum()),
    )


def _check_rate(arrivals: Sequence[float], dropped: Mapping[str, int], path: Path) -> None:
    if len(arrivals) < 2 or min(arrivals) == max(arrivals):
        problem = f"{len(arrivals)} usable requests of {len(arrivals) + sum(dropped.values())} rows give no rate"
        raise InputError(f"{problem}; at least two at different times are needed", file=str(path))


def _json_lines(
    path: Path, raw: bytes, text: str, format: JsonlFormat, time_unit: TimeUnit | None, block_tokens: int | None
) -> Trace:
    unit, block = jsonl_facts(format, time_unit, block_tokens, path)
    arrivals, prompts, outputs, session, ids, dropped = read_jsonl(
        path, text, time_unit=unit, block_tokens=block, sessions=format == "bailian"
    )
    _check_rate(arrivals, dropped, path)
    times = np.array(arrivals)
    order = np.argsort(times, kind="stable")
    numbers = None
    if session is not None:
        numbers = np.unique(np.array(session, dtype=np.int64)[order], return_inverse=True)[1].astype(np.int64)
    return Trace(
        path=path,
        format=format,
        sha256=hashlib.sha256(raw).hexdigest(),
        arrival_s=times[order] - times[order[0]],
        prompt_tokens=np.array(prompts, dtype=np.int64)[order],
        output_tokens=np.array(outputs, dtype=np.int64)[order],
        rows_read=len(arrivals) + sum(dropped.values()),
        dropped=dropped,
        out_of_order=int((times < np.maximum.accumulate(times)).sum()),
        session=numbers,
        prefix_ids=ids.take(order) if ids is not None else None,
        prefix_block_tokens=block if ids is not None else None,
    )


def _text(path: Path) -> tuple[bytes, str]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        problem = f"the trace cannot be read ({error.strerror or type(error).__name__}); check the path"
        raise InputError(problem, file=str(path)) from None
    try:
        return raw, raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        problem = f"byte 0x{raw[error.start]:02x} is not UTF-8; save the trace as UTF-8 text"
        raise InputError(problem, file=str(path), line=line) from None


def _numbered_rows(reader: Iterator[list[str]], path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of every line that is not blank."""
    line = 0
    try:
        for row in reader:
            line = reader.line_num  # type: ignore[attr-defined]
            if any(cell.strip() for cell in row):
                yield line, row
    except csv.Error as error:
        raise InputError(f"not valid CSV: {error}; correct the line", file=str(path), line=line + 1) from None


def _format_of(names: list[str], wanted: TraceFormat | None, path: Path, line: int) -> TraceFormat:
    for name, columns in _COLUMNS.items():
        if (wanted is None or wanted == name) and all(column in names for column in columns):
            return name
    expected = " or ".join(",".join(columns) for name, columns in _COLUMNS.items() if wanted in (None, name))
    problem = f"the header {','.join(names)[:80]!r} is not known; it must name {expected}"
    if wanted != "azure" and "arrival_s" not in names and names != [""]:
        problem += "; the unit of time is stated by the name arrival_s (seconds), so convert other units first"
    raise InputError(problem, file=str(path), line=line)


def _value(parse: Callable[[str], Number], text: str, path: Path, line: int, column: str) -> Number:
    try:
        return parse(text.strip())
    except ValueError as error:
        raise InputError(str(error), file=str(path), line=line, key=column) from None


def _tokens(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 10 or int(text) > _MOST_TOKENS:
        raise ValueError(f"{text[:40]!r} is not a number of tokens; write a whole number from 0, or remove the line")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"{text[:40]!r} is not a time; write seconds from 0, e.g. 12.5, or remove the line")
    return seconds


def _azure_time_ns(text: str) -> int:
    """``2023-11-16 18:15:46.6805900`` in whole nanoseconds; a float of seconds, or `datetime`, loses decimals."""
    try:
        whole, _, decimals = text.partition(".")
        if len(decimals) > 9 or not (f"0{decimals}".isascii() and f"0{decimals}".isdecimal()):
            raise ValueError(decimals)
        return _whole_seconds(whole) * 1_000_000_000 + int(decimals.ljust(9, "0"))
    except ValueError:
        rule = "write date and time, e.g. 2023-11-16 18:15:46.6805900, or remove the line"
        raise ValueError(f"{text[:40]!r} is not a time; {rule}") from None


@lru_cache(maxsize=1024)
def _whole_seconds(text: str) -> int:
    moment = datetime.strptime(text, "%Y-%m-%d %H:%M:%S")
    if not 1900 <= moment.year <= 2200:
        raise ValueError(text)
    since = moment - datetime(2000, 1, 1)
    return since.days * 86_400 + since.seconds
