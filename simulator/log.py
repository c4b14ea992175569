"""The request log: one row per arrived request, as columns, the same for a simulated and a measured run.

`score` reads nothing else. Columns and meanings are a contract (design 5): they are what `--requests-out` writes and
what a measured run must bring. Times are seconds from the start of the stream; NaN = never happened, or not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["LOG_COLUMNS", "PHASES", "STATUSES", "ReplicaTimes", "RequestLog", "write_log"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PHASES = ("warmup", "window", "runout")
STATUSES = ("finished", "failed", "rejected", "unfinished")

LOG_COLUMNS = (
    "request_id",
    "workload",
    "phase",
    "arrival_s",
    "sent_s",
    "scheduled_s",
    "first_token_s",
    "finish_s",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "status",
    "replica",
    "preemptions",
    "itl_max_s",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplicaTimes:
    """What each replica did with its time; arrays of length R."""

    prefill_s: Floats
    """Busy with prompt chunks: a mixed step counts what it took beyond its decodes alone."""
    decode_s: Floats
    """Busy with decoding."""
    in_system_s: Floats
    """Integral of the number of requests in the replica, kept by the engine itself (request-seconds)."""
    steps: Ints
    """Engine steps."""
    scheduled_tokens: Ints
    """Tokens computed, those recomputed after a preemption included."""
    discarded_tokens: Ints
    """Computed tokens lost to preemption."""
    preemptions: Ints
    """Requests preempted."""
    batch_peak: Ints
    """Most requests that ran at once."""
    kv_peak_fraction: Floats
    """Most KV blocks in use, as a share of all."""
    kv_blocks_held: Ints
    """Blocks still held by unfinished requests at the end."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestLog:
    """Every request that arrived, as columns of length N in order of arrival."""

    workload_names: tuple[str, ...]
    """Names that `workload` indexes."""
    workload: Ints
    phase: Ints
    """Index into PHASES."""
    arrival_s: Floats
    """Intended arrival at the front end."""
    sent_s: Floats
    """When the client really sent it; equal to arrival_s in a simulation."""
    scheduled_s: Floats
    """Start of the first step that worked on it."""
    first_token_s: Floats
    finish_s: Floats
    """Last token."""
    prompt_tokens: Ints
    cached_tokens: Ints
    """Prompt tokens found in the prefix cache."""
    output_tokens: Ints
    """Tokens given until the end of the run."""
    status: Ints
    """Index into STATUSES."""
    replica: Ints
    """-1 = none."""
    preemptions: Ints
    itl_max_s: Floats
    """Longest gap between two tokens; NaN with fewer than two tokens."""
    itl_edges_s: Floats
    """Edges of the gap histogram."""
    itl_counts: Ints
    """(workloads, edges + 1) token gaps of requests of the window."""
    end_s: float
    """When the run ended."""
    window_s: tuple[float, float]
    """Start and end of the measured window."""
    window_complete: bool
    """True when every request of the window has an end: the run-out was long enough."""
    replica_times: ReplicaTimes | None = None
    """None for a measured run."""

    def __len__(self) -> int:
        return len(self.arrival_s)

    def frame(self) -> pd.DataFrame:
        """The contract's columns as a table."""
        return pd.DataFrame(
            {
                "request_id": np.arange(len(self)),
                "workload": np.array(self.workload_names, dtype=object)[self.workload],
                "phase": np.array(PHASES, dtype=object)[self.phase],
                "arrival_s": self.arrival_s,
                "sent_s": self.sent_s,
                "scheduled_s": self.scheduled_s,
                "first_token_s": self.first_token_s,
                "finish_s": self.finish_s,
                "prompt_tokens": self.prompt_tokens,
                "cached_tokens": self.cached_tokens,
                "output_tokens": self.output_tokens,
                "status": np.array(STATUSES, dtype=object)[self.status],
                "replica": self.replica,
                "preemptions": self.preemptions,
                "itl_max_s": self.itl_max_s,
            },
            columns=list(LOG_COLUMNS),
        )


def write_log(log: RequestLog, path: Path) -> None:
    """Write the log as Parquet or CSV, by suffix; any other suffix is a `ValueError`."""
    if path.suffix == ".parquet":
        log.frame().to_parquet(path, index=False)
    elif path.suffix == ".csv":
        log.frame().to_csv(path, index=False)
    else:
        raise ValueError(f"{path.name}: the log is written as .csv or .parquet")
