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

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from hardware_profiles.errors import InputError
from hardware_profiles.model import ModelCard, precision_name
from hardware_profiles.node import Node
from hardware_profiles.profile import NOT_STATED, TIERS, Tier, is_date
from simulator.littles_law import decode_occupancy, judged, suspect
from simulator.row_cells import FALSE, MOST_CONCURRENCY, MOST_REQUESTS, Cells
from simulator.tidy_csv import NotRows, read_tidy_csv

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
    "too_long",
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
SHARES = (1e-6, 1e3)
"""Least and most that a length range may be of the nominal length."""
MOST_BLOCK_SIZE = 1024
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFile:
    """What a file of rows says about itself."""

    path: str
    """As the user gave it."""
    source: tuple[str, ...] = ()
    caveat: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()
    """Model cards of the same shape that the rows hold for."""
    engine_version: str = NOT_STATED
    as_of: str = NOT_STATED
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
    table = read_tidy_csv(path, [*((name,) for name in REQUIRED), LOAD, TPOT])
    about = _about(path, table.notes)
    rows = tuple(row_of(cells, about, line) for line, cells in table.records if is_complete(cells))
    return rows, len(table.records) - len(rows)


def select_rows(
    rows: Iterable[BenchmarkRow], *, node: Node, card: ModelCard, precision: str, engine: str, variant: str = ""
) -> tuple[BenchmarkRow, ...]:
    """The rows of this node, model, precision, engine and variant, in a fixed order; none at all is an `InputError`."""
    found = _of(rows, node, card, precision, engine)
    wanted = [row for row in found if not _reason(row, card, variant)]
    if not wanted:
        which = f"{engine}-{variant}" if variant else engine
        omitted = left_out(rows, node=node, card=card, precision=precision, engine=engine, variant=variant)
        cure = "check the columns gpu, model, precision and framework"
        if found:
            cure = f"{', '.join(omitted)}; give rows without these reasons, or another --variant"
        raise InputError(
            f"no row of {card.name} in {precision_name(precision)} on {node.name} with {which} can be fitted; {cure}"
        )
    return tuple(sorted(wanted, key=_order))


def too_long(row: BenchmarkRow, card: ModelCard) -> str:
    """Why no server of this model can have run the row; "" = it can."""
    longest = int(row.length_high * row.isl) + int(row.length_high * row.osl)
    if longest <= card.max_model_len:
        return ""
    return f"longer than the {card.max_model_len:,} tokens that {card.name} was made for"


def _reason(row: BenchmarkRow, card: ModelCard, variant: str) -> str:
    other = f"variant {row.variant or 'plain'}" if row.variant != variant else ""
    return row.special or other or too_long(row, card)


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
    reasons = Counter(_reason(row, card, variant) for row in _of(rows, node, card, precision, engine))
    return tuple(
        f"{count} row{'' if count == 1 else 's'} left out: {reason}"
        for reason, count in sorted(reasons.items())
        if reason
    )


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


def _about(path: Path, lines: Sequence[tuple[int, str]]) -> RowFile:
    found: dict[str, list[str]] = {key: [] for key in NOTES}
    for number, line in lines:
        key, colon, text = line.lstrip("# ").partition(":")
        if colon and key in found:
            found[key].append(text.strip())
            if len(found[key]) > 1 and not NOTES[key]:
                raise InputError(f"{key} stands twice; give it once", file=str(path), line=number)
            if key == "as_of" and not is_date(text.strip()) and text.strip() not in ("", NOT_STATED):
                problem = f"{text.strip()!r} is no date; write YYYY-MM-DD, or leave the line out"
                raise InputError(problem, file=str(path), line=number, key=key)
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
        engine_version=(found["engine_version"] or [NOT_STATED])[0],
        as_of=(found["as_of"] or [""])[0] or NOT_STATED,
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
    found = Cells(cells=cells, file=about.path, line=line)
    tp = found.whole("tp", most=1024)
    tpot = next(name for name in TPOT if cells.get(name))
    ttft = next((name for name in TTFT if cells.get(name)), TTFT[0])
    rate = found.number("request_rate", 1e-6, 1e6, what="inf, or requests/s") if _is_open(cells) else None
    per_gpu = found.number("total_tps_per_gpu", 1e-3, 1e9, what="tokens/s") if cells.get("total_tps_per_gpu") else None
    row = BenchmarkRow(
        gpu=cells["gpu"],
        model=cells["model"],
        precision=cells["precision"],
        framework=cells["framework"],
        tensor_parallel_size=tp,
        isl=found.length("isl", 1),
        osl=found.length("osl", 2),
        concurrency=found.whole("max_concurrency", most=MOST_CONCURRENCY) if rate is None else None,
        request_rate_rps=rate,
        tpot_s=found.latency_s(tpot),
        tpot_statistic="median" if tpot == TPOT[0] else "mean",
        tokens_per_s=per_gpu * tp if per_gpu is not None and rate is None else None,
        ttft_s=found.latency_s(ttft) if cells.get(ttft) else None,
        ttft_statistic="median" if ttft == TTFT[0] else "mean",
        requests=found.whole("num_requests", most=MOST_REQUESTS) if cells.get("num_requests") else None,
        length_low=found.number("length_low", *SHARES, 0.8),
        length_high=found.number("length_high", *SHARES, 1.0),
        max_num_batched_tokens=found.whole("max_num_batched_tokens", 8192),
        max_num_seqs=found.whole("max_num_seqs", 1024),
        gpu_memory_utilization=found.number("gpu_memory_utilization", 0.01, 1.0, 0.9, what="a share"),
        block_size=found.whole("block_size", 16, most=MOST_BLOCK_SIZE),
        kv_cache_dtype=found.kv_cache_dtype(),
        kv_cache_tokens=found.whole("kv_cache_tokens", most=1e12) if cells.get("kv_cache_tokens") else None,
        async_scheduling=found.flag("async_scheduling", True),
        all_reduce_bits=found.all_reduce_bits(),
        date=cells.get("date", ""),
        engine_version=cells.get("framework_version", ""),
        weight=found.weight(),
        note=cells.get("weight_note", ""),
        variant=_variant(found),
        special=_special(found),
        file=about,
    )
    if row.length_low > row.length_high:
        problem = f"{row.length_low:g} is above length_high {row.length_high:g}; the shortest comes first"
        raise found.error(problem, "length_low")
    if row.weight == 0.0:
        return replace(row, special=row.special or row.note or "of weight 0")
    if flag := cells.get("quality_flag"):
        row = suspect(row, flag)
    return judged(row)


def _variant(cells: Cells) -> str:
    parts = []
    if (kind := cells.text("spec_decode").lower()) not in ("", *FALSE):
        parts.append(kind)
    if (ranks := cells.expert_ranks()) > 1:
        parts.append(f"ep{ranks}")
    if cells.flag("dp_attention", False):
        parts.append("dpa")
    return "-".join(parts)


def _special(cells: Cells) -> str:
    if cells.text("scenario").lower().startswith("agentic"):
        return "agentic trace replay: no nominal ISL and OSL"
    if cells.flag("disagg", False):
        return "disaggregated"
    if cells.flag("multinode", False):
        return "several nodes"
    if _is_open(cells.cells) and cells.text("max_concurrency"):
        return "open loop under a concurrency cap"
    return ""
