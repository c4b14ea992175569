"""The plan in the terminal: the answer first, then what it rests on."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner.plan_file import Best, Plan
from planner.queue_limits import limits_text
from planner.server_count import servers_text

__all__ = ["answer_sentence", "print_plan", "uncertainty_sentence"]


def answer_sentence(plan: Plan) -> str:
    """The whole answer in one sentence."""
    best = plan.best
    if best is None:
        miss = plan.nearest_miss
        assert miss is not None
        where = f" on {servers_text(miss.servers)}" if miss.servers is not None else ""
        reached = f": {miss.value:,.0f} ms against {miss.limit:,.0f} ms" if miss.value and miss.limit else ""
        if miss.value is None and miss.rejected_fraction and (limits := limits_text(miss.engine)):
            reached = f": {miss.rejected_fraction:.1%} of its requests were answered 503 ({limits})"
        what = f"{miss.workload} {miss.target}" if miss.workload else miss.target
        return f"Nothing meets the targets. Nearest: {miss.label}{where}; {what} binds{reached}."
    probability = best.probability_of_meeting_targets
    meet = "meets" if best.servers == 1 else "meet"
    return (
        f"{servers_text(best.servers)} ({best.label}) at USD {best.cost_usd_per_month:,.2f} in the first month {meet} "
        f"every target at {plan.load:g} times the demand with probability {probability:.2f}; not validated on hardware."
    )


def uncertainty_sentence(best: Best) -> str:
    """How sure the probability is, and whether the profile or the traffic makes it so; empty for older plans."""
    found = best.uncertainty
    if found is None:
        return ""
    both, alone = (
        f"{chance.value:.2f} (95 %: {chance.low:.2f} to {chance.high:.2f})"
        for chance in (found.probability, found.probability_seeds_alone)
    )
    sentence = (
        f"Probability {both}, from {found.probability.runs} draws of profile and traffic; with the profile taken as "
        f"exact {alone}."
    )
    share, seeds = found.profile_share, found.seeds_share
    if share is None or seeds is None:
        return sentence
    return (
        f"{sentence} Of the variance of {found.workload} {found.target}, {share.value:.0%} is the profile's "
        f"uncertainty and {seeds:.0%} which requests come when."
    )


def print_plan(plan: Plan, folder: Path, console: Console) -> None:
    """Print the summary; the report has the rest."""
    console.print(Text(answer_sentence(plan), style="bold"))
    for note in plan.notes:
        console.print(f"- {note}", highlight=False)
    best = plan.best
    if best is not None:
        if sentence := uncertainty_sentence(best):
            console.print(sentence, highlight=False)
        reasons = ", ".join(f"{count} {reason}" for reason, count in best.servers_by_reason.items())
        console.print(f"Servers: {reasons}. With one fewer: {best.one_server_fewer}.", highlight=False)
        if best.usd_per_million_output_tokens is not None and best.usd_per_million_good_tokens is not None:
            console.print(
                f"USD {best.usd_per_million_output_tokens:.4f} per million output tokens, "
                f"{best.usd_per_million_good_tokens:.4f} per million good tokens (at the demand, all month).",
                highlight=False,
            )
        if plan.baseline is not None:
            base = plan.baseline
            saving = _saving(base.saving_usd_per_month)
            servers = servers_text(base.servers) if base.servers is not None else base.note
            console.print(f"Baseline {base.label}: {servers}{saving}.", highlight=False)
        console.print(_workloads(plan))
    else:
        assert plan.nearest_miss is not None
        for change in plan.nearest_miss.what_would_have_to_change:
            console.print(f"What would have to change: {change}.", highlight=False)
    spent = plan.screened
    console.print(
        f"{spent.configurations:,} configurations, {spent.feasible:,} can run, {spent.simulated:,} simulated "
        f"({spent.simulated_requests:,} requests, {spent.engine_steps:,} engine steps) in {spent.wall_s:.1f} s: "
        f"{spent.simulated_requests / max(spent.cpu_s, 1e-9):,.0f} requests per CPU-second.",
        highlight=False,
    )
    then = f"; confirm {folder / 'shortlist'} on hardware" if plan.shortlist else ""
    console.print(f"Open {folder / 'plan.html'}{then}.", highlight=False)


def _saving(saving_usd: float | None) -> str:
    if not saving_usd:
        return ""
    if saving_usd < 0:
        return f"; the plan costs USD {-saving_usd:,.2f} a month more"
    return f"; the plan saves USD {saving_usd:,.2f} a month"


def _workloads(plan: Plan) -> Table:
    assert plan.best is not None
    table = Table(title=f"At {plan.load:g} × the demand, spare servers out", title_justify="left")
    for column in ("workload", "requests/s", "attainment (95 %)", "target", "TTFT p99 ms", "TPOT p99 ms", "ITL p99 ms"):
        table.add_column(column, justify="left" if column == "workload" else "right")
    for name, row in plan.best.workloads.items():
        attained = row.attainment
        decided = "" if row.decided else " undecided"
        table.add_row(
            name,
            f"{row.rate_rps:,.1f}",
            f"{attained.value:.4f} ({attained.low:.4f}-{attained.high:.4f}){decided}",
            f"{row.target_attainment:g}",
            *(f"{v:,.0f}" if v is not None else "-" for v in (row.ttft_p99_ms, row.tpot_p99_ms, row.itl_p99_ms)),
        )
    return table
