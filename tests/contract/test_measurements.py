"""Measured rows are shipped with what one needs to judge them, and the folder's README counts them right."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest

from hardware_profiles.node import list_nodes
from hardware_profiles.profile import list_profiles, load_profile
from hardware_profiles.shipped import PACKAGE
from simulator.benchmark_rows import read_rows

FOLDER = PACKAGE / "measurements"
FILES = sorted(path for path in FOLDER.glob("*.csv") if path.name.partition("-")[2] != "all-reduce.csv")
LISTED = re.compile(r"^\| `(?P<file>[^`]+\.csv)` \| (?P<rows>\d+) \|", re.MULTILINE)


def row_files() -> list[Path]:
    """Files in the row contract: those the README's first table lists."""
    return [path for path in FILES if path.name in counts()]


def counts() -> dict[str, int]:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    return {found["file"]: int(found["rows"]) for found in LISTED.finditer(text)}


def test_the_readme_lists_every_file_of_rows_that_is_there() -> None:
    missing = [name for name in counts() if not (FOLDER / name).exists()]
    assert missing == []
    profiles = {name.replace("/", "-").replace("-vllm", "", 1) for name in list_profiles()}
    assert all(f"{stem}.csv" in counts() for stem in profiles if not stem.split("-")[-1].endswith("_atom"))


@pytest.mark.parametrize("path", row_files(), ids=lambda path: path.stem)
def test_a_file_of_rows_states_its_source_and_counts_as_the_readme_says(path: Path) -> None:
    rows = read_rows(path)
    assert len(rows) == counts()[path.name]
    about = rows[0].file
    assert about.source and about.caveat
    assert date.fromisoformat(about.as_of) <= date(2026, 11, 30)
    assert "not stated" not in about.engine_version
    assert "# tier: " in path.read_text(encoding="utf-8") or about.tier == "pooled medians"
    assert all(row.date <= about.as_of for row in rows)


@pytest.mark.parametrize("path", row_files(), ids=lambda path: path.stem)
def test_a_file_holds_one_profile_and_is_named_after_it(path: Path) -> None:
    rows = read_rows(path)
    assert len({(row.gpu, row.precision, row.engine, row.variant, row.tpot_statistic) for row in rows}) == 1
    first = rows[0]
    assert first.gpu in list_nodes()
    parts = path.stem.removesuffix("-earlier").removeprefix(f"{first.gpu}-")
    ending = "".join(f"-{word}" for word in (first.engine, first.variant) if word not in ("", "vllm"))
    assert parts.endswith(ending)
    assert not any(row.special for row in rows if row.weight > 0)


@pytest.mark.parametrize("path", row_files(), ids=lambda path: path.stem)
def test_no_point_stands_twice_in_a_file_that_is_fitted(path: Path) -> None:
    rows = read_rows(path)
    points = {(row.tensor_parallel_size, row.isl, row.osl, row.load) for row in rows}
    if path.stem.endswith("-earlier"):
        newer = read_rows(path.with_name(f"{path.stem.removesuffix('-earlier')}.csv"))
        assert points <= {(row.tensor_parallel_size, row.isl, row.osl, row.load) for row in newer}
    else:
        assert len(points) == len(rows)


@pytest.mark.parametrize("path", row_files(), ids=lambda path: path.stem)
def test_a_lowered_weight_has_a_reason(path: Path) -> None:
    assert all(row.note for row in read_rows(path) if row.weight < 1)


def test_every_profile_of_shipped_rows_names_their_source() -> None:
    for name in list_profiles():
        assert load_profile(name).sources, name
