"""One request inside an engine: what was asked, how far it is, and what the log will say about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan

__all__ = ["Sequence"]


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """One request on its way through an engine. The words are those of vLLM's `v1/request.py: Request`."""

    index: int
    """Order of arrival."""
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    """Answer tokens that the model will give."""
    workload: int
    phase: int
    max_tokens: int | None = None
    """Answer tokens that the engine must expect; None = it ends by length, at output_tokens."""
    priority: int = 0
    """Lower goes first, under `scheduling_policy: priority`."""
    contents: tuple[int, ...] = ()
    """What each full block of prompt and answer holds, the blocks before it included: equal numbers, equal prefixes."""
    accepted: tuple[int, ...] = ()
    """Drafts accepted at its 1st, 2nd, ... verification; none beyond."""

    computed_tokens: int = 0
    """Tokens whose keys and values are cached, or will be when the steps in flight end."""
    emitted_tokens: int = 0
    """Answer tokens that the reader has."""
    placeholders: int = 0
    """Answer tokens that steps in flight will give (asynchronous scheduling), drafts included."""
    in_flight_tokens: int = 0
    """Tokens scheduled in steps whose output is not known yet."""
    stale_tokens: int = 0
    """The share of them that was scheduled before a preemption: their answers count, their progress does not."""
    drafts: int = 0
    """Draft tokens that wait to be verified."""
    verified: int = 0
    """Verifications so far."""
    prefilling: bool = False
    """Its last scheduled tokens did not complete what it knows."""
    decoding: bool = False
    """It has sampled since it was admitted: its steps are decode steps."""
    blocks: list[list[int | None]] = field(default_factory=list)
    """Its KV blocks by group; None where a sliding window has left the block."""
    registered: list[int] = field(default_factory=list)
    """How many of them, from the start, the prefix cache knows, by group."""
    junction_tokens: int = 0
    """Where a prefix ends that some KV cache groups know and a sliding window does not any more; 0 = nowhere."""
    finished: bool = False

    replica: int = -1
    rejected: bool = False
    scheduled_s: float = nan
    first_token_s: float = nan
    last_token_s: float = nan
    last_token_step: int = -1
    """Number of the step that gave its last token."""
    finish_s: float = nan
    itl_max_s: float = nan
    preemptions: int = 0
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache when it was first scheduled."""

    @property
    def known_tokens(self) -> int:
        """Prompt and answer tokens so far: what must be cached before the next token can be sampled."""
        return self.prompt_tokens + self.emitted_tokens

    @property
    def most_output_tokens(self) -> int:
        """vLLM's `request.max_tokens`."""
        return self.output_tokens if self.max_tokens is None else self.max_tokens
