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
from hardware_profiles.fit_evidence import ResidualRow, load_residuals
from hardware_profiles.model import ModelCard
from hardware_profiles.node import Node
from hardware_profiles.profile import ErrorFigures, HardwareProfile
from hardware_profiles.profile_subject import node_and_card
from planner.row_standing import Outside, model_names, outside, reason_left_out, used_in_fit
from simulator.benchmark_rows import METRICS, BenchmarkRow
from simulator.closed_loop import KvCacheTooSmall, predict_rows
from simulator.unmeasured_degree import with_degree

__all__ = [
    "CheckedRow",
    "ProfileCheck",
    "check_profile",
    "error_figures",
    "refuse_not_a_fraction",
    "refuse_not_positive",
]

Floats = NDArray[np.float64]

USED = "used in the fit"
OVERFULL = "with a request that never fits its KV cache"
FULL_WEIGHT = 0.5
"""Rows of less weight are suspect (`benchmark_rows`)."""


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
    node, card = node_and_card(profile)
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
                used=used_in_fit(row, fitted),
                outside=outside(row, profile),
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
    names = model_names(profile, card)
    reasons: Counter[str] = Counter()
    chosen: list[BenchmarkRow] = []
    for row in rows:
        reason = reason_left_out(row, profile, names, node, card)
        if reason is None and used_in_fit(row, without):
            reason = USED
        if reason is None:
            chosen.append(row)
        else:
            reasons[reason] += 1
    return sorted(chosen, key=_order), reasons


def _nothing_left(profile: HardwareProfile, reasons: Mapping[str, int]) -> InputError:
    counted = "; ".join(f"{count} row{'' if count == 1 else 's'} {reason}" for reason, count in sorted(reasons.items()))
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
