"""The file that `profile check --json` writes: everything it found, in SI units, unknown numbers as null."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from planner.check_points import Judgement
from planner.profile_check import CheckedRow, ProfileCheck
from simulator.benchmark_inputs import Imported
from simulator.benchmark_rows import METRICS

__all__ = ["write_check"]


def write_check(check: ProfileCheck, judgement: Judgement, path: Path, *, read: Imported) -> None:
    """Write it."""
    quality = judgement.choices
    found = {
        "profile": check.profile.name,
        "rows_used_in_the_fit": sum(row.used for row in check.rows) if check.fit_known else None,
        "read": {
            "rows": read.read,
            "kept": len(read.rows),
            "left_out": dict(read.left_out),
            "files_not_read": read.not_read,
        },
        "left_out": dict(check.left_out),
        "rows": [_row(row) for row in check.rows],
        "errors": {
            group: {metric: row.model_dump() for metric, row in metrics.items()}
            for group, metrics in check.figures().items()
        },
        "tpot_limits_s": judgement.tpot_limits_s,
        "ttft_limit_s": judgement.ttft_limit_s,
        "points": [asdict(point) | {"flags": dict(point.flags)} for point in judgement.points],
        "capacity": [
            asdict(sweep)
            | {
                "flags": dict(sweep.flags),
                "error": asdict(sweep.error)
                | {"throughput_error": sweep.error.throughput_error, "load_error": sweep.error.load_error},
            }
            for sweep in judgement.capacities.sweeps
        ],
        "choices": [asdict(choice) | {"violates": choice.violates} for choice in quality.choices],
        "choice_quality": {
            "made": quality.made,
            "missed": quality.missed,
            "violations": quality.violations,
            "worst_violation": quality.worst_violation,
            "median_regret": quality.median_regret,
            "worst_regret": quality.worst_regret,
        },
    }
    path.write_text(json.dumps(_known(found), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _row(checked: CheckedRow) -> dict[str, Any]:
    row = checked.row
    found: dict[str, Any] = {
        "tensor_parallel_size": row.tensor_parallel_size,
        "isl": row.isl,
        "osl": row.osl,
        "length_low": row.length_low,
        "length_high": row.length_high,
        "concurrency": row.concurrency,
        "request_rate_rps": row.request_rate_rps,
    }
    for metric, unit, (predicted, measured), error in zip(
        METRICS, ("tpot_s", "tokens_per_s", "ttft_s"), checked.pairs(), checked.errors(), strict=True
    ):
        found |= {f"measured_{unit}": measured, f"predicted_{unit}": predicted, f"{metric}_error": error}
    return found | {
        "used": checked.used,
        "extrapolated": [str(part) for part in checked.outside],
        "weight": row.weight,
        "note": row.note,
        "date": checked.date,
        "engine_version": row.engine_version or row.file.engine_version,
        "file": row.file.path,
        "sources": row.file.source,
    }


def _known(value: Any) -> Any:
    """The same with null for NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _known(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_known(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
