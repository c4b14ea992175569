"""Tables for spreadsheets. A text cell that a spreadsheet would run as a formula is disarmed with an apostrophe."""

from __future__ import annotations

import csv
from pathlib import Path

from planner.plan_file import Plan
from simulator.engine import ENGINE_FLAGS, flag_value
from simulator.flags import FlagValue, flag_text

__all__ = ["write_candidates_csv"]

BEFORE_FLAGS = ("label", "node", "precision")
AFTER_FLAGS = (
    "replicas_per_server",
    "servers",
    "cost_usd_per_month",
    "load_per_server",
    "tightest",
    "ttft_p99_ms",
    "tpot_p99_ms",
    "evidence",
    "tied",
    "probability_of_meeting_targets",
)
"""Columns on both sides of vLLM's flags, as plan.json names them."""
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""https://owasp.org/www-community/attacks/CSV_Injection"""


def write_candidates_csv(plan: Plan, path: Path) -> None:
    """Everything that was scored, one row per candidate in the plan's order; a cell is empty where nothing is known.

    A flag that one candidate changes has a column, with vLLM's default for the others.
    """
    given = {name for candidate in plan.candidates for name in candidate.engine}
    flags = [*(name for name in ENGINE_FLAGS if name in given), *sorted(given - set(ENGINE_FLAGS))]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["rank", *BEFORE_FLAGS, *flags, *AFTER_FLAGS], lineterminator="\n")
        writer.writeheader()
        for rank, candidate in enumerate(plan.candidates, start=1):
            row = {"rank": rank, **candidate.model_dump(include={*BEFORE_FLAGS, *AFTER_FLAGS})}
            row |= {name: flag_value(candidate.engine, name) for name in flags}
            row["tied"] = "yes" if candidate.tied else "no"
            writer.writerow({name: _cell(value) for name, value in row.items()})


def _cell(value: FlagValue | None) -> FlagValue | None:
    if isinstance(value, bool):
        return flag_text(value)
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value
