"""Everything that `profile fit` and `profile check` read measured rows from, and an account of every row read.

An input is a file or a folder (searched with its folders, in sorted order) of

- tidy CSV (`benchmark_rows.py`);
- `vllm bench serve --save-result` JSON and InferenceX's raw client file (`bench_serve_result.py`);
- InferenceX result rows in JSON (`inferencex_result.py`) and its weekly database dump (`inferencex_dump.py`).

What a result does not say about its run stands in files beside it or on the command line (`run_facts.py`). Of equal
rows one counts; of the runs of one published point of InferenceX the newest. Then Little's law judges every sweep
(`littles_law.py`). Rows read = rows kept + rows left out, by reason; files of a folder that are no results are named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from hardware_profiles.errors import InputError
from hardware_profiles.model import ModelCard, precision_name
from hardware_profiles.node import Node
from hardware_profiles.profile import NOT_STATED, is_date
from simulator.bench_serve_result import bench_serve_cells, is_bench_serve
from simulator.benchmark_rows import BenchmarkRow, NotRows, RowFile, is_complete, read_table, row_of, too_long
from simulator.inferencex_dump import dump_of, is_archive, read_dump
from simulator.inferencex_result import inferencex_cells, is_inferencex, is_published_row, point_of
from simulator.littles_law import judged_sweeps
from simulator.result_json import Record, read_json
from simulator.run_facts import facts_beside, is_facts_file

__all__ = ["Imported", "read_inputs"]

SUFFIXES = (".csv", ".json", ".jsonl")
PACKED = (".zip", ".gz", ".tgz", ".tar", ".xz", ".bz2")
WARM_UP = "warm-up-"
"""Begins the names of results that `profile measure` keeps but does not count."""
DIGITS = 9
"""Two rows are one run if they agree to so many digits: a client writes ms, an aggregate of the same run s."""
VERSIONS = 6
"""Most engine versions that a profile names."""
MOST_LINES = 20
"""Files named one by one."""
SOURCES = {
    "bench serve": "vllm bench serve --save-result",
    "inferencex": "SemiAnalysis InferenceX result rows",
    "dump": "SemiAnalysis InferenceX database dump",
}
INFERENCEX_CAVEAT = (
    "InferenceX rows do not say the server's flags: vLLM's defaults are assumed where no run.yaml states them."
)
FIXED_CAVEAT = "Runs that state no length range are taken to have sent prompts and answers of their mean lengths."


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Rows from any inputs, and what became of the others."""

    rows: tuple[BenchmarkRow, ...]
    """In the order of the inputs; variants and special runs among them are marked, not dropped."""
    read: int
    """Lines and results read, of every kind."""
    left_out: tuple[tuple[str, int], ...]
    """Reason and number, in the order of the reasons."""
    files: int
    """That held results."""
    not_read: tuple[str, ...] = ()
    """Files in folders that are no results, each with why."""

    def __post_init__(self) -> None:
        missing = self.read - len(self.rows) - sum(count for _, count in self.left_out)
        if missing:
            raise ValueError(f"{missing} of {self.read} rows are not accounted for")

    def used_for(self, *, node: Node, card: ModelCard, precision: str, engine: str, variant: str = "") -> Imported:
        """The rows that one profile can be compared with; the others are counted with their reasons."""
        reasons = Counter(dict(self.left_out))
        kept = []
        names = {name.lower() for name in (card.name, *card.aliases)}
        for row in self.rows:
            reason = _other(row, node, names, precision, engine, variant) or too_long(row, card)
            if reason:
                reasons[reason] += 1
            else:
                kept.append(row)
        return replace(self, rows=tuple(kept), left_out=tuple(sorted(reasons.items())))

    def account(self) -> Iterator[str]:
        """What was read, as people read it: totals, reasons, files that are no results."""
        rows, files = ("" if count == 1 else "s" for count in (self.read, self.files))
        yield f"read {self.read:,} row{rows} in {self.files:,} file{files}, kept {len(self.rows):,}"
        for reason, count in self.left_out:
            yield f"  {count:,} left out: {reason}"
        yield from _first(f"  not read: {text}" for text in self.not_read)

    def doubts(self) -> Iterator[str]:
        """The kept rows of less than full weight, and why."""
        for row in self.rows:
            if row.weight < 1:
                where = f"TP{row.tensor_parallel_size} {row.isl}/{row.osl} at {row.load}"
                yield f"  weight {row.weight:g}: {where}: {row.note or 'no reason stated'}"


