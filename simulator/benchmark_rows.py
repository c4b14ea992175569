"""Measured points of serving benchmarks, as people publish them: one CSV line is one run or a median over runs.

Columns (others are ignored; empty = not known):

- `gpu, model, precision, framework, tp, isl, osl` are required, and the load: `max_concurrency` requests in flight, or
  a finite `request_rate` in requests/s (`inf` or empty = closed loop);
- measured: `tpot_median_ms`, else `tpot_mean_ms` (required); `total_tps_per_gpu`, input and output tokens per second
  and GPU over the whole run (ignored in an open loop: below saturation it only repeats the rate); `ttft_median_ms`,
  else `ttft_mean_ms`;
- the protocol: `num_requests` (default: 10 for each request in flight), `length_low` and `length_high`: request lengths
  are uniform between these shares of `isl` and `osl` (default 0.8 and 1.0, as InferenceX; vLLM's `--random-range-ratio`
  r is 1 - r and 1 + r);
- the server: `max_num_batched_tokens, max_num_seqs, gpu_memory_utilization, block_size, kv_cache_dtype,
  async_scheduling, all_reduce_quantization`, with vLLM's defaults; `kv_cache_tokens` as its log printed them replaces
  the memory formula; `spec_decode, disagg, ep, dp_attention` tell variants and special runs apart;
- provenance: `date, framework_version`; `weight` and `weight_note` down-weight a row by hand (0 leaves it out, the
  note says why), a `quality_flag` does so to a tenth.

Lines before the header that start with `#` describe the file: `# source: …`, `# caveat: …`, `# serves: a, b`,
`# engine_version: …`, `# as_of: …`, `# tier: …`, and `# engine: …`, the engine's word where `framework` is not enough.

Little's law holds inside a row; one that breaks it gets a tenth of the weight (`littles_law.py`).
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from hardware_profiles.errors import InputError
from hardware_profiles.model import ModelCard, precision_name
from hardware_profiles.node import Node
from hardware_profiles.profile import TIERS, Tier
from simulator.littles_law import decode_occupancy, judged, suspect

__all__ = [
    "METRICS",
    "BenchmarkRow",
    "NotRows",
    "RowFile",
    "decode_occupancy",
    "is_complete",
    "left_out",
    "only_precision",
    "read_rows",
    "read_table",
    "row_of",
    "select_rows",
]

REQUIRED = (
    "gpu",
    "model",
    "precision",
    "framework",
    "tp",
    "isl",
    "osl",
)
TPOT = ("tpot_median_ms", "tpot_mean_ms")
TTFT = ("ttft_median_ms", "ttft_mean_ms")
LOAD = ("max_concurrency", "request_rate")
METRICS = ("tpot", "throughput", "ttft")
"""What a row may hold, in the order of arrays of metrics."""
TOO_LARGE = 1e12
MOST = 10_000_000
"""Largest length, load, number of requests or flag that is taken for meant."""
Statistic = Literal["median", "mean"]
NOTES = {
    "source": True,
    "caveat": True,
    "serves": True,
    "engine_version": False,
    "as_of": False,
    "tier": False,
    "engine": False,
}
"""Keys of the lines before the header; True = may stand more than once."""


class NotRows(InputError):
    """A file that holds no rows at all, which is no mistake where a folder was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFile:
    """What a file of rows says about itself."""

    path: str
    """As the user gave it."""
    source: tuple[str, ...] = ()
    caveat: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()
    """Model cards of the same shape that the rows hold for."""
    engine_version: str = "not stated"
    as_of: str = "not stated"
    """Date of the newest run."""
    tier: Tier = "pooled medians"
    """Provenance: *dated single runs* stand above *pooled medians* over versions and months."""
    engine: str | None = None
    """The engine's word in profile names; None = the rows' `framework`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRow:
    """One benchmark run: what was asked of the server, how it was loaded, and what the client measured."""

    gpu: str
    model: str
    precision: str
    framework: str
    tensor_parallel_size: int
    isl: int
    """Nominal prompt length in tokens."""
    osl: int
    """Nominal answer length in tokens."""
    concurrency: int | None
    """Requests in flight; None = an open loop."""
    tpot_s: float
    tokens_per_s: float | None
    """Input and output tokens per second of the replica, from the first send to the last token; None = not known."""
    ttft_s: float | None = None
    tpot_statistic: Statistic = "median"
    """Over requests."""
    ttft_statistic: Statistic = "median"
    request_rate_rps: float | None = None
    """Poisson arrivals; None = a closed loop."""
    requests: int | None = None
    """Requests of the run; None = not stated."""
    length_low: float = 0.8
    """Shortest prompt and answer, as shares of the nominal ones."""
    length_high: float = 1.0
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 1024
    gpu_memory_utilization: float = 0.9
    block_size: int = 16
    kv_cache_dtype: str = "auto"
    kv_cache_tokens: int | None = None
    """As the server's log printed them; None = by the memory formula."""
    async_scheduling: bool = True
    all_reduce_bits: float = 16.0
    """Bits per value on the links in large all-reduces: 4.5 with ROCm quick reduce in INT4 (values and scales)."""
    date: str = ""
    engine_version: str = ""
    weight: float = 1.0
    """1 = full weight in the fit; less = down-weighted, and `note` says why."""
    note: str = ""
    variant: str = ""
    """What makes it a profile of its own: `mtp`, `ep8`, `dpa` (data-parallel attention), joined by -; empty = plain."""
    special: str = ""
    """Why no profile can be fitted from it; empty = it can."""
    file: RowFile = field(default_factory=lambda: RowFile(path=""))

    @property
    def load(self) -> str:
        """How hard the server was driven, in words."""
        if self.request_rate_rps is not None:
            return f"{self.request_rate_rps:g}/s"
        return str(self.concurrency)

    @property
    def engine(self) -> str:
        """The engine's word in profile names."""
        return (self.file.engine or self.framework).lower()


