"""Predicted beside measured, metric by metric, and how far two sessions of the same machine lie apart."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from validator.open_loop import BURST, Prediction, Replay

__all__ = ["Comparison", "compare", "markdown", "print_comparisons", "write_comparisons"]

STREAM_METRICS = ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_mean_s", "itl_p99_s", "tokens_per_s")
BURST_METRICS = ("finished_rps", "tpot_p50_s", "tokens_per_s")
LABELS = {
    "ttft_p50_s": "TTFT p50, ms",
    "ttft_p99_s": "TTFT p99, ms",
    "tpot_p50_s": "TPOT p50, ms",
    "tpot_mean_s": "TPOT mean, ms",
    "itl_p99_s": "ITL p99, ms",
    "tokens_per_s": "throughput, tok/s",
    "finished_rps": "capacity, requests/s",
}


COLUMNS = (
    "load",
    "rate_rps",
    "metric",
    "predicted",
    "measured",
    "error",
    "own_variation",
    "sessions",
    "does_not_count",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One metric of one stream."""

    stream: str
    rate_rps: float | None
    metric: str
    predicted: float
    measured: float
    """Mean over the sessions that count; NaN without any."""
    error: float
    """predicted / measured - 1."""
    own_variation: float
    """Standard deviation between sessions over their mean; NaN with fewer than two."""
    sessions: int
    invalid: tuple[str, ...]
    """Why sessions do not count."""


def compare(prediction: Prediction, replays: Sequence[Replay]) -> tuple[Comparison, ...]:
    """Every metric of every stream, the burst last."""
    found = []
    for stream in (*prediction.streams[1:], prediction.streams[0]):
        mine = [replay for replay in replays if replay.stream == stream.name]
        valid = [replay for replay in mine if not replay.invalid]
        for metric in BURST_METRICS if stream.name == BURST else STREAM_METRICS:
            figures = (getattr(replay.measured, metric) for replay in valid if replay.measured is not None)
            values = np.array([value for value in figures if value is not None])
            predicted = float(getattr(stream.predicted, metric))
            measured = float(values.mean()) if len(values) else math.nan
            found.append(
                Comparison(
                    stream=stream.name,
                    rate_rps=stream.rate_rps,
                    metric=metric,
                    predicted=predicted,
                    measured=measured,
                    error=predicted / measured - 1,
                    own_variation=float(values.std(ddof=1)) / measured if len(values) > 1 else math.nan,
                    sessions=len(values),
                    invalid=tuple(f"session {r.session}: {why}" for r in mine for why in r.invalid),
                )
            )
    return tuple(found)


def write_comparisons(
    rows: Sequence[Comparison], prediction: Prediction, replays: Sequence[Replay], path: Path, *, command: str
) -> None:
    """The table as CSV; SI units."""
    versions = ", ".join(sorted({replay.server.vllm_version for replay in replays}))
    dates = sorted({replay.date for replay in replays})
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(f"# predicted: {prediction.written} from {prediction.profile}\n")
        file.write(f"# measured: {dates[0]} to {dates[-1]}, vLLM {versions}\n")
        file.write(f"# traffic: {_traffic(prediction)}\n")
        file.write(f"# command: {command}\n")
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for row in rows:
            numbers = (row.predicted, row.measured, row.error, row.own_variation)
            cells = ("" if math.isnan(value) else f"{value:.6g}" for value in numbers)
            rate = "" if row.rate_rps is None else f"{row.rate_rps:.6g}"
            table.writerow([row.stream, rate, row.metric, *cells, row.sessions, "; ".join(row.invalid)])


def markdown(path: Path) -> str:
    """The CSV as a page of the documentation, with its header."""
    with path.open(newline="", encoding="utf-8") as file:
        lines = file.read().splitlines()
    head = [line[2:] for line in lines if line.startswith("#")]
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    page = [f"<!-- made from {path.name}; do not edit by hand -->", *(f"- {line}" for line in head), ""]
    page += ["| load | metric | predicted | measured | error | sessions differ by | sessions |"]
    page += ["|---|---|---:|---:|---:|---:|---:|"]
    for row in rows:
        cells = _cells(
            row["load"], _number(row["rate_rps"]), row["metric"], *map(_number, (row[n] for n in COLUMNS[3:7]))
        )
        page.append(f"| {' | '.join((*cells, row['sessions']))} |")
    return "\n".join((*page, ""))


def print_comparisons(rows: Sequence[Comparison], prediction: Prediction, console: Console) -> None:
    """The table, and why a session does not count."""
    table = Table(title=f"Predicted, then measured: {_traffic(prediction)}", title_justify="left")
    for column in ("load", "metric", "predicted", "measured", "error", "sessions differ by", "sessions"):
        table.add_column(column, justify="left" if column in ("load", "metric") else "right")
    for row in rows:
        rate = math.nan if row.rate_rps is None else row.rate_rps
        numbers = (row.predicted, row.measured, row.error, row.own_variation)
        table.add_row(*_cells(row.stream, rate, row.metric, *numbers), str(row.sessions))
    console.print(table)
    for why in dict.fromkeys(f"{row.stream}, {reason}" for row in rows for reason in row.invalid):
        console.print(f"does not count: {why}", highlight=False)


def _traffic(prediction: Prediction) -> str:
    plan = prediction.plan
    return (
        f"mean {plan.mix} tokens (lognormal, cv {plan.cv:g}), Poisson at shares of {prediction.capacity_rps:.2f} "
        f"requests/s for {plan.seconds:g} s, TP {plan.degree}"
    )


def _number(text: str) -> float:
    return float(text) if text else math.nan


def _cells(
    load: str, rate_rps: float, metric: str, predicted: float, measured: float, error: float, variation: float
) -> tuple[str, ...]:
    scale = 1e3 if metric.endswith("_s") and metric != "tokens_per_s" else 1.0
    return (
        load if math.isnan(rate_rps) else f"{load}, {rate_rps:.2f}/s",
        LABELS[metric],
        f"{predicted * scale:,.2f}",
        "-" if math.isnan(measured) else f"{measured * scale:,.2f}",
        "-" if math.isnan(error) else f"{error:+.1%}",
        "-" if math.isnan(variation) else f"{variation:.1%}",
    )
