"""What `profile check` prints: rows, errors, capacity, choices, and last one line per metric for scripts to read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hardware_profiles.profile import ErrorFigures
from planner.check_points import Capacities, Judgement, OperatingPoint, SweepCapacity
from planner.profile_check import FULL_WEIGHT, CheckedRow, ProfileCheck
from simulator.benchmark_rows import METRICS
from simulator.choice_quality import Choice, ChoiceQuality

__all__ = ["metric_lines", "print_check"]


def print_check(check: ProfileCheck, judgement: Judgement, console: Console) -> None:
    """Everything but the last lines."""
    rows = check.rows
    console.print(f"{check.profile.name} against {_count(len(rows), 'measured row')}", style="bold", highlight=False)
    for reason, count in check.left_out.items():
        console.print(f"left out: {_count(count, 'row')} {reason}", highlight=False, markup=False)
    used = sum(row.used for row in rows)
    told = f"{used} of {len(rows)} rows were used in the fit"
    if not check.fit_known:
        told = "Which rows were used in the fit is not known: the profile has no residuals beside it"
    console.print(f"{told}.", highlight=False)
    _print_rows(rows, console)
    _print_errors(check.figures(), console)
    _print_capacities(judgement, console)
    _print_choices(judgement, console)


def metric_lines(figures: Mapping[str, ErrorFigures]) -> list[str]:
    """`tpot median 1.23 % p95 4.56 % bias +0.12 %`, for each metric."""
    return [
        f"{metric} median {figures[metric].median * 100:.2f} % p95 {figures[metric].p95 * 100:.2f} % "
        f"bias {figures[metric].bias * 100:+.2f} %"
        if metric in figures
        else f"{metric} not measured"
        for metric in METRICS
    ]


def _table(title: str, left: Sequence[str], right: Sequence[str], last: str | None = None) -> Table:
    """Columns of words, then of numbers, then one of words that may wrap."""
    table = Table(title=title, title_justify="left")
    for column in left:
        table.add_column(column, no_wrap=True)
    for column in right:
        table.add_column(column, justify="right", no_wrap=True)
    if last is not None:
        table.add_column(last, overflow="fold")
    return table


def _print_rows(rows: Sequence[CheckedRow], console: Console) -> None:
    sources = {source: i for i, source in enumerate(dict.fromkeys(map(_source, rows)), start=1)}
    table = Table(
        title="Measured, predicted, and predicted / measured − 1", title_justify="left", box=None, padding=(0, 1, 0, 0)
    )
    table.add_column("TP", no_wrap=True)
    table.add_column("ISL/OSL", no_wrap=True)
    table.add_column("load", no_wrap=True)
    columns: list[list[str]] = [
        [str(checked.row.tensor_parallel_size) for checked in rows],
        [checked.shape for checked in rows],
        [checked.row.load for checked in rows],
    ]
    units = (("TPOT ms", 1e3, ".2f"), ("tok/s/GPU", 1.0, ",.0f"), ("TTFT ms", 1e3, ",.0f"))
    for i, (unit, factor, form) in enumerate(units):
        if all(math.isnan(checked.errors()[i]) for checked in rows):
            continue
        for column in (unit, "pred.", "error"):
            table.add_column(column, justify="right", no_wrap=True)
        columns += [list(cells) for cells in zip(*(_metric(checked, i, factor, form) for checked in rows), strict=True)]
    for column, cells in (
        ("date [source]", [f"{checked.date} [{sources[_source(checked)]}]" for checked in rows]),
        ("fit", ["used" if checked.used else "" for checked in rows]),
        ("extrapolated", [", ".join(part.what for part in checked.outside) for checked in rows]),
        ("weight", [f"{checked.row.weight:g}" if checked.row.weight < 1 else "" for checked in rows]),
    ):
        if any(cells):
            table.add_column(column)
            columns.append(cells)
    for line in zip(*columns, strict=True):
        table.add_row(*map(escape, line))
    console.print(table)
    for source, i in sources.items():
        console.print(f"[{i}] {source}", highlight=False, markup=False)
    outside = Counter(str(part) for checked in rows for part in checked.outside)
    if outside:
        count = sum(bool(checked.outside) for checked in rows)
        console.print(
            f"Extrapolated, outside what the profile was measured with: {_count(count, 'row')}.", highlight=False
        )
        for told, times in sorted(outside.items()):
            console.print(f"  {told}: {_count(times, 'row')}", highlight=False, markup=False)


def _metric(checked: CheckedRow, i: int, factor: float, form: str) -> tuple[str, str, str]:
    """Measured, predicted and error of one of METRICS; throughput is shown per GPU."""
    predicted, measured = checked.pairs()[i]
    if measured is None:
        return "-", "-", "-"
    per = factor / checked.row.tensor_parallel_size if METRICS[i] == "throughput" else factor
    return format(measured * per, form), format(predicted * per, form), f"{predicted / measured - 1:+.1%}"


def _source(checked: CheckedRow) -> str:
    about = checked.row.file
    return "; ".join(about.source) or about.path


def _print_errors(figures: Mapping[str, Mapping[str, ErrorFigures]], console: Console) -> None:
    table = _table("Absolute error", ("rows", "metric"), ("count", "median", "p95", "worst", "bias"))
    for group, metrics in figures.items():
        for metric, row in metrics.items():
            table.add_row(
                group,
                metric,
                str(row.rows),
                f"{row.median:.2%}",
                f"{row.p95:.2%}",
                f"{row.worst:.2%}",
                f"{row.bias:+.2%}",
            )
    console.print(table)


def _print_capacities(judgement: Judgement, console: Console) -> None:
    limits = f"{_count(len(judgement.tpot_limits_s), 'limit')} on TPOT"
    if judgement.ttft_limit_s is not None:
        limits += f" with TTFT within {judgement.ttft_limit_s * 1e3:g} ms"
    found = judgement.capacities.sweeps
    if not found:
        console.print(f"Capacity within {limits}: no sweep reaches one of them between its points.", highlight=False)
        return
    table = _table(
        f"Capacity within {limits}: highest throughput per GPU and highest load, predicted / measured − 1",
        ("ISL/OSL", "TP", "load"),
        ("limits", "tok/s/GPU median", "worst", "bias", "load median", "worst", "bias"),
    )
    groups: dict[tuple[str, int, bool], list[SweepCapacity]] = {}
    for sweep in found:
        groups.setdefault((sweep.shape, sweep.tensor_parallel_size, sweep.open_loop), []).append(sweep)
    for (shape, degree, open_loop), sweeps in groups.items():
        table.add_row(shape, str(degree), "rate" if open_loop else "in flight", *_capacity_cells(sweeps))
    table.add_section()
    table.add_row("all", "", "", *_capacity_cells(found))
    console.print(table)
    bounded = judgement.capacities.bounded
    if bounded:
        console.print(
            f"{bounded} of them reach the limit on one side only, measured or predicted: their errors are at least as "
            "large as counted here.",
            highlight=False,
        )


def _capacity_cells(sweeps: Sequence[SweepCapacity]) -> list[str]:
    of = Capacities(sweeps=tuple(sweeps))
    cells = [str(len(sweeps))]
    for of_load in (False, True):
        errors = np.array(of.errors(of_load=of_load))
        if len(errors):
            worst = errors[int(np.argmax(np.abs(errors)))]
            cells += [f"{np.median(np.abs(errors)):.1%}", f"{worst:+.1%}", f"{errors.mean():+.1%}"]
        else:
            cells += ["-", "-", "-"]
    return cells


def _print_choices(judgement: Judgement, console: Console) -> None:
    quality, points = judgement.choices, judgement.points
    if not quality.choices:
        console.print("Choices: no limit on TPOT tells points of one shape apart.", highlight=False)
        return
    varying = _varying(points)
    table = _table(
        "Choices: the cheapest point predicted within the limit, judged by the measurements",
        ("ISL/OSL",),
        ("limit ms", "predicted", "measured", "over by", "regret"),
        "choice (the right one, where it is another)",
    )
    for choice in quality.choices:
        table.add_row(
            choice.shape,
            f"{choice.limit_s * 1e3:g}",
            *_judged(choice, points),
            escape(_named(choice, points, varying)),
        )
    console.print(table)
    console.print(f"{_summary(quality)}{_suspects(quality, points)}.", highlight=False)


def _judged(choice: Choice, points: Sequence[OperatingPoint]) -> list[str]:
    if choice.chosen is None:
        return ["-", "-", "-", "-"]
    point = points[choice.chosen]
    return [
        f"{point.predicted_tpot_s * 1e3:.2f}",
        f"{point.measured_tpot_s * 1e3:.2f}",
        f"{choice.excess:.1%}" if choice.violates else "",
        "-" if choice.regret is None else f"{choice.regret:.1%}",
    ]


def _named(choice: Choice, points: Sequence[OperatingPoint], varying: frozenset[str]) -> str:
    best = "none" if choice.best is None else _label(points[choice.best], varying)
    if choice.chosen is None:
        return f"none predicted ({best})"
    chosen = _label(points[choice.chosen], varying)
    return chosen if choice.chosen == choice.best else f"{chosen} ({best})"


def _label(point: OperatingPoint, varying: frozenset[str]) -> str:
    load = f"{point.load:g}/s" if point.open_loop else f"{point.load:g} in flight"
    flags = "".join(f", {name} {value}" for name, value in point.flags if name in varying)
    return f"TP{point.tensor_parallel_size}, {load}{flags}"


def _varying(points: Sequence[OperatingPoint]) -> frozenset[str]:
    """Flags in which points differ."""
    counts = Counter(name for name, _ in {flag for point in points for flag in point.flags})
    return frozenset(name for name, values in counts.items() if values > 1)


def _summary(quality: ChoiceQuality) -> str:
    parts = [f"{_count(quality.made, 'choice')}, {_count(quality.violations, 'violation')} of the limit"]
    if quality.violations:
        parts.append(f"the worst by {quality.worst_violation:.1%}")
    if quality.median_regret is not None and quality.worst_regret is not None:
        parts.append(
            f"throughput per GPU lost within it: median {quality.median_regret:.1%}, worst {quality.worst_regret:.1%}"
        )
    if quality.missed:
        parts.append(f"and {_count(quality.missed, 'limit')} that a measured point meets, but no predicted one")
    return "; ".join(parts)


def _suspects(quality: ChoiceQuality, points: Sequence[OperatingPoint]) -> str:
    count = sum(
        choice.violates and choice.chosen is not None and points[choice.chosen].weight < FULL_WEIGHT
        for choice in quality.choices
    )
    return f"; {count} of the violations at rows of low weight" if count else ""


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
