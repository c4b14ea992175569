"""InferenceX's database, in every form in which it can be had, gives the same rows."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from hardware_profiles.errors import InputError
from simulator.benchmark_inputs import Imported, read_inputs
from simulator.benchmark_rows import BenchmarkRow

SQL = Path(__file__).parent / "cases" / "inferencex-dump.sql"
LEFT_OUT = (
    ("agentic trace replay: no nominal ISL and OSL", 1),
    ("an older run of the same point", 1),
    ("disaggregated", 1),
    ("failed run", 1),
)


def tables() -> dict[str, list[dict[str, str | None]]]:
    """The tables of the SQL text, read by hand."""
    found: dict[str, list[dict[str, str | None]]] = {}
    name, columns = "", []
    for line in SQL.read_text(encoding="utf-8").splitlines():
        if line.startswith("COPY public."):
            name, _, rest = line.removeprefix("COPY public.").partition(" ")
            columns = [text.strip('( "') for text in rest.partition(")")[0].split(",")]
            found[name] = []
        elif line != "\\." and name:
            cells = [None if cell == "\\N" else cell.replace("\\\\", "\\") for cell in line.split("\t")]
            found[name].append(dict(zip(columns, cells, strict=True)))
    return found


def check(found: Imported) -> None:
    assert (found.read, found.left_out) == (6, LEFT_OUT)
    one, other = sorted(found.rows, key=lambda row: row.gpu, reverse=True)
    assert (one.gpu, one.model, one.tensor_parallel_size, one.concurrency) == ("mi355x", "gpt-oss-120b", 2, 8)
    assert (one.tpot_s, one.ttft_s, one.tokens_per_s) == pytest.approx((0.00492827, 0.06, 2 * 1549.329304))
    assert (one.date, one.engine_version) == ("2026-07-18", "vllm/vllm-openai-rocm:v0.22.0")
    assert (other.gpu, other.tensor_parallel_size, other.ttft_s) == ("h100", 8, None)
    assert one.file.source == ("SemiAnalysis InferenceX database dump",)


def test_the_text_of_pg_restore_is_read() -> None:
    check(read_inputs([SQL]))


def test_tables_as_json_and_as_csv_are_read_wherever_the_folder_lies(tmp_path: Path) -> None:
    rows: list[tuple[BenchmarkRow, ...]] = []
    for suffix in ("json", "csv"):
        folder = tmp_path / "in" / suffix
        folder.mkdir(parents=True)
        for name, table in tables().items():
            if suffix == "json":
                made = [
                    row | {"metrics": json.loads(row["metrics"] or "{}")} if "metrics" in row else row for row in table
                ]
                (folder / f"{name}.json").write_text(json.dumps(made))
            else:
                with (folder / f"{name}.csv").open("w", newline="") as file:
                    writer = csv.DictWriter(file, list(table[0]))
                    writer.writeheader()
                    writer.writerows(table)
        (folder / "eval_results.json").write_text("[]")
        found = read_inputs([folder])
        check(found)
        rows.append(found.rows)
    together = read_inputs([tmp_path / "in"])
    assert together.read == 12
    assert dict(together.left_out)["the same run again"] == 2


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins that pass their input on; what they were asked is kept."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("zstd", "pg_restore"):
        script = folder / name
        script.write_text(f'#!/bin/sh\necho "$@" >> {folder}/{name}.asked\nexec cat\n')
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_the_weekly_archive_is_read_from_its_first_part_or_its_folder(tmp_path: Path, programs: Path) -> None:
    folder = tmp_path / "release"
    folder.mkdir()
    data = SQL.read_bytes()
    for part in range(3):
        start, end = part * len(data) // 3, (part + 1) * len(data) // 3
        (folder / f"inferencex-2026-07-20.dump.zst.part0{part}").write_bytes(data[start:end])
    (folder / "SHA256SUMS").write_text("")
    check(read_inputs([folder / "inferencex-2026-07-20.dump.zst.part00"]))
    assert (programs / "zstd.asked").read_text() == "-d --long=27 -c\n"
    asked = (programs / "pg_restore.asked").read_text()
    assert asked == "--data-only --table=configs --table=benchmark_results -f -\n"
    found = read_inputs([folder])
    check(found)
    assert [text.partition(": ")[2] for text in found.not_read] == ["is no CSV and no JSON"]


def test_a_missing_program_and_a_broken_archive_are_told(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "inferencex.dump"
    archive.write_bytes(SQL.read_bytes())
    check(read_inputs([archive]))
    (programs / "pg_restore").write_text("#!/bin/sh\necho pg_restore: error: input file is too short >&2\nexit 1\n")
    with pytest.raises(InputError, match=r"inferencex.dump: cannot be restored: pg_restore: error: input file"):
        read_inputs([archive])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="needs the program cat"):
        read_inputs([archive])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("public.configs", "public.others", "holds no table configs"),
        ("3\th100", "4\th100", "there is no config 3; is the file cut?"),
        ('{"median_tpot": 0.0028,', '{"median_tpot" 0.0028,', "metrics: is no JSON"),
        ("3\th100\tvllm", "3\th100", "has 17 columns where the table has 18"),
        ("0\t8\t8\n\\.\n", "0\t8\t8\n", "the file ends inside a table; is it cut?"),
    ],
)
def test_a_damaged_file_is_one_message_with_its_place(tmp_path: Path, old: str, new: str, words: str) -> None:
    text = SQL.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path = tmp_path / "tables.sql"
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError) as raised:
        read_inputs([path])
    assert words in str(raised.value)
    assert "tables.sql" in str(raised.value)
