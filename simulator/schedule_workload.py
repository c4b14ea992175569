"""A workload by engine steps: what `schedule_trace` plays and what vLLM's own scheduler is driven with.

A request arrives at a step, not at a time, so nothing here depends on how long a step takes. The file is JSON:
`{"flags": {...}, "num_blocks": 100, "requests": [{"id": "0", "arrival_step": 0, "prompt_len": 17, "max_tokens": 5}]}`,
with `prompt_tokens` (token ids) in the place of `prompt_len` where the tokens matter. `sliding_windows` has an entry
per KV cache group, null for full attention; the groups share one block size and one pool: `[null, 128]` is gpt-oss.

What the model would decide is written down, too: `eos_after` is the answer token that stops the request, `accepted`
how many drafts each verification accepts. Every answer token is `ANSWER_TOKEN`: equal prompts have equal answers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal
from zlib import crc32

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hardware_profiles.errors import InputError
from hardware_profiles.schema_errors import key_text, problems_of

__all__ = [
    "ANSWER_TOKEN",
    "STOP_TOKEN",
    "ScheduleFlags",
    "ScheduleRequest",
    "ScheduleWorkload",
    "SpeculativeConfig",
    "load_schedule_workload",
    "parse_schedule_workload",
]

MOST = 1_000_000_000
Count = Annotated[int, Field(ge=1, le=MOST)]

ANSWER_TOKEN, STOP_TOKEN = 7, 1
"""Token ids of an answer: every token of it, and the one that `eos_after` puts at its end."""


class SpeculativeConfig(BaseModel):
    """Speculative decoding with a fixed number of drafts a step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Literal["ngram", "eagle"]
    """`eagle` writes KV of its own: it takes k slots past the scheduled tokens, and a prefix hit is one block shorter.
    Under async scheduling vLLM calls the n-gram drafter `ngram_gpu`; its scheduler sees no difference."""
    num_speculative_tokens: Count


class ScheduleFlags(BaseModel):
    """Engine flags in vLLM's spelling, with small defaults for small examples."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_num_seqs: Count = 8
    max_num_batched_tokens: Count = 64
    max_model_len: Annotated[int, Field(ge=2, le=MOST)] = 4096
    block_size: Count = 16
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: Annotated[int, Field(ge=0, le=MOST)] = 0
    long_prefill_token_threshold_adaptive: bool = False
    enable_prefix_caching: bool = False
    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.0
    max_num_active_seqs: Count | None = None
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    async_scheduling: bool = False
    scheduler_reserve_full_isl: bool = True
    speculative_config: SpeculativeConfig | None = None

    @property
    def drafts_per_step(self) -> int:
        """k: `num_speculative_tokens`, 0 without speculation."""
        return self.speculative_config.num_speculative_tokens if self.speculative_config else 0

    @property
    def lookahead_tokens(self) -> int:
        """Slots taken past the scheduled tokens (`config/vllm.py: num_lookahead_tokens`): k for a drafter with KV."""
        config = self.speculative_config
        return config.num_speculative_tokens if config is not None and config.method == "eagle" else 0

    @property
    def max_in_flight_tokens(self) -> int:
        """Most tokens that are scheduled and not yet processed (`config/vllm.py: max_in_flight_tokens`)."""
        return (2 if self.async_scheduling else 1) * self.max_num_batched_tokens


class ScheduleRequest(BaseModel):
    """One request."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    arrival_step: Annotated[int, Field(ge=0, le=MOST)]
    max_tokens: Count
    prompt_len: Count | None = None
    prompt_tokens: Annotated[tuple[Annotated[int, Field(ge=0, le=MOST)], ...], Field(min_length=1)] | None = None
    priority: Annotated[int, Field(ge=-MOST, le=MOST)] = 0
    """Lower goes first; equal ones by arrival. Only with `scheduling_policy: priority`."""
    eos_after: Count | None = None
    """The answer ends with this token of it, although `max_tokens` allows more; the scheduler cannot know."""
    accepted: tuple[Annotated[int, Field(ge=0, le=MOST)], ...] = ()
    """Drafts accepted by the 1st, 2nd, ... verification of the request: at most those that were scheduled, 0 beyond the
    list. A verification is a processed output of a request that had drafts in that step; the placeholders with which
    vLLM pads a request in the step that admits it are rejected and count as none."""

    @property
    def prompt_length_tokens(self) -> int:
        """Tokens of the prompt, whichever way the file gives them."""
        return len(self.prompt_tokens) if self.prompt_tokens is not None else self.prompt_len or 0

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """The prompt: as given, or ids that depend on the request's name, so that nobody shares them."""
        if self.prompt_tokens is not None:
            return self.prompt_tokens
        return tuple(3 + crc32(f"{self.id}:{index}".encode()) % 200 for index in range(self.prompt_length_tokens))


