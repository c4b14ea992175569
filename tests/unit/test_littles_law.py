"""Rows that break Little's law are found, told with the figure that breaks it, and weigh little or nothing."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.benchmark_rows import BenchmarkRow, RowFile, row_of
from simulator.littles_law import (
    NOT_THE_LOAD,
    decode_occupancy,
    judged,
    judged_sweeps,
    requests_in_flight,
    share_in_flight,
)

PLATEAU = Path(__file__).parent / "cases" / "M05.csv"


def plateau_cells() -> list[dict[str, str]]:
    lines = PLATEAU.read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(lines))


def plateau_row(cells: dict[str, str], *, ttft_s: float = 0.5, output_only: bool = False) -> BenchmarkRow:
    """The published end-to-end time, split into a time to first token and the rest; the law sees only their sum."""
    isl, osl, tp = int(cells["isl"]), int(cells["osl"]), int(cells["tp"])
    tokens_per_s = float(cells["tps"]) * ((isl + osl) / osl if output_only else 1.0)
    given = {
        "gpu": cells["gpu"],
        "model": cells["model"],
        "precision": "bf16",
        "framework": "vllm",
        "tp": cells["tp"],
        "isl": cells["isl"],
        "osl": cells["osl"],
        "max_concurrency": cells["max_concurrency"],
        "length_low": "1",
        "length_high": "1",
        "tpot_mean_ms": repr((float(cells["e2e_p99_s"]) - ttft_s) / (osl - 1) * 1e3),
        "ttft_mean_ms": repr(ttft_s * 1e3) if ttft_s else "",
        "total_tps_per_gpu": repr(tokens_per_s / tp),
    }
    return row_of(given, RowFile(path="plateau"))


def closed_loop(*, share: float, statistic: str = "mean", requests: int | None = None) -> BenchmarkRow:
    """32 requests in flight at TP2, 1,024 in and out: 10 ms a token, 1 s to the first, throughput by the law."""
    tpot_s, ttft_s, answer_tokens = 0.010, 1.0, 1024
    output_tps = share * 32 / (tpot_s + ttft_s / answer_tokens)
    given = {
        "gpu": "mi355x",
        "model": "gpt-oss-120b",
        "precision": "mxfp4",
        "framework": "vllm",
        "tp": "2",
        "isl": "1024",
        "osl": "1024",
        "max_concurrency": "32",
        "length_low": "1",
        "length_high": "1",
        f"tpot_{statistic}_ms": repr(tpot_s * 1e3),
        f"ttft_{statistic}_ms": repr(ttft_s * 1e3),
        "total_tps_per_gpu": repr(2 * output_tps / 2),
        "num_requests": str(requests or ""),
    }
    return row_of(given, RowFile(path="made"))


def test_requests_in_flight_are_requests_per_second_times_their_time_in_the_system() -> None:
    cells = plateau_cells()
    total = [
        requests_in_flight(
            tokens_per_s=float(row["tps"]), tokens_per_request=2048 + 512, latency_s=float(row["e2e_p99_s"])
        )
        for row in cells
    ]
    output = [
        requests_in_flight(tokens_per_s=float(row["tps"]), tokens_per_request=512, latency_s=float(row["e2e_p99_s"]))
        for row in cells
    ]
    assert [round(value, 1) for value in total] == [6.9, 34.0, 67.6, 67.6, 67.6, 67.6, 67.6]
    assert [round(value) for value in output[:3]] == [34, 170, 338]


def test_tokens_of_an_unnamed_kind_are_totals_where_output_tokens_alone_would_mean_more_requests_than_named() -> None:
    lightest = plateau_cells()[0]
    as_output = plateau_row(lightest, output_only=True)
    assert share_in_flight(as_output) == pytest.approx(3.4, rel=0.02)
    assert as_output.weight == 0.1
    assert "of the named requests in flight, outside 0.90-1.05 (Little's law)" in as_output.note
    assert share_in_flight(plateau_row(lightest)) == pytest.approx(0.69, rel=0.02)


@pytest.mark.parametrize("ttft_s", [0.01, 0.5, 5.0])
def test_above_a_plateau_the_load_was_not_the_load_named_and_no_row_there_is_used(ttft_s: float) -> None:
    rows = judged_sweeps(plateau_row(cells, ttft_s=ttft_s) for cells in plateau_cells())
    assert [row.concurrency for row in rows if row.special == NOT_THE_LOAD] == [200, 500, 750, 1000]
    assert "67.6 in flight where 1000 are named, throughput and latency as at 100" in rows[-1].note
    assert [row.special for row in rows[:3]] == ["", "", ""]


def test_a_plateau_without_ttft_may_be_a_queue_so_its_rows_keep_a_tenth_and_say_both() -> None:
    rows = judged_sweeps(plateau_row(cells, ttft_s=0.0) for cells in plateau_cells())
    assert [row.special for row in rows] == [""] * 7
    assert all(row.weight == 0.1 for row in rows[3:])
    assert "load was not the load named, or requests waited before their first token" in rows[-1].note


def test_the_order_of_rows_does_not_matter_and_is_kept() -> None:
    rows = [plateau_row(cells) for cells in reversed(plateau_cells())]
    found = judged_sweeps(rows)
    assert [row.concurrency for row in found] == [row.concurrency for row in rows]
    assert [row.special for row in found] == [row.special for row in reversed(judged_sweeps(reversed(rows)))]


def test_a_full_server_with_a_queue_in_front_is_true() -> None:
    """Throughput stays, latency grows with the queue: all named requests are there."""
    full = closed_loop(share=1.0)
    assert full.ttft_s is not None
    queued = replace(full, concurrency=64, ttft_s=full.ttft_s + 32 * 1024 / 2982)
    assert share_in_flight(queued) == pytest.approx(1.0, abs=0.02)
    assert [row.special for row in judged_sweeps([full, queued])] == ["", ""]


@pytest.mark.parametrize(
    ("share", "statistic", "requests", "weight"),
    [
        (0.98, "mean", None, 1.0),
        (1.04, "mean", None, 1.0),
        (1.06, "mean", None, 0.1),
        (0.91, "mean", None, 1.0),
        (0.89, "mean", None, 0.1),
        (0.87, "median", None, 1.0),
        (0.84, "median", None, 0.1),
        (0.70, "mean", 320, 0.1),
        (0.70, "mean", 96, 0.1),
        (0.76, "mean", 96, 1.0),
        (0.55, "mean", 32, 1.0),
    ],
)
def test_a_row_with_ttft_accounts_for_all_requests_less_the_ramp(
    share: float, statistic: str, requests: int | None, weight: float
) -> None:
    row = closed_loop(share=share, statistic=statistic, requests=requests)
    assert share_in_flight(row) == pytest.approx(share)
    assert row.weight == weight
    assert (f"{share:.2f} of the named requests in flight" in row.note) == (weight < 1)


def test_low_decode_occupancy_is_no_fault_where_ttft_accounts_for_the_rest() -> None:
    """Long prompts: a request decodes 60 % of its time, and waits for its first token in the other 40."""
    row = closed_loop(share=0.98)
    tpot_s, ttft_s = 0.006, 0.4 / 0.6 * 0.006 * 1024
    tokens_per_s = 2 * 0.98 * 32 / (tpot_s + ttft_s / 1024)
    prefilling = replace(row, tpot_s=tpot_s, ttft_s=ttft_s, tokens_per_s=tokens_per_s)
    assert decode_occupancy(prefilling) == pytest.approx(0.588, abs=0.001)
    assert judged(prefilling) == prefilling
    blind = judged(replace(prefilling, ttft_s=None))
    assert blind.weight == 0.1
    assert "decode occupancy 0.59 outside 0.80-1.05" in blind.note
    assert "or requests waited for their first token" in blind.note


def test_mean_and_median_tpot_are_judged_alike_without_ttft() -> None:
    for statistic in ("mean", "median"):
        row = replace(closed_loop(share=1.2, statistic=statistic), ttft_s=None, weight=1.0, note="")
        assert "decode occupancy 1.09 outside 0.80-1.05" in judged(row).note


def test_a_rate_of_all_gpus_is_told_as_such() -> None:
    row = closed_loop(share=1.96)
    assert row.note.endswith("it would fit if total_tps_per_gpu were of all GPUs")
    near = closed_loop(share=0.88)
    assert "it would fit" not in near.note


def test_an_open_loop_has_no_named_requests() -> None:
    row = replace(closed_loop(share=0.98), concurrency=None, request_rate_rps=4.0)
    assert share_in_flight(row) is None
    assert decode_occupancy(row) is None
    assert judged_sweeps([row, row]) == (row, row)


def test_a_lower_weight_that_the_file_states_is_not_raised() -> None:
    row = replace(closed_loop(share=0.98), weight=0.05)
    assert judged(replace(row, tpot_s=row.tpot_s * 2)).weight == 0.05
