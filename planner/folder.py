"""The folder a plan is written into: plan.json, plan.html, candidates.csv and the shortlist of recipes."""

from __future__ import annotations

from pathlib import Path

from planner.exports import write_candidates_csv
from planner.plan_file import Plan, write_plan
from planner.recipe import write_shortlist
from planner.report.html import render_html

__all__ = ["write_folder"]


def write_folder(plan: Plan, folder: Path) -> None:
    """Write everything; a file that an earlier plan left in the shortlist is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    write_plan(plan, folder / "plan.json")
    (folder / "plan.html").write_text(render_html(plan), encoding="utf-8")
    write_candidates_csv(plan, folder / "candidates.csv")
    shortlist = folder / "shortlist"
    shortlist.mkdir(exist_ok=True)
    for stale in shortlist.glob("[0-9][0-9].yaml"):
        stale.unlink()
    write_shortlist(plan, shortlist)
