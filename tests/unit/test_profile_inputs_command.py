"""`goodfleet profile fit` and `check` take results as clients write them, and say what they read."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from hardware_profiles.fit_evidence import COMPANIONS
from simulator.benchmark_rows import read_rows
from validator.cli import app

CASES = Path(__file__).parent / "cases"
SHIPPED = Path(__file__).parents[2] / "hardware_profiles" / "measurements" / "mi355x-gpt-oss-120b-mxfp4.csv"
FIT = ("--node", "mi355x", "--model", "gpt-oss-120b", "--precision", "mxfp4")
PROFILE = "mi355x/gpt-oss-120b"


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The commands, in this process."""

    def run(*arguments: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["goodfleet", "profile", *map(str, arguments)])
        code = 0
        try:
            app()
        except SystemExit as end:
            code = int(end.code or 0)
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Rows of the shipped file as `vllm bench serve` would have saved them, and a file that is no result."""
    folder = tmp_path / "results"
    folder.mkdir()
    wanted = (2, 1024, 1024)
    chosen = [row for row in read_rows(SHIPPED) if (row.tensor_parallel_size, row.isl, row.osl) == wanted][:3]
    for number, row in enumerate(chosen):
        requests = 10 * (row.concurrency or 0)
        data = json.loads((CASES / "bench-serve.json").read_text(encoding="utf-8"))
        data |= {"num_prompts": requests, "completed": requests, "max_concurrency": row.concurrency}
        data |= {"total_input_tokens": row.isl * requests, "total_output_tokens": row.osl * requests}
        data |= {"total_token_throughput": row.tokens_per_s, "input_lens": [], "output_lens": []}
        data |= {"median_tpot_ms": row.tpot_s * 1e3, "median_ttft_ms": 40.0, "mean_ttft_ms": 40.0}
        (folder / f"run-{number:02}.json").write_text(json.dumps(data))
    (folder / "server.log").write_text("ready")
    assert len(chosen) == 3
    return folder


def test_a_folder_of_results_is_fitted_and_checked(profile: Run, results: Path, tmp_path: Path) -> None:
    out = tmp_path / "profile.yaml"
    count = len(list(results.glob("run-*.json")))
    done = profile("fit", results, *FIT, "--tp", "2", "--out", out, "--no-leave-out")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"read {count} rows in {count} files, kept {count}"
    assert f"not read: {results / 'server.log'}: is no CSV and no JSON" in done.stdout
    assert "vllm bench serve --save-result" in out.read_text()
    found = tmp_path / "found.json"
    done = profile("check", out, results, "--tp", "2", "--json", found)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"read {count} rows in {count} files, kept {count}"
    read = json.loads(found.read_text())["read"]
    assert (read["rows"], read["kept"], read["left_out"]) == (count, count, {})
    assert len(read["files_not_read"]) == 1


def test_a_missing_fact_is_exit_code_2_and_names_the_option(profile: Run, results: Path, tmp_path: Path) -> None:
    for command in (("fit", results, *FIT, "--out", tmp_path / "p.yaml"), ("check", PROFILE, results)):
        done = profile(*command)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ") and "Traceback" not in done.stderr
        assert "run-00.json: the result does not say tp; write it into run.yaml" in done.stderr
        assert "or give --tp" in done.stderr


def test_rows_of_no_use_are_exit_code_2_with_the_reasons(profile: Run, tmp_path: Path) -> None:
    sample = CASES / "inferencex-agentic-flat.json"
    done = profile("fit", sample, *FIT, "--out", tmp_path / "p.yaml")
    assert done.returncode == 2
    assert "none of 4 rows can be used: 3 left out: agentic trace replay: no nominal ISL and OSL; 1 left" in done.stderr
    done = profile("check", PROFILE, sample)
    assert done.returncode == 2
    assert "  1 left out: failed run: no request succeeded" in done.stdout


def test_bad_inputs_are_exit_code_2_with_one_message(profile: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    latin = tmp_path / "latin.json"
    latin.write_bytes('{"a": "für"}'.encode("latin-1"))
    for path, said in (
        (tmp_path / "absent.json", "there is no such file or folder"),
        (tmp_path / "empty", "nothing to read in"),
        (broken, "is no JSON"),
        (latin, "is not UTF-8"),
    ):
        for command in (("fit", path, *FIT, "--out", tmp_path / "p.yaml"), ("check", PROFILE, path)):
            done = profile(*command)
            assert done.returncode == 2, done.stderr
            assert said in done.stderr and done.stderr.startswith("error: ")
            assert "Traceback" not in done.stderr


def test_an_output_never_replaces_a_file_of_a_folder_that_is_read(profile: Run, results: Path) -> None:
    facts = results / "run.yaml"
    facts.write_text("tp: 2\n")
    done = profile("fit", results, *FIT, "--out", facts)
    assert done.returncode == 2
    assert "would be overwritten" in done.stderr
    assert facts.read_text() == "tp: 2\n"


@pytest.mark.parametrize("suffix", COMPANIONS)
def test_what_a_fit_writes_beside_its_profile_replaces_no_input(profile: Run, tmp_path: Path, suffix: str) -> None:
    rows = tmp_path / f"rows{suffix}"
    rows.write_bytes(SHIPPED.read_bytes())
    for inputs in ((rows,), (tmp_path,), (SHIPPED, "--all-reduce", rows)):
        done = profile("fit", *inputs, *FIT, "--out", tmp_path / "rows.yaml")
        assert done.returncode == 2
        assert f"rows{suffix} is an input of this command and would be overwritten" in done.stderr
    assert rows.read_bytes() == SHIPPED.read_bytes()
