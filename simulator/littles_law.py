"""Little's law on measured rows: requests in flight = requests/s x seconds in the system. Who breaks it is false.

In a closed loop with `concurrency` requests in flight, each request of n answer tokens is there for
TTFT + TPOT x (n - 1) s, so with output tokens/s X

    in flight / concurrency = X x (TPOT + TTFT / n) / concurrency        (n large)

is 1, less the ramp at both ends of the run. Of 2,946 plain single-node runs with both latencies (InferenceX fixtures,
AMD's nightly runs and others, collected 2026-11-30) all but 21 lie in these ranges: means 0.90-1.05; medians 0.85-1.05,
because prompts that queue behind each other pull the mean TTFT above its median. A run of N requests, whose seats fall
empty one by one at its end, may go down to 1 / (1 + concurrency / N).

Without TTFT the same product with TPOT alone, the *decode occupancy*, is 0.80-1.05 in all but 96 of 1,501 MI355X rows
of the InferenceX dump; lower is also what requests that wait before their first token look like. Above 1.05 is
impossible: the numbers are of two runs, or a rate is in other units (tokens of one GPU or of all, output tokens or both
kinds).

Over a sweep: where throughput and latency stay the same while the named concurrency grows, and fewer requests are in
flight than named, the client never sent the load (https://docs.vultr.com/inference-cookbook/rocm/optimization/
concurrency-tuning, 2026-03-17: 68 in flight at a named 100, 200, 500, 750 and 1,000). Such rows carry no weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.benchmark_rows import BenchmarkRow

__all__ = ["NOT_THE_LOAD", "decode_occupancy", "judged", "judged_sweeps", "requests_in_flight", "share_in_flight"]

OCCUPANCY_RANGE = (0.80, 1.05)
IN_FLIGHT_LOW = {"mean": 0.90, "median": 0.85}
IN_FLIGHT_HIGH = 1.05
SUSPECT_WEIGHT = 0.1
FLAT = 0.03
"""Relative change of throughput and of latency that counts as none."""
ANOTHER_UNIT = 1.5
"""A share this many times too large or too small is tried in other units."""
MORE_LOAD = 1.2
"""Growth of the named concurrency over which a system below saturation must change more than that."""
NOT_THE_LOAD = "load was not the load named"


def requests_in_flight(*, tokens_per_s: float, tokens_per_request: float, latency_s: float) -> float:
    """Mean requests in flight; both token counts are of the same kind: input and output together, or output only."""
    return tokens_per_s / tokens_per_request * latency_s


def decode_occupancy(row: BenchmarkRow) -> float | None:
    """Output tokens/s x TPOT / concurrency: the share of its time that a request decodes; None = not a closed loop."""
    if row.concurrency is None or row.tokens_per_s is None:
        return None
    return row.tokens_per_s * row.osl / (row.isl + row.osl) * row.tpot_s / row.concurrency


def share_in_flight(row: BenchmarkRow) -> float | None:
    """Requests in flight by Little's law / those named; None where the row has no TTFT or is no closed loop."""
    occupancy = decode_occupancy(row)
    if occupancy is None or row.ttft_s is None:
        return None
    return occupancy * (1.0 + row.ttft_s / _answer_tokens(row) / row.tpot_s)


def judged(row: BenchmarkRow) -> BenchmarkRow:
    """The row, with a tenth of the weight and a note that names the figure if it breaks Little's law by itself."""
    share, occupancy = share_in_flight(row), decode_occupancy(row)
    if share is not None:
        low, high = _least_share(row, IN_FLIGHT_LOW[row.ttft_statistic]), IN_FLIGHT_HIGH
        if not low <= share <= high:
            what = f"{share:.2f} of the named requests in flight, outside {low:.2f}-{high:.2f} (Little's law)"
            return suspect(row, what + _other_unit(row, share, low, high))
    elif occupancy is not None:
        low, high = _least_share(row, OCCUPANCY_RANGE[0]), OCCUPANCY_RANGE[1]
        if not low <= occupancy <= high:
            what = f"decode occupancy {occupancy:.2f} outside {low:.2f}-{high:.2f}"
            cause = "TPOT and throughput are not of one run"
            if occupancy < low:
                cause += ", or requests waited for their first token"
            return suspect(row, f"{what}: {cause}" + _other_unit(row, occupancy, low, high))
    return row