class ScheduleWorkload(BaseModel):
    """Flags, cache and requests."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    flags: ScheduleFlags = ScheduleFlags()
    num_blocks: Count
    sliding_windows: Annotated[tuple[Annotated[int, Field(ge=2, le=MOST)] | None, ...], Field(min_length=1)] = (None,)
    requests: Annotated[tuple[ScheduleRequest, ...], Field(min_length=1)]

    @property
    def usable_blocks(self) -> int:
        """vLLM keeps block 0 of the pool as its null block (`v1/core/block_pool.py: BlockPool.__init__`)."""
        return self.num_blocks - 1

    @property
    def by_arrival(self) -> tuple[ScheduleRequest, ...]:
        """The requests as they reach the engine; those of one step in the order of the file."""
        return tuple(sorted(self.requests, key=lambda request: request.arrival_step))

    def most_output_tokens(self, request: ScheduleRequest) -> int:
        """Answer tokens that the scheduler has to reckon with: `max_tokens`, or a sequence of `max_model_len`."""
        return min(request.max_tokens, self.flags.max_model_len - request.prompt_length_tokens)

    def output_tokens(self, request: ScheduleRequest) -> int:
        """Answer tokens until vLLM stops (`v1/core/sched/utils.py: check_stop`): the above, or `eos_after` of them."""
        most = self.most_output_tokens(request)
        return most if request.eos_after is None else min(most, request.eos_after)

    def token_ids(self, request: ScheduleRequest) -> tuple[int, ...]:
        """The whole sequence, prompt and answer."""
        answer = [ANSWER_TOKEN] * self.output_tokens(request)
        if request.eos_after == len(answer):
            answer[-1] = STOP_TOKEN
        return (*request.prompt_token_ids, *answer)

    def most_slot_tokens(self, request: ScheduleRequest) -> int:
        """Most tokens of a request that ever need a place in the cache, the slots of drafts included.

        The last token of an answer is never read again and takes none. An async step is scheduled before the tokens of
        the one in flight are known, so it counts that one's drafts as accepted and goes on past a stop token.
        """
        drafts, output = self.flags.drafts_per_step, self.output_tokens(request)
        last = output - 1 + drafts
        if self.flags.async_scheduling:
            last = min(self.most_output_tokens(request) - 1, output) + 2 * drafts
        return min(request.prompt_length_tokens + last + self.flags.lookahead_tokens, self.flags.max_model_len)

    def most_blocks(self, request: ScheduleRequest) -> int:
        """Blocks that must exist for a request to end when it is alone, over all groups; never too few.

        A sliding window holds its last tokens and those in flight, and a block more where the window starts inside one
        (`v1/kv_cache_interface.py: SlidingWindowSpec.max_admission_blocks_per_request`).
        """
        flags, blocks = self.flags, 0
        for window in self.sliding_windows:
            held = -(-self.most_slot_tokens(request) // flags.block_size)
            if window is not None:
                kept_tokens = min(window - 1 + flags.max_in_flight_tokens, flags.max_model_len)
                held = min(held, -(-kept_tokens // flags.block_size) + 1)
            blocks += held
        return blocks


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
    _refuse_flags(workload, file)
    flags = workload.flags
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
        if request.eos_after is not None and request.eos_after > request.max_tokens:
            problem = f"{request.eos_after} is more than max_tokens {request.max_tokens}; leave it out or make it less"
            raise InputError(problem, file=file, key=f"{key}.eos_after")
        if request.priority != 0 and flags.scheduling_policy != "priority":
            problem = f"{request.priority} changes nothing while requests are served in order of arrival"
            cure = "leave it out, or write flags.scheduling_policy: priority"
            raise InputError(f"{problem}; {cure}", file=file, key=f"{key}.priority")
        if request.accepted and flags.speculative_config is None:
            problem = "there are no drafts without flags.speculative_config; leave it out or write that"
            raise InputError(problem, file=file, key=f"{key}.accepted")
        if workload.output_tokens(request) < 1:
            problem = (
                f"a prompt of {request.prompt_length_tokens} tokens leaves no room for an answer; vLLM refuses it: "
                f"shorten it or raise max_model_len {flags.max_model_len}"
            )
            raise InputError(problem, file=file, key=key)
        if (blocks := workload.most_blocks(request)) > workload.usable_blocks:
            tokens = f"{workload.most_slot_tokens(request)} tokens"
            if flags.speculative_config is not None:
                tokens += " (slots of drafts included)"
            if workload.sliding_windows != (None,):
                tokens += f" may need {blocks} blocks in {len(workload.sliding_windows)} KV cache group(s), which"
            problem = (
                f"{tokens} never fit the {workload.usable_blocks} usable blocks of {flags.block_size} "
                "(num_blocks less the null block); vLLM would keep the request waiting for ever: raise num_blocks"
            )
            raise InputError(problem, file=file, key=key)


def _refuse_flags(workload: ScheduleWorkload, file: str | None) -> None:
    flags, drafts = workload.flags, workload.flags.drafts_per_step
    for key, wrong, problem in (  # the first four are vLLM's own rules: `config/scheduler.py: SchedulerConfig`
        (
            "max_num_batched_tokens",
            flags.max_num_batched_tokens < flags.max_num_seqs,
            f"{flags.max_num_batched_tokens} is less than max_num_seqs {flags.max_num_seqs}; make it at least that",
        ),
        (
            "max_num_batched_tokens",
            not flags.enable_chunked_prefill and flags.max_num_batched_tokens < flags.max_model_len,
            f"{flags.max_num_batched_tokens} is less than max_model_len {flags.max_model_len}, and without chunked "
            "prefill a prompt must fit one step; make it at least that, or lower max_model_len",
        ),
        (
            "max_num_active_seqs",
            flags.max_num_active_seqs is not None and flags.max_num_active_seqs > flags.max_num_seqs,
            f"{flags.max_num_active_seqs} is more than max_num_seqs {flags.max_num_seqs}; make it at most that",
        ),
        (
            "long_prefill_token_threshold",
            flags.long_prefill_token_threshold > flags.max_model_len,
            f"{flags.long_prefill_token_threshold} is more than max_model_len {flags.max_model_len}; "
            "make it at most that",
        ),
        (
            "long_prefill_token_threshold",
            0 < flags.long_prefill_token_threshold <= drafts,
            f"{flags.long_prefill_token_threshold} would cut a token and its {drafts} drafts apart, which ends vLLM's "
            f"scheduler with an assertion; make it 0 or at least {drafts + 1}",
        ),
        (
            "max_num_batched_tokens",
            flags.max_num_batched_tokens <= drafts,
            f"{flags.max_num_batched_tokens} does not hold a token and its {drafts} drafts, for which vLLM would wait "
            f"for ever; make it at least {drafts + 1}",
        ),
        (
            "speculative_config",
            flags.lookahead_tokens > 0 and any(window is not None for window in workload.sliding_windows),
            "eagle is not followed with sliding windows; use ngram, or full attention only",
        ),
        (
            "speculative_config",
            flags.lookahead_tokens > 0 and flags.enable_prefix_caching and len(workload.sliding_windows) > 1,
            "eagle is not followed with prefix caching and several KV cache groups; use ngram, or one group",
        ),
    ):
        if wrong:
            raise InputError(problem, file=file, key=f"flags.{key}")
