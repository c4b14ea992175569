"""`goodfleet profile check` at a terminal: its last lines, its exit codes, its file, and what it refuses."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from hardware_profiles.fit_evidence import COMPANIONS
from hardware_profiles.shipped import PACKAGE
from validator.cli import app

PROFILE = "mi355x/gpt-oss-120b"
HEADER = (
    "gpu,model,precision,framework,tp,isl,osl,max_concurrency,request_rate,tpot_median_ms,total_tps_per_gpu,"
    "ttft_median_ms,num_requests,date"
)
ROWS = [
    "mi355x,gptoss120b,fp4,vllm,1,1024,1024,4,inf,4.4,1750,,8,2026-08-01",
    "mi355x,gptoss120b,fp4,vllm,1,1024,1024,16,inf,6.6,4600,,32,2026-08-01",
    "mi355x,gptoss120b,fp4,vllm,8,1024,1024,4,inf,3.5,270,,8,2026-08-02",
    "mi355x,gptoss120b,fp4,vllm,8,512,1024,16,inf,4.2,650,,32,2026-08-02",
    "mi355x,dsr1,fp8,sglang,8,1024,1024,4,inf,9.0,200,,8,2026-08-02",
]
LINE = r"median \d+\.\d\d % p95 \d+\.\d\d % bias [+-]\d+\.\d\d %"


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command, in this process."""

    def run(*arguments: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["goodfleet", "profile", "check", *map(str, arguments)])
        code = 0
        try:
            app()
        except SystemExit as end:
            code = int(end.code or 0)
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write(tmp_path, ROWS)


def write(folder: Path, lines: list[str], name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(["# source: a bench", HEADER, *lines, ""]))
    return path


def test_the_last_lines_are_one_per_metric(check: Run, rows: Path) -> None:
    done = check(PROFILE, rows)
    assert done.returncode == 0, done.stderr
    tpot, throughput, ttft = done.stdout.splitlines()[-3:]
    assert re.fullmatch(f"tpot {LINE}", tpot)
    assert re.fullmatch(f"throughput {LINE}", throughput)
    assert ttft == "ttft not measured"


def test_ttft_gets_its_line_where_a_row_has_one(check: Run, tmp_path: Path) -> None:
    done = check(PROFILE, write(tmp_path, [ROWS[0].replace(",,8", ",40,8"), *ROWS[1:]]))
    assert re.fullmatch(f"ttft {LINE}", done.stdout.splitlines()[-1])
    assert "TTFT ms" in done.stdout


def test_rows_are_shown_with_source_date_and_what_sets_them_apart(check: Run, rows: Path) -> None:
    out = check(PROFILE, rows).stdout
    assert "against 4 measured rows" in out
    assert "0 of 4 rows were used in the fit." in out
    assert "left out: 1 row of another model than gpt-oss-120b" in out
    assert "2026-08-01 [1]" in out and "[1] a bench" in out
    assert re.search(r"512/1024 .* ISL *\n", out)
    assert "ISL 512, measured 1,024-8,192: 1 row" in out
    assert re.search(r"\d+ choices?, \d+ violations? of the limit", out)


def test_the_shipped_profile_chooses_well_on_the_rows_it_was_fitted_from(check: Run, tmp_path: Path) -> None:
    own = PACKAGE / "measurements" / "mi355x-gpt-oss-120b-mxfp4.csv"
    done = check(PROFILE, own, "--json", tmp_path / "found.json", "--max-median-error", "0.02")
    assert done.returncode == 0, done.stderr
    assert "43 of 43 rows were used in the fit." in done.stdout
    quality = json.loads((tmp_path / "found.json").read_text())["choice_quality"]
    print(quality)
    assert quality["made"] >= 15
    assert quality["violations"] <= 0.1 * quality["made"]
    assert quality["median_regret"] == 0.0


def test_a_missed_threshold_is_exit_code_6_after_everything_is_printed(check: Run, rows: Path, tmp_path: Path) -> None:
    done = check(PROFILE, rows, "--max-median-error", "0.0001", "--json", tmp_path / "found.json")
    assert done.returncode == 6
    assert done.stdout.splitlines()[-1] == "ttft not measured"
    assert "--max-median-error 0.0001" in done.stderr and "Traceback" not in done.stderr
    assert (tmp_path / "found.json").exists()
    assert check(PROFILE, rows, "--max-median-error", "0.99").returncode == 0


@pytest.mark.parametrize("value", ["0", "1", "5", "-0.1", "nan", "inf"])
def test_a_threshold_that_is_no_fraction_is_refused_with_the_cure(check: Run, rows: Path, value: str) -> None:
    done = check(PROFILE, rows, "--max-median-error", value)
    assert done.returncode == 2
    assert "--max-median-error" in done.stderr and "a fraction, 0.05 for 5 %" in done.stderr


@pytest.mark.parametrize("option", ["--tpot-limit-ms", "--ttft-limit-ms"])
@pytest.mark.parametrize("value", ["0", "-5", "nan"])
def test_a_limit_that_is_no_latency_is_refused(check: Run, rows: Path, option: str, value: str) -> None:
    done = check(PROFILE, rows, option, value)
    assert done.returncode == 2 and option in done.stderr