def judged_sweeps(rows: Iterable[BenchmarkRow]) -> tuple[BenchmarkRow, ...]:
    """The rows in their order, with those marked special whose sweep shows that the named load was never there.

    Without TTFT a plateau may also be a full server with a queue in front, so such rows keep the weight `judged` gave
    them and only say so.
    """
    found = list(rows)
    order = sorted(
        (i for i, row in enumerate(found) if decode_occupancy(row) is not None), key=lambda i: _key(found[i])
    )
    for _, sweep in groupby(order, key=lambda i: _key(found[i])[:-1]):
        _judge_sweep(found, list(sweep))
    return tuple(found)


def suspect(row: BenchmarkRow, why: str) -> BenchmarkRow:
    """The row with a tenth of the weight, and why."""
    return replace(row, weight=min(row.weight, SUSPECT_WEIGHT), note="; ".join(filter(None, (row.note, why))))


def _judge_sweep(rows: list[BenchmarkRow], sweep: Sequence[int]) -> None:
    """Compare each point with the last one below it that was not on its plateau."""
    base = rows[sweep[0]]
    for i in sweep[1:]:
        row = rows[i]
        named, below = row.concurrency or 0, base.concurrency or 0
        tokens, latency = row.tokens_per_s or 0.0, _latency_s(row)
        flat = _same(tokens, base.tokens_per_s or 0.0) and _same(latency, _latency_s(base))
        in_flight = requests_in_flight(
            tokens_per_s=tokens, tokens_per_request=_answer_tokens(row) * (1 + row.isl / row.osl), latency_s=latency
        )
        least = _least_share(row, IN_FLIGHT_LOW[row.ttft_statistic])
        if not (flat and named >= MORE_LOAD * below and in_flight < least * named):
            base = row
            continue
        what = f"{in_flight:.1f} in flight where {named} are named, throughput and latency as at {below}"
        if row.ttft_s is not None:
            rows[i] = replace(suspect(row, f"{NOT_THE_LOAD}: {what}"), special=NOT_THE_LOAD)
        else:
            rows[i] = suspect(row, f"{what}: {NOT_THE_LOAD}, or requests waited before their first token (no TTFT)")


def _key(row: BenchmarkRow) -> tuple[str | float, ...]:
    """What the points of one sweep share, and the load that differs."""
    sweep = (row.gpu, row.model, row.precision, row.engine, row.variant, row.special, row.date, row.engine_version)
    shape = (row.tensor_parallel_size, row.isl, row.osl, row.length_low, row.length_high)
    return (*sweep, *shape, row.ttft_statistic, row.tpot_statistic, row.ttft_s is not None, row.concurrency or 0)


def _answer_tokens(row: BenchmarkRow) -> float:
    return row.osl * (row.length_low + row.length_high) / 2


def _latency_s(row: BenchmarkRow) -> float:
    return (row.ttft_s or 0.0) + row.tpot_s * max(_answer_tokens(row) - 1, 0.0)


def _least_share(row: BenchmarkRow, usual: float) -> float:
    """The least share of the named requests that a true run can have in flight: short runs are mostly ramp."""
    if row.requests is None or row.concurrency is None:
        return usual
    return min(usual, 1 / (1 + row.concurrency / row.requests))


def _same(value: float, other: float) -> bool:
    return abs(value / other - 1) <= FLAT


def _other_unit(row: BenchmarkRow, share: float, low: float, high: float) -> str:
    """The units in which the throughput would be possible, if there are such."""
    if low / ANOTHER_UNIT < share < high * ANOTHER_UNIT:
        return ""
    both_kinds = (row.isl + row.osl) / row.osl
    units = {
        "held output tokens only": both_kinds,
        "were of all GPUs": 1 / row.tensor_parallel_size,
        "were output tokens of all GPUs": both_kinds / row.tensor_parallel_size,
    }
    fits = [text for text, factor in units.items() if factor != 1 and low <= share * factor <= high]
    return f"; it would fit if total_tps_per_gpu {fits[0]}" if len(fits) == 1 else ""
