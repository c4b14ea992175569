"""Where a measured row stands to a profile: whether it speaks of the row, was fitted from it, has to extrapolate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hardware_profiles.fit_evidence import ResidualRow
from hardware_profiles.memory import tensor_parallel_problem
from hardware_profiles.model import ModelCard, load_model_card, precision_name
from hardware_profiles.node import Node
from hardware_profiles.profile import HardwareProfile
from simulator.benchmark_rows import BenchmarkRow, too_long
from simulator.closed_loop import row_blocks

__all__ = ["Outside", "model_names", "outside", "reason_left_out", "used_in_fit"]

SAME = 1e-5
"""Relative difference below which two values are one: residuals are written with six digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """One thing in which a row leaves what the profile was measured with."""

    what: str
    """TP, in flight, ISL, OSL, context, KV cache or scheduling."""
    row: str
    """The row's value."""
    measured: str
    """The profile's values."""

    def __str__(self) -> str:
        return f"{self.what} {self.row}, measured {self.measured}"


def model_names(profile: HardwareProfile, card: ModelCard) -> frozenset[str]:
    """What rows call the models that the profile holds for."""
    cards = (card, *(load_model_card(name) for name in profile.serves))
    return frozenset(name.lower() for held in cards for name in (held.name, *held.aliases))


def reason_left_out(
    row: BenchmarkRow, profile: HardwareProfile, names: frozenset[str], node: Node, card: ModelCard
) -> str | None:
    """Why the profile does not speak of the row; None where it does."""
    tp = row.tensor_parallel_size
    checks = (
        (row.gpu.lower() != profile.node, f"of another GPU than {profile.node}"),
        (row.model.lower() not in names, f"of another model than {profile.model}"),
        (precision_name(row.precision) != profile.precision, f"in another precision than {profile.precision}"),
        (row.engine != profile.engine, f"of another engine than {profile.engine}"),
        (row.variant != profile.variant, f"of the variant {row.variant or 'plain'}"),
        (bool(row.special), f"set aside: {row.special}"),
        (tp > node.gpus_per_server, f"at TP {tp}, on more GPUs than a server has"),
        (bool(too_long(row, card)), too_long(row, card)),
        (row.max_num_seqs > row.max_num_batched_tokens, "with max_num_seqs above max_num_batched_tokens"),
    )
    reason = next((reason for found, reason in checks if found), None)
    if reason is not None:
        return reason
    if problem := tensor_parallel_problem(card, tp):
        return f"that cannot run: {problem}"
    if tp not in profile.tensor_parallel and profile.typical is None:
        return f"at TP {tp}, for which the profile has no terms"
    longest = int(row.length_high * row.isl) + max(2, int(row.length_high * row.osl))
    blocks = row_blocks(row, node=node, card=card, precision=profile.precision)
    if blocks * row.block_size < longest:
        return f"too long for its KV cache of {max(0, blocks) * row.block_size:,} tokens"
    return None


def used_in_fit(row: BenchmarkRow, fitted: Sequence[ResidualRow]) -> bool:
    """The same degree, shape and load, and the same TPOT but for rounding."""
    return any(
        (held.tensor_parallel_size, held.isl, held.osl, held.concurrency)
        == (row.tensor_parallel_size, row.isl, row.osl, row.concurrency)
        and held.request_rate_rps == row.request_rate_rps
        and math.isclose(held.measured_tpot_s, row.tpot_s, rel_tol=SAME)
        for held in fitted
    )


def outside(row: BenchmarkRow, profile: HardwareProfile) -> tuple[Outside, ...]:
    """Where the row leaves the measured range; in an open loop, in flight are those that decode, by Little's law."""
    measured, flags, found = profile.measured, profile.assumed_flags, []
    if row.tensor_parallel_size not in profile.tensor_parallel:
        held = ", ".join(map(str, profile.tensor_parallel))
        found.append(Outside(what="TP", row=str(row.tensor_parallel_size), measured=held))
    in_flight = row.concurrency or max(1, round((row.request_rate_rps or 0.0) * row.tpot_s * row.osl))
    longest = math.ceil(row.length_high * (row.isl + row.osl))
    for what, value, (low, high) in (
        ("in flight", in_flight, measured.concurrency),
        ("ISL", row.isl, measured.isl),
        ("OSL", row.osl, measured.osl),
        ("context", longest, (0, measured.context[1])),
    ):
        if not low <= value <= high:
            found.append(Outside(what=what, row=f"{value:,}", measured=f"{low:,}-{high:,}" if low else f"to {high:,}"))
    kv_types = flags.get("kv_cache_dtype")
    if kv_types is not None and row.kv_cache_dtype not in str(kv_types).split(", "):
        found.append(Outside(what="KV cache", row=row.kv_cache_dtype, measured=str(kv_types)))
    if not row.async_scheduling and flags.get("async_scheduling", True) is True and profile.shared.host_s == 0.0:
        found.append(Outside(what="scheduling", row="synchronous", measured="asynchronous"))
    return tuple(found)
