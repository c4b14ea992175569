"""Measured rows are read as they stand, or refused with file, line and column; odd ones are marked, never dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from hardware_profiles.errors import InputError
from hardware_profiles.model import load_model_card
from hardware_profiles.node import load_node
from simulator.benchmark_rows import BenchmarkRow, left_out, read_rows, select_rows

HEADER = "gpu,model,precision,framework,tp,isl,osl,max_concurrency,tpot_median_ms,total_tps_per_gpu"
GOOD = "mi355x,gptoss120b,fp4,vllm,2.0,1024.0,1024.0,8.0,4.92827,1549.329304"


def rows_of(tmp_path: Path, text: str) -> tuple[BenchmarkRow, ...]:
    path = tmp_path / "rows.csv"
    path.write_text(text, encoding="utf-8")
    return read_rows(path)


def test_a_row_is_read_in_seconds_and_per_replica(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, f"{HEADER}\n{GOOD}\n")
    assert (row.tensor_parallel_size, row.isl, row.osl, row.concurrency) == (2, 1024, 1024, 8)
    assert row.tpot_s == pytest.approx(4.92827e-3)
    assert row.tokens_per_s == pytest.approx(3098.658608)
    assert (row.max_num_batched_tokens, row.max_num_seqs, row.weight, row.special) == (8192, 1024, 1.0, "")


def test_lines_before_the_header_describe_the_file(tmp_path: Path) -> None:
    notes = "# words\n# source: here: and there\n# caveat: one\n# caveat: two\n# serves: a, b\n# as_of: 2026-07-18\n"
    (row,) = rows_of(tmp_path, f"{notes}{HEADER}\n{GOOD}\n")
    assert row.file.source == ("here: and there",)
    assert row.file.caveat == ("one", "two")
    assert row.file.serves == ("a", "b")
    assert (row.file.as_of, row.file.engine_version) == ("2026-07-18", "not stated")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no column gpu"),
        (f"{HEADER.replace(',tp,', ',tps,')}\n", "has no column tp;"),
        (
            f"# a note\n{HEADER}\n{GOOD}\n{GOOD.replace('4.92827', 'fast')}\n",
            ":4: tpot_median_ms: 'fast' is not allowed",
        ),
        (f"{HEADER}\n{GOOD.replace('4.92827', '-1')}\n", ":2: tpot_median_ms: '-1' is not allowed"),
        (f"{HEADER}\n{GOOD.replace('4.92827', 'nan')}\n", ":2: tpot_median_ms: 'nan' is not allowed"),
        (f"{HEADER}\n{GOOD},1\n", ":2: has more or fewer fields"),
        (f"{HEADER}\nmi355x,gptoss120b\n", ":2: has more or fewer fields"),
        (f"# as_of: 1\n# as_of: 2\n{HEADER}\n", ":2: as_of stands twice"),
    ],
)
def test_a_broken_file_is_refused_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError) as raised:
        rows_of(tmp_path, text)
    assert words in str(raised.value)
    assert "rows.csv" in str(raised.value)


def test_a_file_that_is_not_there_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_rows(tmp_path / "none.csv")


def test_a_row_whose_two_numbers_contradict_each_other_gets_a_tenth_of_the_weight_and_a_note(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, f"{HEADER}\n{GOOD.replace('4.92827', '9.9')}\n")
    assert row.weight == 0.1
    assert "decode occupancy" in row.note


def test_a_row_without_a_metric_is_no_row(tmp_path: Path) -> None:
    assert rows_of(tmp_path, f"{HEADER}\n{GOOD.replace('4.92827', '')}\n") == ()


def test_variants_and_special_runs_are_left_out_and_counted(tmp_path: Path) -> None:
    header = f"{HEADER},spec_decode,disagg,ep,dp_attention,request_rate"
    kinds = ["none,0,1,0,inf", "mtp,0,1,0,inf", "none,1,1,0,inf", "none,0,8.0,0,inf", "none,0,1,1.0,inf"]
    kinds.append("none,0,1,0,10")
    rows = rows_of(tmp_path, "\n".join([header, *(f"{GOOD},{kind}" for kind in kinds)]))
    node, card = load_node("mi355x"), load_model_card("gpt-oss-120b")
    chosen = select_rows(rows, node=node, card=card, precision="mxfp4", engine="vllm")
    assert chosen == rows[:1]
    assert left_out(rows, node=node, card=card, precision="fp4", engine="vllm") == (
        "1 rows left out: disaggregated",
        "1 rows left out: open loop under a concurrency cap",
        "1 rows left out: variant dpa",
        "1 rows left out: variant ep8",
        "1 rows left out: variant mtp",
    )
    spread = select_rows(rows, node=node, card=card, precision="mxfp4", engine="vllm", variant="ep8")
    assert spread == (rows[3],)
    with pytest.raises(InputError, match="with vllm-mtp3"):
        select_rows(rows, node=node, card=card, precision="mxfp4", engine="vllm", variant="mtp3")


def test_a_row_says_which_statistic_it_holds_and_the_median_goes_first(tmp_path: Path) -> None:
    header = f"{HEADER},tpot_mean_ms,ttft_median_ms,ttft_mean_ms"
    both, means = rows_of(tmp_path, "\n".join([header, f"{GOOD},6.1,80,90", f"{GOOD.replace('4.92827', '')},4.9,,90"]))
    assert (both.tpot_statistic, both.ttft_statistic, both.ttft_s) == ("median", "median", 0.080)
    assert both.tpot_s == pytest.approx(4.92827e-3)
    assert (means.tpot_statistic, means.ttft_statistic, means.ttft_s) == ("mean", "mean", 0.090)
    assert means.tpot_s == pytest.approx(4.9e-3)


def test_an_open_loop_has_a_rate_and_no_concurrency(tmp_path: Path) -> None:
    header = HEADER.replace("max_concurrency", "request_rate") + ",num_requests,length_low,length_high,async_scheduling"
    (row,) = rows_of(tmp_path, f"{header}\n{GOOD.replace(',8.0,', ',2.5,')},400,0.5,1.5,false\n")
    assert (row.request_rate_rps, row.concurrency, row.tokens_per_s, row.load) == (2.5, None, None, "2.5/s")
    assert (row.requests, row.length_low, row.length_high, row.async_scheduling) == (400, 0.5, 1.5, False)


def test_a_file_names_its_engine_and_tier(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, f"# engine: vllm_atom\n# tier: dated single runs\n{HEADER}\n{GOOD}\n")
    assert (row.engine, row.framework, row.file.tier) == ("vllm_atom", "vllm", "dated single runs")
    with pytest.raises(InputError, match="'gold' is no tier"):
        rows_of(tmp_path, f"# tier: gold\n{HEADER}\n{GOOD}\n")


def test_a_row_its_source_calls_doubtful_keeps_a_tenth_of_its_weight(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, f"{HEADER},quality_flag\n{GOOD},gpu_assumed\n")
    assert (row.weight, row.note) == (0.1, "gpu_assumed")


def test_rows_of_another_model_engine_precision_or_node_are_not_these_rows(tmp_path: Path) -> None:
    pairs = (("gptoss120b", "dsr1"), ("vllm", "sglang"), ("fp4", "fp8"), ("mi355x", "h100"))
    others = [GOOD.replace(*pair) for pair in pairs]
    rows = rows_of(tmp_path, "\n".join([HEADER, *others]))
    with pytest.raises(InputError, match="no row of gpt-oss-120b in mxfp4 on mi355x with vllm"):
        select_rows(
            rows, node=load_node("mi355x"), card=load_model_card("gpt-oss-120b"), precision="fp4", engine="vllm"
        )


def test_a_row_of_weight_0_is_left_out_by_its_note(tmp_path: Path) -> None:
    header = (
        "gpu,model,precision,framework,tp,isl,osl,max_concurrency,total_tps_per_gpu,tpot_median_ms,weight,weight_note"
    )
    row = "mi355x,gptoss120b,fp4,vllm,1,1024,1024,8,3000,5.0"
    file = tmp_path / "rows.csv"
    file.write_text(f"# source: nobody\n{header}\n{row},,\n{row},0,the client never sent it\n", encoding="utf-8")
    kept, dropped = read_rows(file)
    assert (kept.special, dropped.special) == ("", "the client never sent it")
    node, card = load_node("mi355x"), load_model_card("gpt-oss-120b")
    assert select_rows((kept, dropped), node=node, card=card, precision="mxfp4", engine="vllm") == (kept,)
    found = left_out((kept, dropped), node=node, card=card, precision="mxfp4", engine="vllm")
    assert found == ("1 rows left out: the client never sent it",)
