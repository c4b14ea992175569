"""Measured points of closed-loop benchmarks, as people publish them: one CSV line is one run or a median over runs.

Columns (others are ignored; empty = not known): `gpu, model, precision, framework, tp, isl, osl, max_concurrency`,
`tpot_median_ms` and `total_tps_per_gpu` (input and output tokens per second over the whole run) are required;
`spec_decode, disagg, ep, dp_attention, request_rate` tell special runs apart; `max_num_batched_tokens, max_num_seqs,
gpu_memory_utilization, block_size, kv_cache_dtype, all_reduce_quantization` are the server's flags, with defaults of
vLLM's in that period; `weight` and `weight_note` down-weight a row by hand. Lines before the header that start with
`#` describe the file: `# source: …`, `# caveat: …`, `# serves: a, b`, `# engine_version: …`, `# as_of: …`.

`qa_decode_occupancy` is Little's law inside a row: output tokens/s x TPOT / concurrency, the share of its time that a
request decodes. Outside 0.80-1.05 the two numbers cannot come from one run, so the row gets a tenth of the weight.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hardware_profiles.errors import InputError
from hardware_profiles.model import ModelCard, precision_name
from hardware_profiles.node import Node

__all__ = ["BenchmarkRow", "RowFile", "left_out", "read_rows", "select_rows"]

REQUIRED = (
    "gpu",
    "model",
    "precision",
    "framework",
    "tp",
    "isl",
    "osl",
    "max_concurrency",
    "tpot_median_ms",
    "total_tps_per_gpu",
)
OCCUPANCY_RANGE = (0.80, 1.05)
SUSPECT_WEIGHT = 0.1
NOTES = {"source": True, "caveat": True, "serves": True, "engine_version": False, "as_of": False}
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
    engine_version: str = "not stated"
    as_of: str = "not stated"
    """Date of the newest run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRow:
    """One measured point: a replica under a closed loop."""

    gpu: str
    model: str
    precision: str
    framework: str
    tensor_parallel_size: int
    isl: int
    """Nominal prompt length in tokens."""
    osl: int
    """Nominal answer length in tokens."""
    concurrency: int
    """Requests in flight."""
    tpot_s: float
    """Median over requests."""
    tokens_per_s: float
    """Input and output tokens per second of the replica, from the first send to the last token."""
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 1024
    gpu_memory_utilization: float = 0.9
    block_size: int = 16
    kv_cache_dtype: str = "auto"
    all_reduce_bits: float = 16.0
    """Bits per value on the links in large all-reduces: 4.5 with ROCm quick reduce in INT4 (values and scales)."""
    weight: float = 1.0
    """1 = full weight in the fit; less = down-weighted, and `note` says why."""
    note: str = ""
    special: str = ""
    """Why the row is no plain tensor-parallel run; empty = plain."""
    file: RowFile = field(default_factory=lambda: RowFile(path=""))


