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
        ("", "rows.csv: the file is empty; it needs a header with gpu, model"),
        ("# a\n", "rows.csv: holds only lines of #; it needs a header"),
        (f"# a\n{HEADER}\n{GOOD}\n".replace(",", ";"), ":2: its fields are separated by semicolons"),
        (f"{HEADER}\n{GOOD}\n".replace(",", "\t"), ":1: its fields are separated by tabs; separate them by commas"),
        (f"{HEADER.upper()}\n{GOOD}\n", ":1: has the column 'GPU'; write gpu, in lower case and without spaces"),
        (f"{HEADER.replace(',', ', ')}\n{GOOD}\n", ":1: has the column ' model'; write model, in lower case"),
        (f"{HEADER},isl\n{GOOD},1\n", ":1: the column isl stands twice; keep one"),
        (f"{HEADER.replace(',tp,', ',tps,')}\n", "has no column tp;"),
        (
            f"# a note\n{HEADER}\n{GOOD}\n{GOOD.replace('4.92827', 'fast')}\n",
            ":4: tpot_median_ms: 'fast' is not allowed",
        ),
        (f"{HEADER}\n{GOOD.replace('4.92827', '-1')}\n", ":2: tpot_median_ms: '-1' is not allowed"),
        (f"{HEADER}\n{GOOD.replace('4.92827', 'nan')}\n", ":2: tpot_median_ms: 'nan' is not allowed"),
        (f"{HEADER}\n{GOOD},1\n", ":2: has 11 fields where the header has 10"),
        (f"{HEADER}\nmi355x,gptoss120b\n", ":2: has 2 fields where the header has 10"),
        (f"# as_of: 2026-01-01\n# as_of: 2026-01-01\n{HEADER}\n", ":2: as_of stands twice"),
        (f"# words\n# as_of: May\n{HEADER}\n", ":2: as_of: 'May' is no date; write YYYY-MM-DD, or leave"),
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
        "1 row left out: disaggregated",
        "1 row left out: open loop under a concurrency cap",
        "1 row left out: variant dpa",
        "1 row left out: variant ep8",
        "1 row left out: variant mtp",
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
    assert found == ("1 row left out: the client never sent it",)


def test_blank_lines_and_remarks_between_rows_are_passed_over_and_lines_still_counted(tmp_path: Path) -> None:
    text = f"# source: a\n\n{HEADER}\n\n{GOOD}\n   \n# another day\n  # and one\n{GOOD.replace(',8.0,', ', 16 ,')}\n"
    assert [row.concurrency for row in rows_of(tmp_path, text)] == [8, 16]
    with pytest.raises(InputError, match=r"rows.csv:10: isl: 'x' is not allowed"):
        rows_of(tmp_path, text + GOOD.replace("1024.0", "x", 1))


def test_another_encoding_is_told_with_its_cure(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    for encoding, words in (("latin-1", ":3: byte 0xe9"), ("utf-16", ":1: byte 0xff")):
        path.write_bytes(f"{HEADER}\n{GOOD}\n# caf\xe9\n".encode(encoding))
        with pytest.raises(InputError, match=f"rows.csv{words} is not UTF-8; save the file as UTF-8"):
            read_rows(path)


def with_cell(name: str, value: str) -> str:
    """The good row with one value of its own."""
    cells = dict(zip(HEADER.split(","), GOOD.split(","), strict=True)) | {name: value}
    return f"{','.join(cells)}\n{','.join(cells.values())}\n"


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("tpot_median_ms", "4_25", "milliseconds from 0.001 to 3,600,000"),
        ("tpot_median_ms", "\u0664", "milliseconds from 0.001 to 3,600,000"),
        ("tpot_median_ms", "1e-9", "milliseconds from 0.001 to 3,600,000"),
        ("ttft_median_ms", "4e6", "milliseconds from 0.001 to 3,600,000"),
        ("isl", "0", "a number of tokens from 1 to 10,000,000"),
        ("osl", "1", "a number of tokens from 2 to 10,000,000"),
        ("tp", "0", "a whole number from 1 to 1,024"),
        ("max_concurrency", "1e6", "a whole number from 1 to 100,000"),
        ("num_requests", "2e6", "a whole number from 1 to 1,000,000"),
        ("total_tps_per_gpu", "1e300", "tokens/s from 0.001 to 1,000,000,000"),
        ("gpu_memory_utilization", "95", "a share from 0.01 to 1"),
        ("gpu_memory_utilization", "0", "a share from 0.01 to 1"),
        ("block_size", "1000000", "a whole number from 1 to 1,024"),
        ("weight", "-1", "0, which leaves the row out, or a number from 0.001 to 1"),
        ("weight", "1e-320", "0, which leaves the row out, or a number from 0.001 to 1"),
        ("disagg", "maybe", "true or false"),
        ("dp_attention", "x", "true or false"),
        ("async_scheduling", "later", "true or false"),
        ("ep", "-1", "a whole number from 1 to 1,024"),
        ("all_reduce_quantization", "int3", "none or int4"),
    ],
)
def test_a_value_that_nobody_means_is_refused_with_its_bounds(tmp_path: Path, name: str, value: str, rule: str) -> None:
    with pytest.raises(InputError) as raised:
        rows_of(tmp_path, with_cell(name, value))
    assert f"rows.csv:2: {name}: {value!r} is not allowed; it must be {rule}" in str(raised.value)


def test_an_unknown_type_of_the_kv_cache_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"rows.csv:2: kv_cache_dtype: 'int3' is not known; use one of"):
        rows_of(tmp_path, with_cell("kv_cache_dtype", "int3"))


@pytest.mark.parametrize(
    ("name", "value", "variant", "special"),
    [
        ("disagg", "yes", "", "disaggregated"),
        ("disagg", "False", "", ""),
        ("ep", "0", "", ""),
        ("ep", "8.0", "ep8", ""),
        ("dp_attention", "TRUE", "dpa", ""),
        ("spec_decode", "None", "", ""),
    ],
)
def test_what_programs_write_for_yes_and_no_is_understood(
    tmp_path: Path, name: str, value: str, variant: str, special: str
) -> None:
    (row,) = rows_of(tmp_path, with_cell(name, value))
    assert (row.variant, row.special) == (variant, special)


def test_a_row_longer_than_the_model_is_left_out_with_the_reason(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, f"{with_cell('isl', '130000')}{GOOD.replace('1024.0,1024.0', '130000,2000')}\n")
    node, card = load_node("mi355x"), load_model_card("gpt-oss-120b")
    assert select_rows(rows, node=node, card=card, precision="mxfp4", engine="vllm") == (rows[0],)
    found = left_out(rows, node=node, card=card, precision="mxfp4", engine="vllm")
    assert found == ("1 row left out: longer than the 131,072 tokens that gpt-oss-120b was made for",)


def test_rows_that_are_all_left_out_are_told_by_reason(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, with_cell("weight", "0"))
    with pytest.raises(InputError, match="can be fitted; 1 row left out: of weight 0; give rows without these"):
        select_rows(
            rows, node=load_node("mi355x"), card=load_model_card("gpt-oss-120b"), precision="fp4", engine="vllm"
        )
