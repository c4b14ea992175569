"""Timing the all-reduce with a stand-in for the probe: what counts, what is measured again, which python runs it."""

import csv
import os
import sys
from pathlib import Path

import pytest

from validator import all_reduce
from validator.all_reduce import measure_all_reduce, python_of, unmeasured
from validator.contention import Contention, ContentionWatch

PROBE = """\
import sys
degree, sizes, port, out = sys.argv[1:]
if degree in {fails!r}:
    open(out, "w").write("bytes,median_us")
    sys.exit("no such device")
lines = [f"{{size}},{{10 + int(size) / 1e5}}" for size in sizes.split(",")]
open(out, "w").write("\\n".join(["bytes,median_us", *lines, ""]))
"""


def contended(share: float) -> Contention:
    return Contention(wait=share, strangers=share, cpus=2, stolen=0.0)


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ContentionWatch, "between", lambda *_: contended(0.0))


def probe(folder: Path, monkeypatch: pytest.MonkeyPatch, fails: tuple[str, ...] = ()) -> None:
    path = folder / "probe.py"
    path.write_text(PROBE.format(fails=fails))
    monkeypatch.setattr(all_reduce, "PROBE", path)


def measured(out: Path) -> dict[int, str]:
    return measure_all_reduce(sys.executable, (1, 2, 4), gpu="g", date="2026-12-01", out=out)


def degrees_in(out: Path) -> list[str]:
    with out.open() as file:
        return [row["world_size"] for row in csv.DictReader(line for line in file if not line.startswith("#"))]


def test_a_line_is_fitted_to_each_degree_above_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe(tmp_path, monkeypatch)
    out = tmp_path / "all-reduce.csv"
    assert unmeasured((1, 2, 4), out) == (2, 4)
    assert measured(out) == {}
    with out.open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    assert [row["world_size"] for row in rows] == ["2", "4"]
    assert float(rows[0]["latency_floor_us"]) == pytest.approx(10.0, rel=1e-3)
    assert float(rows[0]["effective_gb_per_s"]) == pytest.approx(100.0, rel=1e-3)
    assert unmeasured((1, 2, 4), out) == ()


def test_a_degree_that_failed_is_measured_again_and_the_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "all-reduce.csv"
    probe(tmp_path, monkeypatch, fails=("4",))
    assert list(measured(out)) == [4]
    assert (degrees_in(out), unmeasured((1, 2, 4), out)) == (["2"], (4,))
    probe(tmp_path, monkeypatch, fails=("2",))
    assert measured(out) == {}
    assert degrees_in(out) == ["2", "4"]


def test_a_degree_that_others_disturbed_is_not_taken_and_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "all-reduce.csv"
    probe(tmp_path, monkeypatch)
    monkeypatch.setattr(ContentionWatch, "between", lambda *_: contended(0.3))
    assert measured(out) == dict.fromkeys((2, 4), "others took up to 30.0% of its time (limit 5%)")
    assert not out.exists()
    monkeypatch.setattr(ContentionWatch, "between", lambda *_: contended(0.0))
    assert measured(out) == {}


def script(folder: Path, text: str) -> str:
    path = folder / "vllm"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_the_python_behind_a_script_is_the_one_of_its_first_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = script(tmp_path, "").replace("vllm", "python3")
    os.rename(tmp_path / "vllm", python)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert python_of((script(tmp_path, f"#!{python}\n"), "serve")) == python
    assert python_of((script(tmp_path, "#!/usr/bin/env python3\n"),)) == python
    assert python_of((script(tmp_path, "#!/usr/bin/env -S python3 -I\n"),)) == python
    assert python_of((script(tmp_path, f"#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n"),)) == python
    assert python_of((python, "-m", "vllm")) == python
    assert python_of((script(tmp_path, "#!/bin/sh\nexec something\n"),)) is None
    assert python_of(("no-such-command",)) is None
