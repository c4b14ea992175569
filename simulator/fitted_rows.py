"""Which measured rows a profile is fitted from: its own, but those whose requests do not fit the server's KV cache.

With more tokens in flight than the cache holds, vLLM lets requests wait or preempts them; TPOT and throughput then tell
how large the cache was, which is the memory ledger's to say, and hardly how long a step takes. In flight are

    min(concurrency, max_num_seqs) x mean length share x (ISL + OSL) tokens

at the end of a benchmark's first wave, when all requests end together. `profile check` plays such rows all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from hardware_profiles.errors import InputError
from hardware_profiles.model import ModelCard
from hardware_profiles.node import Node
from simulator.benchmark_rows import BenchmarkRow, select_rows
from simulator.closed_loop import row_blocks

__all__ = ["fitted_rows"]


def fitted_rows(
    rows: Sequence[BenchmarkRow], *, node: Node, card: ModelCard, precision: str, engine: str, variant: str = ""
) -> tuple[tuple[BenchmarkRow, ...], tuple[str, ...]]:
    """(rows, what was left out and why) of this node, model, precision, engine and variant; none is an `InputError`."""
    own = select_rows(rows, node=node, card=card, precision=precision, engine=engine, variant=variant)
    chosen: list[BenchmarkRow] = []
    overfull: list[BenchmarkRow] = []
    for row in own:
        blocks = row_blocks(row, node=node, card=card, precision=precision)
        (overfull if _tokens_in_flight(row) > blocks * row.block_size else chosen).append(row)
    if not chosen:
        raise InputError("every row has more tokens in flight than its KV cache holds: none tells a step's time")
    if not overfull:
        return own, ()
    named = ", ".join(f"TP {r.tensor_parallel_size} {r.isl}/{r.osl} at {r.load}" for r in overfull)
    return tuple(chosen), (f"Left out of the fit, more tokens in flight than the KV cache holds: {named}.",)


def _tokens_in_flight(row: BenchmarkRow) -> float:
    """Of a closed loop, when its first wave ends; an open loop holds what it needs."""
    if row.concurrency is None:
        return 0.0
    share = (row.length_low + row.length_high) / 2
    return min(row.concurrency, row.max_num_seqs) * share * (row.isl + row.osl)
