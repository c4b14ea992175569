"""Which measured rows a fit takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hardware_profiles.errors import InputError
from hardware_profiles.model import load_model_card
from hardware_profiles.node import load_node
from hardware_profiles.shipped import PACKAGE
from simulator.benchmark_rows import BenchmarkRow, read_rows
from simulator.fitted_rows import fitted_rows

ROWS = read_rows(PACKAGE / "measurements" / "mi355x-gpt-oss-120b-mxfp4.csv")


def taken(rows: list[BenchmarkRow]) -> tuple[tuple[BenchmarkRow, ...], tuple[str, ...]]:
    node, card = load_node("mi355x"), load_model_card("gpt-oss-120b")
    return fitted_rows(rows, node=node, card=card, precision="mxfp4", engine="vllm")


def test_a_row_with_more_tokens_in_flight_than_its_cache_holds_is_left_out_by_name() -> None:
    row = next(row for row in ROWS if (row.isl, row.osl, row.concurrency) == (1024, 1024, 64))
    tokens = int(64 * 0.9 * (1024 + 1024))
    fits, full = replace(row, kv_cache_tokens=tokens + 64), replace(row, kv_cache_tokens=tokens - 64)
    chosen, why = taken([fits, full])
    assert chosen == (fits,)
    assert why == (
        "Left out of the fit, more tokens in flight than the KV cache holds: "
        f"TP {row.tensor_parallel_size} 1024/1024 at 64.",
    )


def test_an_open_loop_holds_what_it_needs() -> None:
    row = replace(ROWS[0], concurrency=None, request_rate_rps=5.0, kv_cache_tokens=4096)
    assert taken([row]) == ((row,), ())


def test_rows_that_all_fill_their_cache_tell_nothing() -> None:
    with pytest.raises(InputError, match="more tokens in flight"):
        taken([replace(ROWS[0], kv_cache_tokens=1024)])


def test_the_shipped_rows_of_gpt_oss_are_all_taken() -> None:
    assert taken(list(ROWS)) == (tuple(sorted(ROWS, key=taken(list(ROWS))[0].index)), ())