def test_limits_of_ones_own_replace_the_grid(check: Run, rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    check(PROFILE, rows, "--tpot-limit-ms", "5", "--tpot-limit-ms", "6", "--ttft-limit-ms", "500", "--json", out)
    found = json.loads(out.read_text())
    assert (found["tpot_limits_s"], found["ttft_limit_s"]) == ([0.005, 0.006], 0.5)
    assert found["capacity"] == []  # no row has a TTFT


def test_the_file_holds_every_row_and_null_for_what_is_not_known(check: Run, rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "found.json"
    assert check(PROFILE, rows, "--json", out).returncode == 0
    found = json.loads(out.read_text())
    assert found["profile"] == "mi355x/gpt-oss-120b-mxfp4-vllm"
    assert found["left_out"] == {"of another model than gpt-oss-120b": 1}
    assert [row["measured_tpot_s"] for row in found["rows"]] == pytest.approx([0.0044, 0.0066, 0.0042, 0.0035])
    first = found["rows"][0]
    assert first["tpot_error"] == pytest.approx(first["predicted_tpot_s"] / 0.0044 - 1)
    assert (first["measured_ttft_s"], first["ttft_error"], first["used"]) == (None, None, False)
    assert (first["date"], first["sources"]) == ("2026-08-01", ["a bench"])
    assert set(found["errors"]["all rows"]) == {"tpot", "throughput"}
    assert found["capacity"] and found["choices"] and found["points"]
    for choice in found["choices"]:
        assert choice["chosen"] is None or found["points"][choice["chosen"]]["shape"] == choice["shape"]


def test_nothing_to_check_with_is_exit_code_2_with_the_reasons(check: Run, tmp_path: Path) -> None:
    for lines, said in ((ROWS[-1:], "1 row of another model than gpt-oss-120b"), ([], "nothing to read in")):
        done = check(PROFILE, write(tmp_path, lines))
        assert done.returncode == 2
        assert done.stderr.startswith("error: ") and said in done.stderr


def test_rows_used_in_the_fit_are_left_out_when_asked(check: Run, tmp_path: Path) -> None:
    own = PACKAGE / "measurements" / "mi355x-gpt-oss-120b-mxfp4.csv"
    done = check(PROFILE, own, "--unused-only")
    assert done.returncode == 2 and "43 rows used in the fit" in done.stderr
    done = check(PROFILE, own, write(tmp_path, ROWS[:1]), "--unused-only")
    assert done.returncode == 0
    assert "left out: 43 rows used in the fit" in done.stdout and "0 of 1 rows" in done.stdout


def test_a_profile_without_its_residuals_says_that_it_cannot_tell(check: Run, rows: Path, tmp_path: Path) -> None:
    shipped = PACKAGE / "profiles" / "mi355x" / "gpt-oss-120b-mxfp4-vllm.yaml"
    alone = Path(shutil.copy(shipped, tmp_path / "alone.yaml"))
    done = check(alone, rows)
    assert done.returncode == 0
    assert "Which rows were used in the fit is not known" in done.stdout
    done = check(alone, rows, "--unused-only")
    assert done.returncode == 2 and "alone.residuals.csv" in done.stderr and "--unused-only" in done.stderr


def test_words_of_a_file_are_shown_as_they_stand(check: Run, tmp_path: Path) -> None:
    lines = [f"{row},{extra}" for row, extra in zip(ROWS[:3], ("none", "[/red]", "none"), strict=True)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([f"{HEADER},spec_decode", *lines, ""]).replace("2026-08-02", "[/b]"))
    done = check(PROFILE, path)
    assert done.returncode == 0, done.stderr
    assert "left out: 1 row of the variant [/red]" in done.stdout and "[/b] [1]" in done.stdout


def test_bad_files_and_outputs_are_refused(check: Run, rows: Path, tmp_path: Path) -> None:
    before = rows.read_bytes()
    folder = tmp_path / "folder.json"
    folder.mkdir()
    for arguments, said in (
        ((PROFILE, tmp_path / "absent.csv"), "absent.csv"),
        (("mi355x/nothing", rows), "shipped"),
        ((PROFILE, rows, "--json", rows), "overwritten"),
        ((PROFILE, rows, "--json", folder), "is a folder"),
        ((PROFILE, rows, "--json", tmp_path / "found.txt"), "does not end in .json"),
        ((PROFILE, rows, "--json", "/proc/x/found.json"), "cannot be written"),
        ((PROFILE,), "RESULTS"),
    ):
        done = check(*arguments)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr and "Traceback" not in done.stderr
    assert rows.read_bytes() == before


def test_the_files_beside_the_profile_are_not_replaced(check: Run, rows: Path, tmp_path: Path) -> None:
    shipped = PACKAGE / "profiles" / "mi355x" / "gpt-oss-120b-mxfp4-vllm.yaml"
    own = Path(shutil.copy(shipped, tmp_path / "own.yaml"))
    for suffix in COMPANIONS:
        beside = Path(shutil.copy(shipped.with_suffix(suffix), own.with_suffix(suffix)))
        before = beside.read_bytes()
        linked = tmp_path / f"linked{suffix}.json"
        linked.symlink_to(beside)
        for name in (beside, linked):
            done = check(own, rows, "--json", name)
            assert done.returncode == 2 and "would be overwritten" in done.stderr
        assert beside.read_bytes() == before
