"""The measured runs as files that others read.

`measured.csv` holds the runs that count, in the columns of `simulator/benchmark_rows.py`, with what the server said it
did; `runs.csv` holds every run with the figures by which it counts or not.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from simulator.flags import FlagValue
from validator.run_records import RunRecord
from validator.sweep_plan import SweepPlan

__all__ = ["session_spread", "write_measured", "write_runs"]

TIER = "own measurements"
SERVER_FLAGS = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "gpu_memory_utilization",
    "block_size",
    "kv_cache_dtype",
    "async_scheduling",
)
Cell = str | int | float | None


def write_measured(path: Path, found: Sequence[RunRecord], *, plan: SweepPlan, model: str, command: str) -> int:
    """The rows that count; returns how many."""
    valid = [record for record in found if not record.invalid]
    versions = sorted({record.server.vllm_version for record in valid})
    started = sum(record.server.fresh for record in valid) == len(valid)
    sessions = len({(record.degree, record.session) for record in valid})
    lines = [
        f"# source: measured on this node with vllm bench serve, {len(valid)} runs in {sessions} server sessions",
        f"# engine_version: vLLM {', '.join(versions)}",
        f"# as_of: {max((record.date for record in valid), default='')[:10]}",
        f"# tier: {TIER}",
        f"# command: {command}",
        *(f"# server: {text}" for text in sorted({r.server.command for r in valid if r.server.command})),
    ]
    if not started:
        lines.append("# caveat: One server that was running already: what a restart changes is not in the figures.")
    if any(record.played.contention is None for record in valid):
        lines.append("# caveat: Nobody watched whether others used the machine during these runs.")
    if any(record.played.unchecked for record in valid):
        lines.append("# caveat: The server has no counters: neither prompt tokens nor its prefix cache were checked.")
    rows = [_row(record, plan=plan, model=model) for record in valid]
    _write(path, lines, rows)
    return len(rows)


def write_runs(path: Path, found: Sequence[RunRecord]) -> None:
    """Every run, and why it does not count where it does not."""
    _write(
        path,
        ["# Every run of the sweep. Only those without a reason in `invalid` are in measured.csv."],
        [
            {
                "tp": record.degree,
                "session": record.session,
                "isl": record.run.shape.isl,
                "osl": record.run.shape.osl,
                "max_concurrency": record.run.concurrency,
                "requests": record.run.requests,
                "duration_s": round(record.played.result.duration, 3),
                "tpot_median_ms": round(record.played.result.median_tpot_ms, 4),
                "ttft_median_ms": round(record.played.result.median_ttft_ms, 3),
                "total_tps": round(record.played.result.total_token_throughput, 2),
                "wait_share": _rounded(record.played.wait),
                "stranger_cpus": _rounded(record.played.strangers),
                "stolen_share": _rounded(record.played.stolen),
                "contention": _rounded(record.played.contention),
                "preemptions": record.played.preemptions,
                "prompt_tokens_sent": record.played.result.total_input_tokens,
                "prompt_tokens_counted": record.played.prompt_tokens,
                "date": record.date,
                "invalid": "; ".join(record.invalid),
                "command": record.played.command,
            }
            for record in found
        ],
    )


def session_spread(found: Sequence[RunRecord]) -> Mapping[str, float]:
    """Standard deviation between sessions of ln(value) of one point, pooled over points; empty with one session."""
    points: dict[tuple[int, str], list[tuple[float, float, float]]] = {}
    for record in found:
        result = record.played.result
        if not record.invalid:
            values = (result.median_tpot_ms, result.total_token_throughput, result.median_ttft_ms)
            points.setdefault((record.degree, record.run.name), []).append(values)
    several = [np.log(np.array(values)) for values in points.values() if len(values) > 1]
    if not several:
        return {}
    squares = sum(((logs - logs.mean(axis=0)) ** 2).sum(axis=0) for logs in several)
    freedom = sum(len(logs) - 1 for logs in several)
    return dict(zip(("tpot", "throughput", "ttft"), np.sqrt(squares / freedom).tolist(), strict=True))


def _row(record: RunRecord, *, plan: SweepPlan, model: str) -> dict[str, Cell]:
    result, flags = record.played.result, record.server.flags
    return {
        "gpu": plan.node,
        "model": model,
        "precision": plan.precision,
        "framework": "vllm",
        "framework_version": record.server.vllm_version,
        "tp": record.degree,
        "isl": record.run.shape.isl,
        "osl": record.run.shape.osl,
        "max_concurrency": record.run.concurrency,
        "num_requests": record.run.requests,
        "length_low": 1 - plan.range_ratio,
        "length_high": 1 + plan.range_ratio,
        "tpot_median_ms": round(result.median_tpot_ms, 5),
        "tpot_mean_ms": round(result.mean_tpot_ms, 5),
        "ttft_median_ms": round(result.median_ttft_ms, 4),
        "ttft_mean_ms": round(result.mean_ttft_ms, 4),
        "total_tps_per_gpu": round(result.total_token_throughput / record.degree, 4),
        "kv_cache_tokens": record.server.kv_cache_tokens,
        **{name: _text(flags.get(name)) for name in SERVER_FLAGS},
        "date": record.date[:10],
        "source_id": f"tp{record.degree}/session-{record.session}/{record.run.name}",
    }


def _text(value: FlagValue | None) -> Cell:
    return str(value).lower() if isinstance(value, bool) else value


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def _write(path: Path, head: Sequence[str], rows: Sequence[Mapping[str, Cell]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in head)
        if rows:
            table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            table.writeheader()
            table.writerows(rows)