def read_inputs(paths: Sequence[Path], *, given: Mapping[str, str] | None = None) -> Imported:
    """Every row of these files and folders; none at all is an `InputError`.

    `given` holds facts for results that do not say them, by the tidy CSV's column names (`run_facts.py`).
    """
    reader = _Reader(given or {})
    for path in paths:
        reader.read(path)
    rows = judged_sweeps(_grouped_files(reader.rows))
    if not rows and not reader.left_out:
        why = f": {reader.not_read[0]}" if reader.not_read else "; it must hold results of benchmark runs"
        raise InputError(f"nothing to read in {', '.join(map(str, paths)) or 'no file'}{why}")
    return Imported(
        rows=rows,
        read=len(rows) + reader.left_out.total(),
        left_out=tuple(sorted(reader.left_out.items())),
        files=reader.files,
        not_read=tuple(reader.not_read),
    )


def _first(lines: Iterable[str]) -> Iterator[str]:
    found = list(lines)
    yield from found[:MOST_LINES]
    if len(found) > MOST_LINES:
        yield f"  and {len(found) - MOST_LINES:,} more"


class _Reader:
    """State while inputs are read: rows so far, which are there already, and what was left out."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = given
        self.rows: list[BenchmarkRow] = []
        self.seen: set[tuple[str | float | None, ...]] = set()
        self.left_out: Counter[str] = Counter()
        self.not_read: list[str] = []
        self.files = 0

    def read(self, path: Path) -> None:
        if not path.exists():
            raise InputError("there is no such file or folder; check the spelling", file=str(path))
        if not path.is_dir():
            self.read_file(path, root=path)
            return
        for file in _files(path):
            aggregate = file.with_name(f"agg_{file.name}")
            if file.suffix == ".json" and aggregate.is_file():
                self.not_read.append(f"{file}: the raw file of {aggregate.name}")
                continue
            if file.name.startswith(WARM_UP):
                self.not_read.append(f"{file}: a warm-up")
                continue
            try:
                self.read_file(file, root=path)
            except NotRows as error:
                self.not_read.append(str(error))

    def read_file(self, path: Path, *, root: Path) -> None:
        if dump_of(path) or is_archive(path):
            self.add_records(read_dump(path), path, root, "dump")
        elif path.suffix == ".csv":
            rows, passed_over = read_table(path)
            self.left_out["no TPOT, TP, lengths or load"] += passed_over
            self.add(rows)
        elif path.suffix in PACKED:
            raise NotRows("is packed; unpack it and give the folder", file=str(path))
        elif path.suffix in SUFFIXES or not root.is_dir():
            self.add_records(_records(path), path, root, "inferencex")
        else:
            raise NotRows("is no CSV and no JSON", file=str(path))
        self.left_out = +self.left_out
        self.files += 1

    def add_records(self, records: Sequence[Record], path: Path, root: Path, kind: str) -> None:
        beside = facts_beside(path, root)
        newest, older = _newest(records)
        self.left_out["an older run of the same point"] += older
        for record in newest:
            if is_bench_serve(record):
                cells, source = bench_serve_cells(record, beside, self.given), SOURCES["bench serve"]
                caveat = FIXED_CAVEAT if isinstance(cells, dict) and cells["length_low"] == "1.0" else ""
            else:
                cells, source, caveat = inferencex_cells(record, beside), SOURCES[kind], INFERENCEX_CAVEAT
            if isinstance(cells, str):
                self.left_out[cells] += 1
            elif not is_complete(cells):
                self.left_out["no TPOT, TP, lengths or load"] += 1
            else:
                about = RowFile(path=str(root), source=(source,), caveat=(caveat,) if caveat else ())
                try:
                    self.add([row_of(cells, about)])
                except InputError as error:
                    raise InputError(error.problem, file=record.place, key=error.key) from None

    def add(self, rows: Iterable[BenchmarkRow]) -> None:
        for row in rows:
            key = _identity(row)
            if key in self.seen:
                self.left_out["the same run again"] += 1
            else:
                self.seen.add(key)
                self.rows.append(row)


def _records(path: Path) -> tuple[Record, ...]:
    try:
        records = read_json(path)
    except InputError as error:
        raise NotRows(error.problem, file=error.file, line=error.line, key=error.key) from None
    if strange := [record for record in records if not (is_bench_serve(record) or is_inferencex(record))]:
        known = "vllm bench serve --save-result, or an InferenceX result"
        raise NotRows(f"is no result known here ({known})", file=strange[0].place)
    return records


def _files(folder: Path) -> Iterator[Path]:
    """Files below a folder, and folders that hold a database; of an archive in parts only the first."""
    if dump_of(folder):
        yield folder
        return
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=str(folder)) from None
    for path in entries:
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
        elif not is_facts_file(path) and not path.name.startswith("."):
            part = path.suffix.removeprefix(".part")
            if not (part.isdigit() and int(part) > 0):
                yield path


def _newest(records: Sequence[Record]) -> tuple[list[Record], int]:
    """The records without the older runs of published points, and how many those are."""
    kept = [record for record in records if not is_published_row(record)]
    last: dict[tuple[str, ...], Record] = {}
    for record in records:
        if is_published_row(record):
            point = (*point_of(record), "failed" if record.text("error") else "")
            if point not in last or _age(last[point]) <= _age(record):
                last[point] = record
    return [*kept, *last.values()], len(records) - len(kept) - len(last)


def _age(record: Record) -> tuple[str, float]:
    return (record.text("date"), record.number("id") or 0.0)


def _identity(row: BenchmarkRow) -> tuple[str | float | None, ...]:
    values = (row.tpot_s, row.tokens_per_s, row.ttft_s, row.concurrency, row.request_rate_rps)
    what = (row.gpu.lower(), row.model.lower(), precision_name(row.precision), row.engine, row.variant, row.special)
    shape = (row.tensor_parallel_size, row.isl, row.osl, row.tpot_statistic)
    return (*what, *shape, *(None if value is None else float(f"{value:.{DIGITS}g}") for value in values))


def _grouped_files(rows: Sequence[BenchmarkRow]) -> Iterator[BenchmarkRow]:
    """Rows of result files with one description for all runs of an input that can make one profile."""

    def group(row: BenchmarkRow) -> tuple[str, ...]:
        return (row.file.path, *row.file.source, *row.file.caveat, row.gpu, row.model, row.precision, row.engine)

    for _, members in groupby(rows, key=lambda row: (row.file, group(row))):
        found = list(members)
        if found[0].file.source[:1] and found[0].file.source[0] in SOURCES.values():
            found = _described(found)
        yield from found


def _described(rows: Sequence[BenchmarkRow]) -> list[BenchmarkRow]:
    versions = sorted({row.engine_version for row in rows} - {""})
    dates = sorted({row.date for row in rows if is_date(row.date)})
    more = f" and {len(versions) - VERSIONS} more" if len(versions) > VERSIONS else ""
    about = replace(
        rows[0].file,
        engine_version=", ".join(versions[-VERSIONS:]) + more or NOT_STATED,
        as_of=dates[-1] if dates else NOT_STATED,
        tier="dated single runs" if dates and all(row.date for row in rows) else "pooled medians",
    )
    return [replace(row, file=about) for row in rows]


def _other(row: BenchmarkRow, node: Node, names: set[str], precision: str, engine: str, variant: str) -> str:
    """Why a row is not of this profile; "" = it is."""
    if row.gpu.lower() != node.name:
        return f"another GPU ({row.gpu})"
    if row.model.lower() not in names:
        return f"another model ({row.model})"
    if precision_name(row.precision) != precision_name(precision):
        return f"another precision ({row.precision})"
    if row.engine != engine:
        return f"another engine ({row.engine})"
    if row.tensor_parallel_size > node.gpus_per_server:
        return f"TP {row.tensor_parallel_size}, on more GPUs than a server has"
    if row.special:
        return row.special
    if row.variant != variant:
        return f"another variant ({row.variant or 'plain'})"
    return ""
