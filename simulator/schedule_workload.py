"""A workload by engine steps: what `schedule_trace` plays and what vLLM's own scheduler is driven with.

A request arrives at a step, not at a time, so nothing here depends on how long a step takes. The file is JSON:
`{"flags": {...}, "num_blocks": 100, "requests": [{"id": "0", "arrival_step": 0, "prompt_len": 17, "max_tokens": 5}]}`,
with `prompt_tokens` (token ids) in the place of `prompt_len` where the tokens matter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hardware_profiles.errors import InputError
from hardware_profiles.schema_errors import key_text, problems_of

__all__ = ["ScheduleFlags", "ScheduleRequest", "ScheduleWorkload", "load_schedule_workload", "parse_schedule_workload"]

Count = Annotated[int, Field(ge=1)]

NOT_BUILT_YET = {
    "enable_prefix_caching": (False, "leave it out or write false"),
    "enable_chunked_prefill": (True, "leave it out or write true"),
    "long_prefill_token_threshold": (0, "leave it out or write 0"),
}
"""Flags that vLLM knows and the simulator does not follow: the one value that is accepted, and the cure."""


class ScheduleFlags(BaseModel):
    """Engine flags in vLLM's spelling, with small defaults for small examples."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_num_seqs: Count = 8
    max_num_batched_tokens: Count = 64
    max_model_len: Annotated[int, Field(ge=2)] = 4096
    block_size: Count = 16
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: Annotated[int, Field(ge=0)] = 0
    enable_prefix_caching: bool = False


class ScheduleRequest(BaseModel):
    """One request."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    arrival_step: Annotated[int, Field(ge=0)]
    max_tokens: Count
    prompt_len: Count | None = None
    prompt_tokens: Annotated[tuple[int, ...], Field(min_length=1)] | None = None

    @property
    def prompt_length_tokens(self) -> int:
        """Tokens of the prompt, whichever way the file gives them."""
        return len(self.prompt_tokens) if self.prompt_tokens is not None else self.prompt_len or 0


class ScheduleWorkload(BaseModel):
    """Flags, cache and requests."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    flags: ScheduleFlags = ScheduleFlags()
    num_blocks: Count
    requests: Annotated[tuple[ScheduleRequest, ...], Field(min_length=1)]

    @property
    def usable_blocks(self) -> int:
        """vLLM keeps block 0 of the pool as its null block (`v1/core/block_pool.py: BlockPool.__init__`)."""
        return self.num_blocks - 1

    @property
    def by_arrival(self) -> tuple[ScheduleRequest, ...]:
        """The requests as they reach the engine; those of one step in the order of the file."""
        return tuple(sorted(self.requests, key=lambda request: request.arrival_step))

    def output_tokens(self, request: ScheduleRequest) -> int:
        """Answer tokens until vLLM stops: `max_tokens`, or a sequence of `max_model_len` (`utils.py: check_stop`)."""
        return min(request.max_tokens, self.flags.max_model_len - request.prompt_length_tokens)


def load_schedule_workload(path: Path) -> ScheduleWorkload:
    """Read and check a workload file; every mistake is an `InputError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=str(path)) from None
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text; save it as UTF-8", file=str(path)) from None
    return parse_schedule_workload(text, file=str(path))


def parse_schedule_workload(text: str, *, file: str | None = None) -> ScheduleWorkload:
    """Check a workload given as JSON text."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"is not JSON: {error.msg} (column {error.colno})", file=file, line=error.lineno) from None
    if not isinstance(data, dict):
        raise InputError("is not a workload; it must be a mapping with num_blocks and requests", file=file)
    try:
        workload = ScheduleWorkload.model_validate_json(text, strict=True)
    except ValidationError as error:
        problems = problems_of(error, ScheduleWorkload, data, "a workload")
        raise InputError(problems[0][1], file=file, key=key_text(problems[0][0]) or None) from None
    _refuse_what_cannot_be_followed(workload, file)
    return workload


def _refuse_what_cannot_be_followed(workload: ScheduleWorkload, file: str | None) -> None:
    flags = workload.flags
    for name, (accepted, cure) in NOT_BUILT_YET.items():
        value = getattr(flags, name)
        if value != accepted:
            problem = f"{json.dumps(value)} is not built yet; {cure}"
            raise InputError(problem, file=file, key=f"flags.{name}")
    if flags.max_num_batched_tokens < flags.max_num_seqs:  # vLLM's rule too: `config/scheduler.py`
        problem = (
            f"{flags.max_num_batched_tokens} is less than max_num_seqs {flags.max_num_seqs}; make it at least that"
        )
        raise InputError(problem, file=file, key="flags.max_num_batched_tokens")
    seen: set[str] = set()
    for index, request in enumerate(workload.requests):
        key = f"requests[{index}]"
        if request.id in seen:
            raise InputError(f"{request.id!r} is the id of two requests; give each its own", file=file, key=f"{key}.id")
        seen.add(request.id)
        if request.prompt_length_tokens == 0:
            raise InputError("needs prompt_len or prompt_tokens", file=file, key=key)
        if request.prompt_tokens is not None and request.prompt_len not in (None, len(request.prompt_tokens)):
            problem = f"{request.prompt_len} differs from the {len(request.prompt_tokens)} prompt_tokens; leave one out"
            raise InputError(problem, file=file, key=f"{key}.prompt_len")
        if workload.output_tokens(request) < 1:
            problem = (
                f"a prompt of {request.prompt_length_tokens} tokens leaves no room for an answer; vLLM refuses it: "
                f"shorten it or raise max_model_len {flags.max_model_len}"
            )
            raise InputError(problem, file=file, key=key)
        # The last token of an answer is never read again, so it takes no place in the cache.
        cached_tokens = request.prompt_length_tokens + workload.output_tokens(request) - 1
        if -(-cached_tokens // flags.block_size) > workload.usable_blocks:
            problem = (
                f"{cached_tokens} tokens never fit the {workload.usable_blocks} usable blocks of {flags.block_size} "
                "(num_blocks less the null block); vLLM would keep the request waiting for ever: raise num_blocks"
            )
            raise InputError(problem, file=file, key=key)
