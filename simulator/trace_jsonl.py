"""Traces with one JSON object a line: Mooncake's, Bailian's, and what vLLM's `timed_trace` plays.

All three have timestamp, input_length, output_length and hash_ids, and none says in the file what a timestamp counts or
how many tokens a block has. Mooncake's are milliseconds and 512 tokens (kvcache-ai/Mooncake, FAST25-release), Bailian's
seconds and 16 (alibaba-edu/qwen-bailian-usagetraces-anon, README). `timed_trace` is any of them, so its reader must be
told both. A prompt of L tokens has ceil(L / block) ids, the last block perhaps partial; a line where the number differs
is refused, because a wrong block size shows nowhere else. Bailian's sessions are followed through parent_chat_id.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from hardware_profiles.errors import InputError
from simulator.rows import Rows

__all__ = ["JsonlColumns", "JsonlFormat", "TimeUnit", "jsonl_facts", "read_jsonl"]

JsonlFormat: TypeAlias = Literal["mooncake", "bailian", "vllm_timed"]
TimeUnit: TypeAlias = Literal["s", "ms"]
JsonlColumns: TypeAlias = tuple[list[float], list[int], list[int], list[int] | None, Rows | None, dict[str, int]]
"""Seconds, prompt tokens, answer tokens, sessions, ids of blocks, rows dropped by reason."""

_FACTS: dict[str, tuple[TimeUnit, int]] = {"mooncake": ("ms", 512), "bailian": ("s", 16)}
_MOST_TOKENS = 1_000_000_000
_MOST_ID = 1 << 48


def jsonl_facts(
    format: JsonlFormat, time_unit: TimeUnit | None, block_tokens: int | None, path: Path
) -> tuple[TimeUnit, int]:
    """Unit of time and tokens of a block: the format's, or the user's; never a guess."""
    unit, block = _FACTS.get(format, (None, None))
    unit, block = time_unit or unit, block_tokens or block
    if unit is None or block is None:
        absent = "time_unit (s or ms)" if unit is None else "block_tokens (e.g. 512 in Mooncake's, 16 in Bailian's)"
        problem = f"a {format} trace does not say its {absent}, and every count looks right with a wrong one"
        raise InputError(f"{problem}; state it", file=str(path))
    return unit, block


def read_jsonl(path: Path, text: str, *, time_unit: TimeUnit, block_tokens: int, sessions: bool) -> JsonlColumns:
    """The requests of a file in its order; blank lines are no rows."""
    arrivals: list[float] = []
    prompts: list[int] = []
    outputs: list[int] = []
    values = array("q")  # 8 bytes an id; a list takes 36
    counts: list[int] = []
    session: list[int] = []
    session_of: dict[int, int] = {}
    found = 0
    dropped: dict[str, int] = {}
    per_second = 1000.0 if time_unit == "ms" else 1.0
    with_ids: bool | None = None
    for line, row_text in enumerate(text.split("\n"), start=1):
        if not row_text.strip():
            continue
        row = _object(row_text, path, line)
        arrival = _time(row, path, line) / per_second
        prompt, output = _count(row, "input_length", path, line), _count(row, "output_length", path, line)
        ids = row.get("hash_ids")
        if with_ids is None:
            with_ids = ids is not None
        if with_ids != (ids is not None):
            problem = "some lines have hash_ids and some have none; give all lines their ids, or none"
            raise InputError(problem, file=str(path), line=line, key="hash_ids")
        if sessions:
            found += _follow(row, session_of, found, path, line)
        if prompt == 0 or output == 0:
            reason = f"{'input_length' if prompt == 0 else 'output_length'} is 0"
            dropped[reason] = dropped.get(reason, 0) + 1
            continue
        if ids is not None:
            named = _checked_ids(ids, prompt, block_tokens, path, line)
            values.extend(named)
            counts.append(len(named))
        if sessions:
            session.append(session_of[_chat(row, "chat_id", path, line)])
        arrivals.append(arrival)
        prompts.append(prompt)
        outputs.append(output)
    rows = None
    if with_ids:
        rows = Rows(values=np.frombuffer(values, dtype=np.int64).copy(), count=np.array(counts, dtype=np.int64))
    return arrivals, prompts, outputs, session if sessions else None, rows, dropped


def _object(text: str, path: Path, line: int) -> Mapping[str, object]:
    try:
        row = json.loads(text, object_pairs_hook=_without_duplicates)
    except ValueError as error:
        raise InputError(f"not a JSON object: {error}; correct the line", file=str(path), line=line) from None
    except RecursionError:
        raise InputError("nested too deeply for a request; correct the line", file=str(path), line=line) from None
    if not isinstance(row, dict):
        raise InputError("the line is no JSON object; write one request a line", file=str(path), line=line)
    return row


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    row = dict(pairs)
    if len(row) != len(pairs):
        raise ValueError("the same key stands twice")
    return row


def _time(row: Mapping[str, object], path: Path, line: int) -> float:
    value = row.get("timestamp")
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e15 or math.isnan(value):
        problem = f"{str(value)[:40]!r} is not a time; write a number from 0"
        raise InputError(problem, file=str(path), line=line, key="timestamp")
    return float(value)


def _count(row: Mapping[str, object], key: str, path: Path, line: int) -> int:
    value = row.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_TOKENS:
        problem = f"{str(value)[:40]!r} is not a number of tokens; write a whole number from 0, or remove the line"
        raise InputError(problem, file=str(path), line=line, key=key)
    return value


def _chat(row: Mapping[str, object], key: str, path: Path, line: int) -> int:
    value = row.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        problem = f"{str(value)[:40]!r} is not the number of a chat; write a whole number"
        raise InputError(problem, file=str(path), line=line, key=key)
    return value


def _follow(row: Mapping[str, object], session_of: dict[int, int], found: int, path: Path, line: int) -> int:
    """Give a request its parent's session; 1 if it begins one. A parent before the recording begins one too."""
    chat, parent = _chat(row, "chat_id", path, line), _chat(row, "parent_chat_id", path, line)
    new = parent not in session_of
    session_of[chat] = found if new else session_of[parent]
    return int(new)


def _checked_ids(ids: object, prompt: int, block_tokens: int, path: Path, line: int) -> list[int]:
    if not isinstance(ids, list) or not all(type(value) is int and 0 <= value < _MOST_ID for value in ids):
        problem = f"hash_ids must be a list of whole numbers from 0 to {_MOST_ID - 1}; correct the line"
        raise InputError(problem, file=str(path), line=line, key="hash_ids")
    if len(ids) != -(-prompt // block_tokens):
        problem = f"{len(ids)} ids for {prompt} tokens, which are {-(-prompt // block_tokens)} blocks of {block_tokens}"
        cure = "state the block_tokens that the trace was recorded with, or correct the line"
        raise InputError(f"{problem}; {cure}", file=str(path), line=line, key="hash_ids")
    return ids
