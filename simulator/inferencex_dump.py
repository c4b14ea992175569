"""The weekly database dump of InferenceX: GitHub release `db-dump/YYYY-MM-DD` of SemiAnalysisAI/InferenceX-app.

The release holds one PostgreSQL archive in parts (`.github/workflows/db-backup.yml` @84fcc7c: `pg_dump --format=custom
--compress=none | zstd -19 --long=27 | split`), `inferencex-DATE.dump.zst.part00`, …. Two of its tables matter
(`packages/db/migrations/001_initial_schema.sql`): `configs` (GPU, framework, model, precision, parallelism) and
`benchmark_results` (`config_id, isl, osl, conc, image, date, error, metrics` as JSON). Joined, a row has the shape of
the site's API. They are read from

- the parts, or the archive (`.dump`): `zstd` and `pg_restore` are run, no server is needed;
- the SQL text that `pg_restore --data-only -t configs -t benchmark_results -f FILE.sql` writes;
- a folder with both tables as `.json` (the project's own `admin:db:dump`, `packages/db/src/dump-db.ts`) or as `.csv`
  (`\\copy configs to 'configs.csv' csv header`).

The table keeps every run of a point; the newest one counts, as on the site (view `latest_benchmarks`).
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from hardware_profiles.errors import InputError
from simulator.result_json import JsonValue, Record, read_json

__all__ = ["dump_of", "is_archive", "read_dump"]

TABLES = ("configs", "benchmark_results")
BOOLEANS = ("disagg", "is_multinode", "prefill_dp_attention", "decode_dp_attention")
COPY = re.compile(r"COPY (?:\w+\.)?(\w+) \((.*)\) FROM stdin;")
ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
PART = re.compile(r".*\.zst(\.part\d+)?")
LARGEST_CELL = 1 << 27
Table = list[dict[str, JsonValue]]


def is_archive(path: Path) -> bool:
    """Whether a file is a database archive, a part of one, or the SQL text of one."""
    return path.suffix in (".dump", ".sql") or bool(PART.fullmatch(path.name))


def dump_of(folder: Path) -> bool:
    """Whether a folder holds the two tables as files."""
    return any(all((folder / f"{table}{suffix}").is_file() for table in TABLES) for suffix in (".json", ".csv"))


def read_dump(path: Path) -> tuple[Record, ...]:
    """Every benchmark result with its configuration, from a file or folder that one of the tests above accepts."""
    if path.is_dir():
        suffix = ".json" if (path / "configs.json").is_file() else ".csv"
        read = _json_table if suffix == ".json" else _csv_table
        tables = {table: read(path / f"{table}{suffix}") for table in TABLES}
    elif path.suffix == ".sql":
        try:
            with path.open(encoding="utf-8") as lines:
                tables = _sql_tables(lines, str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot be read: {error}", file=str(path)) from None
    else:
        tables = _restored(path)
    for table in TABLES:
        if table not in tables:
            raise InputError(f"holds no table {table}; it needs {' and '.join(TABLES)}", file=str(path))
    configs = {str(row.get("id")): row for row in tables["configs"]}
    return tuple(_joined(row, configs, str(path)) for row in tables["benchmark_results"])


def _joined(row: dict[str, JsonValue], configs: dict[str, dict[str, JsonValue]], file: str) -> Record:
    place = f"{file}, benchmark_results {row.get('id')}"
    config = configs.get(str(row.get("config_id")))
    if config is None:
        raise InputError(f"there is no config {row.get('config_id')}; is the file cut?", file=place, key="config_id")
    data = config | row
    for key in BOOLEANS:
        data[key] = {"t": "true", "f": "false"}.get(str(data.get(key)), data.get(key))
    if isinstance(metrics := data.get("metrics"), str):
        try:
            data["metrics"] = json.loads(metrics)
        except json.JSONDecodeError as error:
            raise InputError(f"is no JSON: {error.msg}", file=place, key="metrics") from None
    return Record(data=data, place=place)


def _json_table(path: Path) -> Table:
    return [dict(record.data) for record in read_json(path)]


def _csv_table(path: Path) -> Table:
    usual = csv.field_size_limit(LARGEST_CELL)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return [{key: text or None for key, text in cells.items()} for cells in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot be read: {error}", file=str(path)) from None
    finally:
        csv.field_size_limit(usual)


def _sql_tables(lines: Iterable[str], file: str) -> dict[str, Table]:
    """The COPY blocks of both tables; a line is a row, its columns stand between tabs, `\\N` is null."""
    tables: dict[str, Table] = {}
    columns: Sequence[str] = ()
    rows: Table | None = None
    for number, line in enumerate(lines, start=1):
        line = line.rstrip("\n")
        if rows is None:
            if (found := COPY.fullmatch(line)) and found[1] in TABLES:
                columns = [name.strip(' "') for name in found[2].split(",")]
                rows = tables.setdefault(found[1], [])
        elif line == "\\.":
            rows = None
        else:
            cells = line.split("\t")
            if len(cells) != len(columns):
                problem = f"has {len(cells)} columns where the table has {len(columns)}"
                raise InputError(problem, file=file, line=number)
            rows.append({name: _unescaped(cell) for name, cell in zip(columns, cells, strict=True)})
    if rows is not None:
        raise InputError("the file ends inside a table; is it cut?", file=file)
    return tables


def _unescaped(cell: str) -> str | None:
    if cell == "\\N":
        return None
    return re.sub(r"\\(.)", lambda found: ESCAPES.get(found[1], found[1]), cell) if "\\" in cell else cell


def _restored(path: Path) -> dict[str, Table]:
    """The tables of an archive, by `cat parts | zstd -d | pg_restore`, which needs no database server."""
    compressed = bool(PART.fullmatch(path.name))
    stem = re.sub(r"\.part\d+$", "", path.name)
    parts = sorted(path.parent.glob(f"{stem}.part*")) if stem != path.name else [path]
    commands = [
        ["cat", *map(str, parts)],
        *([["zstd", "-d", "--long=27", "-c"]] if compressed else []),
        ["pg_restore", "--data-only", *(f"--table={table}" for table in TABLES), "-f", "-"],
    ]
    for command in commands:
        if shutil.which(command[0]) is None:
            problem = f"needs the program {command[0]}; install zstd and PostgreSQL's client (18 or newer)"
            raise InputError(problem, file=str(path))
    return _piped(commands, lambda lines: _sql_tables(lines, str(path)), str(path))


def _piped(
    commands: Sequence[Sequence[str]], read: Callable[[Iterator[str]], dict[str, Table]], file: str
) -> dict[str, Table]:
    with ExitStack() as stack:
        errors = stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))
        running: list[subprocess.Popen[str]] = []
        feed: IO[str] | None = None
        for command in commands:
            process = subprocess.Popen(
                command, stdin=feed, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8"
            )
            stack.enter_context(process)
            if feed is not None:
                feed.close()  # so that a process hears when the next one stops reading
            running.append(process)
            feed = process.stdout
        assert feed is not None
        tables: dict[str, Table] = {}
        broken: InputError | None = None
        try:
            tables = read(iter(feed))
        except InputError as error:
            broken = error
        feed.close()
        if running[-1].wait() != 0 or broken:
            errors.seek(0)
            said = errors.read().strip().splitlines()
            raise InputError(f"cannot be restored: {said[-1] if said else broken}", file=file)
        return tables
