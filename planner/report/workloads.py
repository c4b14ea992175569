"""What each workload was promised and what it gets, target by target."""

from __future__ import annotations

from planner.plan_file import Best, Plan, WorkloadAnswer
from planner.report.figures import figure, interval
from planner.report.layout import bar, section, table
from planner.report.markup import Html, el, join

__all__ = ["latencies", "workloads"]

GOOD = (
    "A good request finished within every limit of a request. Percentiles beside such a limit are for reading: the "
    "share of good requests decides. A verdict takes at least 10 / (1 − share asked for) judged requests in every run, "
    "and runs that are steady; else it says undecided."
)
PERCENTILES = ("p50", "p99")
"""Those a plan holds. A plan is confirmed on all percentile targets; beside a p90 or p95 target stands the p99."""


def workloads(plan: Plan, best: Best) -> Html:
    """Targets against predictions, one block per workload."""
    answers = best.workloads
    undecided = [name for name, row in answers.items() if not row.decided]
    met = [name for name, row in answers.items() if row.attainment.value >= row.target_attainment]
    if undecided:
        title = f"Undecided, too few requests or too short a run: {', '.join(undecided)}"
    elif len(met) == len(answers):
        title = "Every workload meets its targets, and enough requests were judged to say so"
    else:
        title = f"Missed: {', '.join(name for name in answers if name not in met)}"
    sides = (None, "num", "num", "mark", None)
    names = ("target", "limit", "predicted", "of the limit", "verdict")
    head = [el("th", name, scope="col", class_=side) for name, side in zip(names, sides, strict=True)]
    bodies = [el("tbody", *_rows(name, row)) for name, row in answers.items()]
    caption = join("At ", figure("times", plan.load), " the demand, without the spare servers; intervals are 95 %")
    return section(
        "workloads",
        title,
        el("table", el("caption", caption), el("thead", el("tr", *head)), *bodies, class_="targets stack"),
        el("p", GOOD, class_="small"),
    )


def _rows(name: str, row: WorkloadAnswer) -> list[Html]:
    load = join(figure("rate", row.rate_rps), ", ", figure("count", row.judged), " requests judged")
    rows = [el("tr", el("th", el("b", name), " ", el("span", load), colspan=5, scope="rowgroup"), class_="group")]
    for target, limit in row.targets.items():
        rows.append(_target(row, target, limit))
    if row.rejected_fraction is not None:
        seen = figure("attainment", row.rejected_fraction)
        rows.append(_line("answered 503, counted as missed", "", seen, "", ""))
    value, asked = row.attainment, row.target_attainment
    verdict = "met" if value.value >= asked else "missed"
    if not row.decided:
        verdict = "undecided"
    elif value.low < asked <= value.value:
        verdict = "met, but the interval reaches below"
    spent = (1 - value.value) / (1 - asked) if asked < 1 else 0.0
    rows.append(
        _line(
            el("b", "good requests"),
            join("≥ ", figure("attainment", asked)),
            interval("attainment", value),
            bar(spent, kind="over" if spent > 1 else ""),
            el("b", verdict, class_="good" if verdict == "met" else "doubtful"),
        )
    )
    return rows


def _target(row: WorkloadAnswer, target: str, limit: float) -> Html:
    """One target beside the figure that is nearest to its meaning."""
    if target == "deadline_s":
        metric, percentile, shown, limit_ms = "E2E", "", figure("seconds", limit), limit * 1e3
        text = "of each request of the batch"
    else:
        metric, _, rest = target.removesuffix("_ms").partition("_")
        percentile, shown, limit_ms = rest, figure("ms", limit), limit
        metric, text = metric.upper(), "of each request" if not rest else f"{rest} over all requests"
    seen = percentile if percentile in PERCENTILES else "p99"
    value: float | None = getattr(row, f"{metric.lower()}_{seen}_ms", None)
    share = value / limit_ms if value is not None else 0.0
    verdict = ""
    if percentile:
        verdict = "met" if value is None or share <= 1 or seen != percentile else "missed"
    return _line(
        f"{metric} {text}",
        join("≤ ", shown),
        join(figure("ms", value), f" ({seen})" if value is not None and seen != percentile else None),
        bar(share, kind="over" if verdict == "missed" else ""),
        verdict,
    )


def _line(what: str, limit: str, predicted: str, mark: str, verdict: str) -> Html:
    cells = (
        (what, None, None),
        (limit, "num", "limit"),
        (predicted, "num", "predicted"),
        (mark, "mark", None),
        (verdict, None, "verdict" if verdict else None),
    )
    return el("tr", *(el("td", cell, class_=side, data_label=label) for cell, side, label in cells))


def latencies(best: Best) -> Html:
    """All figures of the confirmation runs."""
    rows = [
        (
            name,
            *(
                join(figure("ms", median), " / ", figure("ms", tail))
                for median, tail in (
                    (row.ttft_p50_ms, row.ttft_p99_ms),
                    (row.tpot_p50_ms, row.tpot_p99_ms),
                    (row.e2e_p50_ms, row.e2e_p99_ms),
                )
            ),
            figure("ms", row.itl_p99_ms),
            figure("ms", row.longest_stall_ms),
            figure("tokens", row.output_tokens_per_s),
            figure("tokens", row.goodput_tokens_per_s),
        )
        for name, row in best.workloads.items()
    ]
    head = (
        "workload",
        "TTFT p50 / p99",
        "TPOT p50 / p99",
        "E2E p50 / p99",
        "ITL p99",
        "longest stall",
        "output",
        "goodput",
    )
    body = table("Means over the confirmation runs", head, rows, right=range(1, 8))
    note = (
        "TTFT: from arrival to the first token. TPOT: time per output token after the first, of a request. ITL: the "
        "gap between two tokens. E2E: from arrival to the last token. Goodput: output tokens of good requests."
    )
    return el("details", el("summary", "All predicted latencies and rates"), body, el("p", note, class_="small"))
