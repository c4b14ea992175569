"""Rows read = rows kept + rows left out, by reason, over files and folders of every kind."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hardware_profiles.errors import InputError
from hardware_profiles.model import load_model_card
from hardware_profiles.node import load_node
from hardware_profiles.shipped import PACKAGE
from simulator.benchmark_inputs import Imported, read_inputs
from simulator.benchmark_rows import read_rows
from simulator.littles_law import NOT_THE_LOAD

CASES = Path(__file__).parent / "cases"
HEADER = "gpu,model,precision,framework,tp,isl,osl,max_concurrency,tpot_median_ms,total_tps_per_gpu,spec_decode"
GOOD = "mi355x,gptoss120b,fp4,vllm,2,1024,1024,8,4.92827,1549.329304,none"


def csv_file(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([HEADER, *lines, ""]), encoding="utf-8")
    return path


def bench_serve(path: Path, **changes: Any) -> Path:
    data = json.loads((CASES / "bench-serve.json").read_text(encoding="utf-8")) | changes
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def used(found: Imported, **changes: str) -> Imported:
    wanted = {"precision": "mxfp4", "engine": "vllm"} | changes
    return found.used_for(node=load_node("mi355x"), card=load_model_card("gpt-oss-120b"), **wanted)


def test_a_folder_is_searched_in_sorted_order_and_what_is_no_result_is_named(tmp_path: Path) -> None:
    csv_file(tmp_path / "b" / "rows.csv", GOOD)
    bench_serve(tmp_path / "a" / "run.json")
    bench_serve(tmp_path / "a" / "warm-up-256-32.json", median_tpot_ms=31.0)
    (tmp_path / "run.yaml").write_text("gpu: mi355x\nprecision: mxfp4\nframework: vllm\ntp: 1\n")
    (tmp_path / "a" / "server.log").write_text("INFO ready")
    (tmp_path / "a" / "half.json").write_text('{"completed": 4')
    (tmp_path / "a" / "other.json").write_text('{"name": "server"}')
    (tmp_path / "b" / "all-reduce.csv").write_text("gpu,bytes,time_us\nmi355x,8192,9\n")
    (tmp_path / ".hidden.json").write_text("{")
    found = read_inputs([tmp_path])
    assert [row.tensor_parallel_size for row in found.rows] == [1, 2]
    assert (found.read, found.files, found.left_out) == (2, 2, ())
    assert [text.split(": ", 1)[1][:20] for text in found.not_read] == [
        "is no JSON: Expectin",
        "is no result known h",
        "is no CSV and no JSO",
        "a warm-up",
        "has no column model,",
    ]
    assert all(str(tmp_path) in text for text in found.not_read)
    account = list(found.account())
    assert account[0] == "read 2 rows in 2 files, kept 2"
    assert sum("not read:" in line for line in account) == 5


def test_mean_lengths_are_lengths(tmp_path: Path) -> None:
    (row,) = read_inputs([csv_file(tmp_path / "a.csv", GOOD.replace("1024,1024", "1024.4,1000.6"))]).rows
    assert (row.isl, row.osl) == (1024, 1000)


def test_every_row_of_the_shipped_files_is_kept_as_it_was() -> None:
    path = PACKAGE / "measurements" / "mi355x-gpt-oss-120b-mxfp4.csv"
    assert read_inputs([path]).rows == read_rows(path)


def test_lines_without_metrics_and_runs_read_twice_are_counted(tmp_path: Path) -> None:
    first = csv_file(tmp_path / "a.csv", GOOD, GOOD.replace("4.92827", ""), GOOD)
    second = csv_file(tmp_path / "b.csv", GOOD.replace(",8,4.9", ",16,4.9"), GOOD)
    found = read_inputs([first, second])
    assert [row.concurrency for row in found.rows] == [8, 16]
    assert (found.read, found.left_out) == (5, (("no TPOT, TP, lengths or load", 1), ("the same run again", 2)))


def test_the_clients_file_and_the_aggregate_of_the_same_run_are_one_row(tmp_path: Path) -> None:
    raw = bench_serve(tmp_path / "run.json")
    data = json.loads(raw.read_text())
    aggregate = {"hw": "mi355x", "tp": 1, "ep": 1, "dp_attention": "false", "conc": data["max_concurrency"]}
    aggregate |= {"model": data["model_id"], "framework": "vllm", "precision": "fp4", "isl": 252, "osl": 32}
    aggregate |= {"tput_per_gpu": data["total_token_throughput"]}
    for key in ("median_tpot", "mean_tpot", "median_ttft", "mean_ttft"):
        aggregate[key] = data[f"{key}_ms"] / 1e3
    (tmp_path / "agg_run.json").write_text(json.dumps(aggregate))
    found = read_inputs([tmp_path])
    assert (found.read, len(found.rows)) == (1, 1)
    assert found.rows[0].osl == 32
    assert any("run.json: the raw file of agg_run.json" in text for text in found.not_read)


def test_rows_of_another_profile_are_counted_by_what_differs(tmp_path: Path) -> None:
    path = csv_file(
        tmp_path / "rows.csv",
        GOOD,
        GOOD.replace("mi355x", "h100"),
        GOOD.replace("gptoss120b", "dsr1"),
        GOOD.replace("fp4", "fp8"),
        GOOD.replace("vllm", "sglang"),
        GOOD.replace("none", "mtp"),
        GOOD.replace(",2,1024", ",16,1024").replace("1549", "193"),
    )
    found = used(read_inputs([path]))
    assert (found.read, len(found.rows)) == (7, 1)
    assert found.left_out == (
        ("TP 16, on more GPUs than a server has", 1),
        ("another GPU (h100)", 1),
        ("another engine (sglang)", 1),
        ("another model (dsr1)", 1),
        ("another precision (fp8)", 1),
        ("another variant (mtp)", 1),
    )
    assert [row.variant for row in used(read_inputs([path]), variant="mtp").rows] == ["mtp"]


def test_rows_above_a_plateau_are_left_out_as_another_load(tmp_path: Path) -> None:
    header = f"{HEADER},ttft_median_ms,length_low,length_high"
    lines = [f"mi355x,gptoss120b,fp4,vllm,2,1024,1024,{c},4.9,1560,none,200,1,1" for c in (8, 64, 256)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([header, *lines, ""]))
    found = used(read_inputs([path]))
    assert [row.concurrency for row in found.rows] == [8]
    assert found.left_out == ((NOT_THE_LOAD, 2),)


def test_rows_in_doubt_are_told_with_their_reason(tmp_path: Path) -> None:
    found = read_inputs([csv_file(tmp_path / "rows.csv", GOOD, GOOD.replace("4.92827", "9.9"))])
    (line,) = found.doubts()
    assert line.startswith("  weight 0.1: TP2 1024/1024 at 8: decode occupancy 1.92 outside 0.80-1.05")


def test_an_account_that_does_not_add_up_cannot_be_made(tmp_path: Path) -> None:
    found = read_inputs([csv_file(tmp_path / "rows.csv", GOOD)])
    with pytest.raises(ValueError, match="1 of 2 rows are not accounted for"):
        replace(found, read=2)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("nothing", None, "there is no such file or folder; check the spelling"),
        ("rows.csv", HEADER + "\n", "nothing to read in"),
        ("rows.csv", "a,b\n1,2\n", "has no column gpu"),
        ("notes.txt", "words", "is no JSON"),
        ("dump.zip", "PK", "is packed; unpack it and give the folder"),
    ],
)
def test_an_input_without_results_is_refused(tmp_path: Path, name: str, content: str | None, words: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError) as raised:
        read_inputs([path])
    assert words in str(raised.value)
    assert name in str(raised.value)


def test_a_folder_without_results_is_refused_and_says_what_it_holds(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to read in"):
        read_inputs([tmp_path])
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(InputError, match=r"nothing to read in .*broken.json:1: is no JSON"):
        read_inputs([tmp_path])


def test_a_link_to_a_folder_above_is_not_followed(tmp_path: Path) -> None:
    csv_file(tmp_path / "a.csv", GOOD)
    (tmp_path / "again").symlink_to(tmp_path)
    found = read_inputs([tmp_path])
    assert (found.read, len(found.not_read)) == (1, 1)


@pytest.mark.parametrize("tp", ["0.5", "2.5", "1e11", "nan", "inf", "1" * 400])
def test_a_count_that_is_none_is_refused_with_its_place(tmp_path: Path, tp: str) -> None:
    path = csv_file(tmp_path / "a.csv", GOOD.replace(",2,1024", f",{tp},1024"))
    with pytest.raises(InputError, match=r"a\.csv:2: tp: .* is not allowed; it must be a"):
        read_inputs([path])


def test_a_wrong_value_inside_a_folder_is_a_mistake_not_a_file_to_pass_over(tmp_path: Path) -> None:
    csv_file(tmp_path / "a.csv", GOOD)
    csv_file(tmp_path / "b.csv", GOOD.replace("1024,1024", "-5,1024"))
    with pytest.raises(InputError, match=r"b\.csv:2: isl: '-5' is not allowed"):
        read_inputs([tmp_path])


def test_published_samples_of_trace_replays_are_read_and_left_out(tmp_path: Path) -> None:
    for name in ("inferencex-agentic-flat.json", "inferencex-agentic-nested.json"):
        shutil.copy(CASES / name, tmp_path)
    found = read_inputs([tmp_path])
    assert (found.read, found.rows, found.files) == (5, (), 2)
    assert found.left_out == (
        ("agentic trace replay: no nominal ISL and OSL", 4),
        ("failed run: no request succeeded", 1),
    )
