"""A trace written as Mooncake's JSON lines, which AIPerf, GuideLLM and vLLM's `timed_trace` read.

Milliseconds from the first request, ids of 512-token blocks. What the format cannot say is refused (ids of others)
or left out (sessions, which the caller is told of by `sessions_lost`). Times are written with all their decimals.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from hardware_profiles.errors import InputError
from simulator.traces import Trace

__all__ = ["MOONCAKE_BLOCK_TOKENS", "mooncake_lines", "sessions_lost"]

MOONCAKE_BLOCK_TOKENS = 512


def mooncake_lines(trace: Trace) -> Iterator[str]:
    """One line a request, in order of arrival."""
    if trace.prefix_block_tokens not in (None, MOONCAKE_BLOCK_TOKENS):
        problem = f"its ids name blocks of {trace.prefix_block_tokens} tokens; Mooncake's blocks have 512"
        raise InputError(f"{problem}, so this trace cannot be written in that format", file=str(trace.path))
    ids = trace.prefix_ids.lists() if trace.prefix_ids is not None else None
    for i, arrival_s in enumerate(trace.arrival_s.tolist()):
        ms = round(arrival_s * 1000, 6)
        row: dict[str, object] = {
            "timestamp": int(ms) if ms == int(ms) else ms,
            "input_length": int(trace.prompt_tokens[i]),
            "output_length": int(trace.output_tokens[i]),
        }
        if ids is not None:
            row["hash_ids"] = list(ids[i])
        yield json.dumps(row) + "\n"


def sessions_lost(trace: Trace) -> int:
    """How many sessions the written file no longer tells apart."""
    return 0 if trace.session is None else int(trace.session.max()) + 1