def read_rows(path: Path) -> tuple[BenchmarkRow, ...]:
    """Every row of a tidy CSV that holds both metrics and a concurrency; special runs are marked, not dropped."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", file=str(path)) from None
    start = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    about = _about(path, lines[:start])
    table = csv.DictReader(lines[start:], strict=True)
    missing = [name for name in REQUIRED if name not in (table.fieldnames or ())]
    if missing:
        raise InputError(f"has no column {', '.join(missing)}; it needs {', '.join(REQUIRED)}", file=str(path))
    rows: list[BenchmarkRow] = []
    try:
        for cells in table:
            number = start + table.line_num
            if None in cells or None in cells.values():
                raise InputError("has more or fewer fields than the header", file=str(path), line=number)
            if all(cells[name] for name in ("tp", "max_concurrency", "tpot_median_ms", "total_tps_per_gpu")):
                rows.append(_row(cells, about, number))
    except csv.Error as error:
        raise InputError(f"is no CSV: {error}", file=str(path), line=start + table.line_num) from None
    return tuple(rows)


def select_rows(
    rows: Iterable[BenchmarkRow], *, node: Node, card: ModelCard, precision: str, engine: str
) -> tuple[BenchmarkRow, ...]:
    """The plain rows of this node, model, precision and engine, in a fixed order; none at all is an `InputError`."""
    wanted = [row for row in _of(rows, node, card, precision, engine) if not row.special]
    if not wanted:
        raise InputError(
            f"no row of {card.name} in {precision_name(precision)} on {node.name} with {engine}; "
            "check the columns gpu, model, precision and framework"
        )
    return tuple(sorted(wanted, key=lambda r: (r.tensor_parallel_size, r.isl, r.osl, r.concurrency, r.tpot_s)))


def left_out(
    rows: Iterable[BenchmarkRow], *, node: Node, card: ModelCard, precision: str, engine: str
) -> tuple[str, ...]:
    """What `select_rows` leaves out of the rows of this model, counted by reason."""
    reasons = Counter(row.special for row in _of(rows, node, card, precision, engine) if row.special)
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
        and row.framework.lower() == engine
    ]


def _about(path: Path, lines: Sequence[str]) -> RowFile:
    found: dict[str, list[str]] = {key: [] for key in NOTES}
    for number, line in enumerate(lines, start=1):
        key, colon, text = line.lstrip("# ").partition(":")
        if colon and key in found:
            found[key].append(text.strip())
            if len(found[key]) > 1 and not NOTES[key]:
                raise InputError(f"{key} stands twice; give it once", file=str(path), line=number)
    serves = tuple(name.strip() for text in found["serves"] for name in text.split(","))
    return RowFile(
        path=str(path),
        source=tuple(found["source"]),
        caveat=tuple(found["caveat"]),
        serves=serves,
        engine_version=(found["engine_version"] or ["not stated"])[0],
        as_of=(found["as_of"] or ["not stated"])[0],
    )


def _row(cells: dict[str, str], about: RowFile, line: int) -> BenchmarkRow:
    def number(name: str, default: float | None = None) -> float:
        text = cells.get(name, "")
        if not text and default is not None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise InputError(
                f"{text!r} is not allowed; it must be a number above 0", file=about.path, line=line, key=name
            )
        return value

    tp = int(number("tp"))
    row = BenchmarkRow(
        gpu=cells["gpu"],
        model=cells["model"],
        precision=cells["precision"],
        framework=cells["framework"],
        tensor_parallel_size=tp,
        isl=int(number("isl")),
        osl=int(number("osl")),
        concurrency=int(number("max_concurrency")),
        tpot_s=number("tpot_median_ms") / 1e3,
        tokens_per_s=number("total_tps_per_gpu") * tp,
        max_num_batched_tokens=int(number("max_num_batched_tokens", 8192)),
        max_num_seqs=int(number("max_num_seqs", 1024)),
        gpu_memory_utilization=number("gpu_memory_utilization", 0.9),
        block_size=int(number("block_size", 16)),
        kv_cache_dtype=cells.get("kv_cache_dtype") or "auto",
        all_reduce_bits={"": 16.0, "none": 16.0, "int4": 4.5}.get(cells.get("all_reduce_quantization", ""), 16.0),
        weight=number("weight", 1.0),
        note=cells.get("weight_note", ""),
        special=_special(cells),
        file=about,
    )
    low, high = OCCUPANCY_RANGE
    share = row.tokens_per_s * row.osl / (row.isl + row.osl) * row.tpot_s / row.concurrency
    if not low <= share <= high:
        note = f"decode occupancy {share:.2f} outside {low:.2f}-{high:.2f}: TPOT and throughput are not of one run"
        row = replace(row, weight=min(row.weight, SUSPECT_WEIGHT), note="; ".join(filter(None, (row.note, note))))
    return row


def _special(cells: dict[str, str]) -> str:
    def is_set(name: str, plain: tuple[str, ...]) -> bool:
        return (cells.get(name) or plain[0]).lower() not in plain

    checks = (
        ("speculative decoding", is_set("spec_decode", ("none", "0"))),
        ("disaggregated", is_set("disagg", ("0", "0.0", "false"))),
        ("expert parallel", is_set("ep", ("1", "1.0"))),
        ("data-parallel attention", is_set("dp_attention", ("0", "0.0", "false"))),
        ("open loop", is_set("request_rate", ("inf",))),
    )
    return next((reason for reason, found in checks if found), "")
