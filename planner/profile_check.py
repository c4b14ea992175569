"""How well a profile predicts measured rows, those above all that it was not fitted from.

Every row's own protocol is simulated with the profile's step times. A row is left out where the profile does not speak
of it (another GPU, model, precision, engine or variant) or where it could not have run as it says; what is left out is
counted by reason. A row that lies outside what the profile was measured with is predicted and called extrapolated; one
at a degree that the profile lacks is predicted from its typical terms.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hardware_profiles.errors import InputError
from hardware_profiles.memory import tensor_parallel_problem
from hardware_profiles.model import ModelCard, load_model_card, precision_name
from hardware_profiles.node import Node, load_node
from hardware_profiles.profile import ErrorFigures, HardwareProfile, ResidualRow, load_residuals
from simulator.benchmark_rows import METRICS, BenchmarkRow
from simulator.closed_loop import KvCacheTooSmall, predict_rows, row_blocks
from simulator.unmeasured_degree import with_degree

__all__ = [
    "CheckedRow",
    "Outside",
    "ProfileCheck",
    "check_profile",
    "error_figures",
    "refuse_not_a_fraction",
    "refuse_not_positive",
]

Floats = NDArray[np.float64]

USED = "used in the fit"
OVERFULL = "whose requests run out of KV cache: preemption is not played here"
SAME = 1e-5
"""Relative difference below which two values are one: residuals are written with six digits."""
FULL_WEIGHT = 0.5
"""Rows of less weight are suspect (`benchmark_rows`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """One thing in which a row leaves what the profile was measured with."""

    what: str
    row: str
    measured: str

    def __str__(self) -> str:
        return f"{self.what} {self.row}, measured {self.measured}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRow:
    """A measured row beside its prediction."""

    row: BenchmarkRow
    predicted_tpot_s: float
    predicted_tokens_per_s: float
    """Of the replica."""
    predicted_ttft_s: float
    used: bool
    """The profile was fitted from it."""
    outside: tuple[Outside, ...]
    """Not empty: the prediction is extrapolated."""

    @property
    def shape(self) -> str:
        """Nominal prompt and answer length; the spread of lengths where it is not that of InferenceX."""
        low, high = self.row.length_low, self.row.length_high
        spread = "" if (low, high) == (0.8, 1.0) else f" x {low:g}-{high:g}"
        return f"{self.row.isl}/{self.row.osl}{spread}"

    @property
    def date(self) -> str:
        """Of the run, else of the newest run of its file."""
        return self.row.date or self.row.file.as_of

    def pairs(self) -> tuple[tuple[float, float | None], ...]:
        """(predicted, measured) of each of METRICS; None = the row does not hold it."""
        return (
            (self.predicted_tpot_s, self.row.tpot_s),
            (self.predicted_tokens_per_s, self.row.tokens_per_s),
            (self.predicted_ttft_s, self.row.ttft_s),
        )

    def errors(self) -> tuple[float, ...]:
        """predicted / measured - 1 of each of METRICS; NaN = the row does not hold it."""
        return tuple(math.nan if there is None else here / there - 1.0 for here, there in self.pairs())


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileCheck:
    """What a profile says of measured rows."""

    profile: HardwareProfile
    rows: tuple[CheckedRow, ...]
    left_out: Mapping[str, int]
    """Rows that were not predicted, by reason."""
    fit_known: bool
    """The rows of the fit stand beside the profile, so that `used` can be told."""

    def figures(self) -> dict[str, dict[str, ErrorFigures]]:
        """Error figures by metric: of all rows, then of those that deserve to be looked at alone."""
        groups = {
            "all rows": self.rows,
            "not used in the fit": [row for row in self.rows if not row.used],
            "within the measured range": [row for row in self.rows if not row.outside],
            "of full weight": [row for row in self.rows if row.row.weight >= FULL_WEIGHT],
        }
        return {
            name: error_figures(rows)
            for name, rows in groups.items()
            if name == "all rows" or (0 < len(rows) < len(self.rows))
        }


def error_figures(rows: Sequence[CheckedRow]) -> dict[str, ErrorFigures]:
    """Errors of each metric that any row holds; every row counts alike."""
    errors = np.array([row.errors() for row in rows]).reshape(-1, len(METRICS))
    found = {}
    for metric, column in zip(METRICS, errors.T, strict=True):
        known = column[~np.isnan(column)]
        if len(known):
            found[metric] = ErrorFigures(
                rows=len(known),
                median=float(np.median(np.abs(known))),
                p95=float(np.quantile(np.abs(known), 0.95)),
                worst=float(np.abs(known).max()),
                bias=float(known.mean()),
            )
    return found


def refuse_not_a_fraction(value: float | None, option: str) -> None:
    """An error limit of 5 is meant as percent, one of 0 or nan never passes: both are refused."""
    if value is not None and not 0 < value < 1:
        raise InputError(f"{option} {value:g} is not allowed; give a fraction, 0.05 for 5 %")


def refuse_not_positive(value: float | None, options: str) -> None:
    """A limit on a latency."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise InputError(f"{value:g} is not allowed; {options} must be numbers above 0, in milliseconds")


def check_profile(profile: HardwareProfile, rows: Sequence[BenchmarkRow], *, unused_only: bool = False) -> ProfileCheck:
    """Predict the rows that the profile speaks of; none at all is an `InputError`."""
    node, card = load_node(profile.node), load_model_card(profile.model)
    fitted = load_residuals(profile)
    if unused_only and not fitted:
        raise InputError(
            f"{profile.path.with_suffix('.residuals.csv')} is not there, so rows used in the fit cannot be told; "
            "put it beside the profile, or leave out --unused-only"
        )
    chosen, reasons = _chosen(rows, profile, node, card, fitted if unused_only else ())
    if not chosen:
        raise _nothing_left(profile, reasons)
    whole = profile
    for degree in sorted({row.tensor_parallel_size for row in chosen}):
        whole = with_degree(whole, degree, node=node, card=card) or whole
    predicted = _predict(whole, chosen, node, card)
    if overfull := int(np.isnan(predicted[:, 0]).sum()):
        reasons[OVERFULL] = overfull
    if overfull == len(chosen):
        raise _nothing_left(profile, reasons)
    return ProfileCheck(
        profile=profile,
        rows=tuple(
            CheckedRow(
                row=row,
                predicted_tpot_s=float(tpot_s),
                predicted_tokens_per_s=float(tokens_per_s),
                predicted_ttft_s=float(ttft_s),
                used=_used(row, fitted),
                outside=_outside(row, profile),
            )
            for row, (tpot_s, tokens_per_s, ttft_s) in zip(chosen, predicted, strict=True)
            if not math.isnan(tpot_s)
        ),
        left_out=dict(sorted(reasons.items())),
        fit_known=bool(fitted),
    )


def _chosen(
    rows: Sequence[BenchmarkRow], profile: HardwareProfile, node: Node, card: ModelCard, without: Sequence[ResidualRow]
) -> tuple[list[BenchmarkRow], Counter[str]]:
    """The rows that the profile speaks of in a fixed order, and how many others there are by reason."""
    names = _names(profile, card)
    reasons: Counter[str] = Counter()
    chosen: list[BenchmarkRow] = []
    for row in rows:
        reason = _reason(row, profile, names, node, card)
        if reason is None and _used(row, without):
            reason = USED
        if reason is None:
            chosen.append(row)
        else:
            reasons[reason] += 1
    return sorted(chosen, key=_order), reasons


def _nothing_left(profile: HardwareProfile, reasons: Mapping[str, int]) -> InputError:
    counted = "; ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    told = counted or "no row has a degree, lengths, a load and a TPOT"
    return InputError(f"no row is left that {profile.name} can be checked with: {told}; give other rows")


def _predict(profile: HardwareProfile, rows: Sequence[BenchmarkRow], node: Node, card: ModelCard) -> Floats:
    """(rows, 3) of METRICS; NaN for a row that cannot be played."""
    try:
        return predict_rows(profile, rows, node=node, card=card)
    except KvCacheTooSmall:
        predicted = np.full((len(rows), len(METRICS)), np.nan)
    for i, row in enumerate(rows):
        try:
            predicted[i] = predict_rows(profile, [row], node=node, card=card)[0]
        except KvCacheTooSmall:
            continue
    return predicted


def _order(row: BenchmarkRow) -> tuple[float | str, ...]:
    load = row.request_rate_rps if row.concurrency is None else row.concurrency
    return (row.tensor_parallel_size, row.isl, row.osl, row.concurrency is None, load or 0.0, row.date, row.tpot_s)


def _names(profile: HardwareProfile, card: ModelCard) -> frozenset[str]:
    """What rows call the models that the profile holds for."""
    cards = (card, *(load_model_card(name) for name in profile.serves))
    return frozenset(name.lower() for held in cards for name in (held.name, *held.aliases))


def _reason(
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
        (bool(row.special), row.special),
        (tp > node.gpus_per_server, f"at TP {tp}, on more GPUs than a server has"),
        (row.max_num_seqs > row.max_num_batched_tokens, "with max_num_seqs above max_num_batched_tokens"),
    )
    reason = next((reason for found, reason in checks if found), None)
    if reason is not None:
        return reason
    if problem := tensor_parallel_problem(card, tp):
        return problem
    if tp not in profile.tensor_parallel and profile.typical is None:
        return f"at TP {tp}, for which the profile has no terms"
    longest = int(row.length_high * row.isl) + max(2, int(row.length_high * row.osl))
    blocks = row_blocks(row, node=node, card=card, precision=profile.precision)
    if blocks * row.block_size < longest:
        return f"too long for its KV cache of {max(0, blocks) * row.block_size:,} tokens"
    return None


def _used(row: BenchmarkRow, fitted: Sequence[ResidualRow]) -> bool:
    """The same degree, shape and load, and the same TPOT but for rounding."""
    return any(
        (held.tensor_parallel_size, held.isl, held.osl, held.concurrency)
        == (row.tensor_parallel_size, row.isl, row.osl, row.concurrency)
        and held.request_rate_rps == row.request_rate_rps
        and math.isclose(held.measured_tpot_s, row.tpot_s, rel_tol=SAME)
        for held in fitted
    )


def _outside(row: BenchmarkRow, profile: HardwareProfile) -> tuple[Outside, ...]:
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
