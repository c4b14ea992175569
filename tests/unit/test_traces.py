"""Recorded requests are read whole, or refused with the line that is wrong; no unit of time is guessed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hardware_profiles.errors import InputError
from simulator.traces import read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
PLAIN = "arrival_s,prompt_tokens,output_tokens\n"
SHIPPED = Path(__file__).parents[2] / "examples/traces/azure_llm_2023_conv_20min.csv"


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "calls.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(folder: Path, text: str | bytes) -> InputError:
    with pytest.raises(InputError) as caught:
        read_trace(written(folder, text))
    assert caught.value.file == str(folder / "calls.csv")
    return caught.value


def test_the_shipped_azure_trace_has_the_published_requests() -> None:
    trace = read_trace(SHIPPED)
    assert trace.format == "azure"
    assert (trace.rows_read, len(trace.arrival_s), dict(trace.dropped), trace.out_of_order) == (5_985, 5_985, {}, 0)
    # First rows: 18:15:46.6805900, 18:15:50.9951690, 18:15:51.2224670; all seven decimals count.
    np.testing.assert_allclose(trace.arrival_s[:3], [0.0, 4.314579, 4.541877], rtol=0, atol=1e-12)
    assert trace.prompt_tokens[:3].tolist() == [374, 396, 879]
    assert trace.output_tokens[:3].tolist() == [44, 109, 55]
    assert trace.rate_rps == pytest.approx(4.988, abs=0.001)


def test_the_rate_counts_the_gap_that_closes_the_circle(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, PLAIN + "10,5,5\n12,5,5\n14,5,5\n"))
    assert trace.arrival_s.tolist() == [0, 2, 4]
    assert (trace.period_s, trace.rate_rps) == (6, 0.5)


def test_rows_read_are_rows_kept_plus_rows_dropped_by_reason(tmp_path: Path) -> None:
    rows = "0,5,5\n1,0,5\n2,5,0\n3,5,0\n\n4,7,1\n"
    trace = read_trace(written(tmp_path, PLAIN + rows))
    assert trace.rows_read == 5  # a blank line is no row
    assert trace.dropped == {"prompt_tokens is 0": 1, "output_tokens is 0": 2}
    assert trace.prompt_tokens.tolist() == [5, 7]


def test_rows_out_of_order_are_sorted_and_counted(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, PLAIN + "0,1,1\n5,2,2\n3,3,3\n9,4,4\n"))
    assert trace.arrival_s.tolist() == [0, 3, 5, 9]
    assert trace.prompt_tokens.tolist() == [1, 3, 2, 4]
    assert trace.out_of_order == 1


def test_byte_order_mark_crlf_and_further_columns_are_harmless(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbfuser, prompt_tokens,arrival_s,output_tokens\r\nann,5,0.5,7\r\nbob,6,1.5,8\r\n"
    trace = read_trace(written(tmp_path, text))
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([5, 6], [7, 8])


def test_azure_times_pass_midnight_and_need_no_decimals(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, AZURE + "2023-11-16 23:59:59.5,1,1\r\n2023-11-17 00:00:01,1,1\r\n"))
    assert trace.arrival_s.tolist() == [0.0, 1.5]


@pytest.mark.parametrize(
    ("row", "key", "value"),
    [
        ("2023-11-16 18:15:47,12,-4", "GeneratedTokens", "'-4'"),
        ("2023-11-16 18:15:47,12.5,4", "ContextTokens", "'12.5'"),
        ("2023-11-16 18:15:47,nan,4", "ContextTokens", "'nan'"),
        ("2023-11-16 18:15:47,,4", "ContextTokens", "''"),
        ("2023-11-16 18:15:47,99999999999,4", "ContextTokens", "'99999999999'"),
        ("2023-13-16 18:15:47,12,4", "TIMESTAMP", "'2023-13-16 18:15:47'"),
        ("1700158547.5,12,4", "TIMESTAMP", "'1700158547.5'"),
        ("2023-11-16 18:15:47.1x,12,4", "TIMESTAMP", "'2023-11-16 18:15:47.1x'"),
    ],
)
def test_a_broken_line_is_named_with_line_column_and_value(tmp_path: Path, row: str, key: str, value: str) -> None:
    error = refusal(tmp_path, AZURE + f"2023-11-16 18:15:46,1,1\r\n{row}\r\n2023-11-16 18:15:48,1,1\r\n")
    assert (error.line, error.key) == (3, key)
    assert value in error.problem and "remove the line" in error.problem


@pytest.mark.parametrize("arrival", ["nan", "inf", "-1", "", "1_0", "1e400", "12:30", "٣"])
def test_a_time_that_is_no_number_of_seconds_is_refused(tmp_path: Path, arrival: str) -> None:
    error = refusal(tmp_path, PLAIN + f"0,1,1\n{arrival},1,1\n")
    assert (error.line, error.key) == (3, "arrival_s")


def test_a_line_with_a_missing_column_is_refused(tmp_path: Path) -> None:
    error = refusal(tmp_path, PLAIN + "0,1,1\n1,1\n")
    assert error.line == 3
    assert "2 columns where the header names 3" in error.problem


def test_a_quote_that_never_closes_is_refused_with_its_line(tmp_path: Path) -> None:
    error = refusal(tmp_path, PLAIN + '0,1,1\n1,"1,1\n')
    assert error.line == 3


@pytest.mark.parametrize("header", ["timestamp", "arrival_ms", "time"])
def test_a_file_that_does_not_say_seconds_is_refused(tmp_path: Path, header: str) -> None:
    """Case R01: milliseconds read as seconds leave every count plausible, and the rate a thousand times too low."""
    error = refusal(tmp_path, f"{header},prompt_tokens,output_tokens\n0,6755,500\n3000,1024,20\n")
    assert error.line == 1
    assert "arrival_s (seconds)" in error.problem


def test_a_stated_format_must_match_the_header(tmp_path: Path) -> None:
    path = written(tmp_path, PLAIN + "0,1,1\n1,1,1\n")
    with pytest.raises(InputError, match="TIMESTAMP,ContextTokens,GeneratedTokens"):
        read_trace(path, format="azure")
    assert read_trace(path, format="csv").format == "csv"


@pytest.mark.parametrize("rows", ["", "0,1,1\n", "5,1,1\n5,2,2\n", "0,1,0\n1,1,0\n"])
def test_a_trace_without_two_times_gives_no_rate(tmp_path: Path, rows: str) -> None:
    assert "give no rate" in refusal(tmp_path, PLAIN + rows).problem


def test_an_empty_file_and_one_that_is_not_text_are_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, "").line == 1
    assert refusal(tmp_path, PLAIN.encode() + b"0,1,1\n\xff,1,1\n").line == 3
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(tmp_path / "absent.csv")
