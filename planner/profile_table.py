"""All profiles side by side: how many rows, and how far predictions were off, in sample and on rows left out.

Each cell of an error is `median / p95` of the absolute error in percent, for TPOT, throughput and, where the rows have
it, TTFT. Coverage is the share of the rows left out that lie inside their stated 80 % interval.
"""

from __future__ import annotations

from collections.abc import Sequence

from hardware_profiles.fit_evidence import load_residuals
from hardware_profiles.profile import HardwareProfile
from planner.held_out_choices import CHOICE_COLUMNS, choice_rows

__all__ = ["COLUMNS", "as_markdown", "choices_as_markdown", "table_row"]

EVALUATIONS = ("in sample", "leave one concurrency out", "leave one shape out", "leave one TP out")
METRICS = ("tpot", "throughput", "ttft")
COLUMNS = ("profile", "tier", "rows", "TP", *EVALUATIONS, "inside 80 % intervals")


def table_row(profile: HardwareProfile) -> tuple[str, ...]:
    """The cells of one profile, in the order of `COLUMNS`."""
    rows = load_residuals(profile)
    down = sum(row.weight < 1 for row in rows)
    return (
        profile.name,
        profile.tier,
        f"{len(rows)}, {down} down-weighted" if down else str(len(rows)),
        ", ".join(str(degree) for degree in profile.tensor_parallel),
        *(_errors(profile, evaluation) for evaluation in EVALUATIONS),
        _coverage(profile),
    )


def _errors(profile: HardwareProfile, evaluation: str) -> str:
    found = profile.errors.get(evaluation)
    if found is None:
        return "-"
    return "; ".join(
        f"{metric} {100 * found[metric].median:.1f} / {100 * found[metric].p95:.1f}"
        for metric in METRICS
        if metric in found
    )


def _coverage(profile: HardwareProfile) -> str:
    cells = []
    for evaluation in EVALUATIONS[1:]:
        shares = profile.coverage.get(evaluation)
        if shares:
            word = evaluation.removeprefix("leave one ").removesuffix(" out")
            cells.append(f"{word} {' / '.join(f'{100 * shares[m]:.0f}' for m in METRICS if m in shares)} %")
    return "; ".join(cells) or "-"


def as_markdown(profiles: Sequence[HardwareProfile]) -> str:
    """The table of errors for a documentation page."""
    return _markdown(COLUMNS, [table_row(profile) for profile in profiles])


def choices_as_markdown(profiles: Sequence[HardwareProfile]) -> str:
    """The table of choices made by predictions of rows left out (`held_out_choices.py`)."""
    return _markdown(CHOICE_COLUMNS, [row for profile in profiles for row in choice_rows(profile)])


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---" for _ in columns], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