def read_rows(path: Path) -> tuple[BenchmarkRow, ...]:
    """Every row of a tidy CSV that holds a load and its metrics; special runs are marked, not dropped."""
    return read_table(path)[0]


def read_table(path: Path) -> tuple[tuple[BenchmarkRow, ...], int]:
    """`read_rows`, and how many lines were passed over because they lack lengths, load, TP or TPOT."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise NotRows(f"cannot be read: {error}", file=str(path)) from None
    start = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    about = _about(path, lines[:start])
    table = csv.DictReader(lines[start:], strict=True)
    columns = table.fieldnames or ()
    missing = [name for name in REQUIRED if name not in columns]
    missing += [" or ".join(names) for names in (LOAD, TPOT) if not set(names) & set(columns)]
    if missing:
        raise NotRows(f"has no column {', '.join(missing)}; it needs {', '.join(REQUIRED)}", file=str(path))
    rows: list[BenchmarkRow] = []
    passed_over = 0
    try:
        for cells in table:
            number = start + table.line_num
            if None in cells or None in cells.values():
                raise InputError("has more or fewer fields than the header", file=str(path), line=number)
            if is_complete(cells):
                rows.append(row_of(cells, about, number))
            else:
                passed_over += 1
    except csv.Error as error:
        raise InputError(f"is no CSV: {error}", file=str(path), line=start + table.line_num) from None
    return tuple(rows), passed_over


def select_rows(
    rows: Iterable[BenchmarkRow], *, node: Node, card: ModelCard, precision: str, engine: str, variant: str = ""
) -> tuple[BenchmarkRow, ...]:
    """The rows of this node, model, precision, engine and variant, in a fixed order; none at all is an `InputError`."""
    wanted = [row for row in _of(rows, node, card, precision, engine) if not row.special and row.variant == variant]
    if not wanted:
        which = f"{engine}-{variant}" if variant else engine
        raise InputError(
            f"no row of {card.name} in {precision_name(precision)} on {node.name} with {which}; "
            "check the columns gpu, model, precision and framework"
        )
    return tuple(sorted(wanted, key=_order))


def _order(row: BenchmarkRow) -> tuple[float, ...]:
    load = row.request_rate_rps if row.concurrency is None else row.concurrency
    return (row.tensor_parallel_size, row.isl, row.osl, load or 0.0, row.tpot_s)


def only_precision(rows: Iterable[BenchmarkRow], *, card: ModelCard, engine: str) -> str:
    """The one precision in which the rows serve a model; none or several is an `InputError`."""
    names = {name.lower() for name in (card.name, *card.aliases)}
    found = {precision_name(row.precision) for row in rows if row.model.lower() in names and row.engine == engine}
    if len(found) == 1:
        return found.pop()
    if found:
        raise InputError(f"the rows of {card.name} are in {', '.join(sorted(found))}; choose one with --precision")
    raise InputError(f"no row of {card.name} with {engine}; check the columns model and framework")


def left_out(
    rows: Iterable[BenchmarkRow], *, node: Node, card: ModelCard, precision: str, engine: str, variant: str = ""
) -> tuple[str, ...]:
    """What `select_rows` leaves out of the rows of this model, counted by reason."""
    found = [row for row in _of(rows, node, card, precision, engine) if row.special or row.variant != variant]
    reasons = Counter(row.special or f"variant {row.variant or 'plain'}" for row in found)
    return tuple(f"{count} rows left out: {reason}" for reason, count in sorted(reasons.items()))


def _of(
    rows: Iterable[BenchmarkRow], node: Node, card: ModelCard, precision: str, engine: str
) -> Sequence[BenchmarkRow]:
    names = {name.lower() for name in (card.name, *card.aliases)}
    return [
        row
        for row in rows
        if row.gpu.lower() == node.name
        and row.model.lower() in names
        and precision_name(row.precision) == precision_name(precision)
        and row.engine == engine
        and row.tensor_parallel_size <= node.gpus_per_server
    ]


def _about(path: Path, lines: Sequence[str]) -> RowFile:
    found: dict[str, list[str]] = {key: [] for key in NOTES}
    for number, line in enumerate(lines, start=1):
        key, colon, text = line.lstrip("# ").partition(":")
        if colon and key in found:
            found[key].append(text.strip())
            if len(found[key]) > 1 and not NOTES[key]:
                raise InputError(f"{key} stands twice; give it once", file=str(path), line=number)
    stated = (found["tier"] or ["pooled medians"])[0]
    tier = next((tier for tier in TIERS if tier == stated), None)
    if tier is None:
        raise InputError(f"{stated!r} is no tier; it must be one of: {', '.join(TIERS)}", file=str(path))
    serves = tuple(name.strip() for text in found["serves"] for name in text.split(","))
    return RowFile(
        path=str(path),
        source=tuple(found["source"]),
        caveat=tuple(found["caveat"]),
        serves=serves,
        engine_version=(found["engine_version"] or ["not stated"])[0],
        as_of=(found["as_of"] or ["not stated"])[0],
        tier=tier,
        engine=found["engine"][0] if found["engine"] else None,
    )


def is_complete(cells: Mapping[str, str]) -> bool:
    """Whether a line holds what a prediction can be compared with; other lines of a mixed file are passed over."""
    return (
        bool(cells["tp"] and cells["isl"] and cells["osl"])
        and any(cells.get(name) for name in TPOT)
        and (_is_open(cells) or bool(cells.get("max_concurrency")))
    )


def _is_open(cells: Mapping[str, str]) -> bool:
    text = (cells.get("request_rate") or "inf").lower()
    return text not in ("inf", "infinity") and not text.startswith("closed")


def row_of(cells: Mapping[str, str], about: RowFile, line: int | None = None) -> BenchmarkRow:
    """One row from the columns above, as text; a value out of range is an `InputError` that names the column."""

    def number(name: str, default: float | None = None) -> float:
        text = cells.get(name, "")
        if not text and default is not None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and 0 < value < TOO_LARGE):
            raise InputError(
                f"{text!r} is not allowed; it must be a number above 0 and below {TOO_LARGE:g}",
                file=about.path,
                line=line,
                key=name,
            )
        return value

    def whole(name: str, default: float | None = None, most: float = MOST) -> int:
        value = number(name, default)
        if not 1 <= value <= most or value != int(value):
            problem = f"{cells[name]!r} is not allowed; it must be a whole number from 1 to {most:,.0f}"
            raise InputError(problem, file=about.path, line=line, key=name)
        return int(value)

    def length(name: str) -> int:
        value = number(name)
        if not 1 <= value <= MOST:
            problem = f"{cells[name]!r} is not allowed; it must be a number of tokens from 1 to {MOST:,}"
            raise InputError(problem, file=about.path, line=line, key=name)
        return int(value)

    def optional(name: str) -> float | None:
        return number(name) if cells.get(name) else None

    tp = whole("tp")
    tpot = next(name for name in TPOT if cells.get(name))
    ttft = next((name for name in TTFT if cells.get(name)), TTFT[0])
    per_gpu = optional("total_tps_per_gpu")
    rate = number("request_rate") if _is_open(cells) else None
    ttft_ms = optional(ttft)
    row = BenchmarkRow(
        gpu=cells["gpu"],
        model=cells["model"],
        precision=cells["precision"],
        framework=cells["framework"],
        tensor_parallel_size=tp,
        isl=length("isl"),
        osl=length("osl"),
        concurrency=whole("max_concurrency") if rate is None else None,
        request_rate_rps=rate,
        tpot_s=number(tpot) / 1e3,
        tpot_statistic="median" if tpot == TPOT[0] else "mean",
        tokens_per_s=per_gpu * tp if per_gpu is not None and rate is None else None,
        ttft_s=ttft_ms / 1e3 if ttft_ms is not None else None,
        ttft_statistic="median" if ttft == TTFT[0] else "mean",
        requests=whole("num_requests") if cells.get("num_requests") else None,
        length_low=number("length_low", 0.8),
        length_high=number("length_high", 1.0),
        max_num_batched_tokens=whole("max_num_batched_tokens", 8192),
        max_num_seqs=whole("max_num_seqs", 1024),
        gpu_memory_utilization=number("gpu_memory_utilization", 0.9),
        block_size=whole("block_size", 16),
        kv_cache_dtype=cells.get("kv_cache_dtype") or "auto",
        kv_cache_tokens=whole("kv_cache_tokens", most=TOO_LARGE) if cells.get("kv_cache_tokens") else None,
        async_scheduling=_is_true(cells, "async_scheduling", about, line),
        all_reduce_bits={"": 16.0, "none": 16.0, "int4": 4.5}.get(cells.get("all_reduce_quantization", ""), 16.0),
        date=cells.get("date", ""),
        engine_version=cells.get("framework_version", ""),
        weight=0.0 if cells.get("weight") in ("0", "0.0") else number("weight", 1.0),
        note=cells.get("weight_note", ""),
        variant=_variant(cells),
        special=_special(cells),
        file=about,
    )
    if row.length_low > row.length_high:
        raise InputError(
            f"{row.length_low:g} is above length_high {row.length_high:g}; the shortest comes first",
            file=about.path,
            line=line,
            key="length_low",
        )
    if row.weight == 0.0:
        return replace(row, special=row.special or row.note or "of weight 0")
    if flag := cells.get("quality_flag"):
        row = suspect(row, flag)
    return judged(row)


def _is_true(cells: Mapping[str, str], name: str, about: RowFile, line: int | None) -> bool:
    text = (cells.get(name) or "true").lower()
    if text not in ("true", "false", "1", "0"):
        raise InputError(f"{text!r} is not allowed; it must be true or false", file=about.path, line=line, key=name)
    return text in ("true", "1")


def _is_set(cells: Mapping[str, str], name: str, plain: tuple[str, ...]) -> bool:
    return (cells.get(name) or plain[0]).lower() not in plain


def _variant(cells: Mapping[str, str]) -> str:
    parts = []
    if _is_set(cells, "spec_decode", ("none", "0")):
        parts.append(cells["spec_decode"].lower())
    if _is_set(cells, "ep", ("1", "1.0")):
        parts.append(f"ep{cells['ep'].removesuffix('.0')}")
    if _is_set(cells, "dp_attention", ("0", "0.0", "false")):
        parts.append("dpa")
    return "-".join(parts)


def _special(cells: Mapping[str, str]) -> str:
    if (cells.get("scenario") or "").lower().startswith("agentic"):
        return "agentic trace replay: no nominal ISL and OSL"
    if _is_set(cells, "disagg", ("0", "0.0", "false")):
        return "disaggregated"
    if _is_set(cells, "multinode", ("0", "0.0", "false")):
        return "several nodes"
    if _is_open(cells) and cells.get("max_concurrency"):
        return "open loop under a concurrency cap"
    return ""
