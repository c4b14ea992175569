"""What one engine's scheduler is told: vLLM's flags that decide which request gets which tokens, and the KV blocks.

Source of rules and defaults: vLLM 0.32 `vllm/config/scheduler.py: SchedulerConfig`, `vllm/config/cache.py:
CacheConfig`, `vllm/v1/kv_cache_interface.py: SlidingWindowSpec`.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SchedulerSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """One scheduler. `EngineConfig` is what the user wrote; this is what of it reaches the step loop."""

    max_num_seqs: int
    """Seats of the running list."""
    max_num_batched_tokens: int
    """Most tokens in a step."""
    block_size: int
    """Tokens per KV block, equal in all groups."""
    num_blocks: int
    """KV blocks that requests can use (vLLM's count less its null block)."""
    max_model_len: int = 1 << 40
    """Most tokens of prompt and answer together."""
    enable_chunked_prefill: bool = True
    """Off: a prompt that does not fit what is left of the budget waits."""
    long_prefill_token_threshold: int = 0
    """Most tokens of one request in a step while another is there; 0 = no cap."""
    long_prefill_token_threshold_adaptive: bool = False
    """Raise that cap to a fair share of the budget."""
    watermark: float = 0.0
    """Share of all blocks to keep free when a request joins running ones."""
    max_num_active_seqs: int | None = None
    """Seats that may be taken; None = all."""
    priority_policy: bool = False
    """Priorities (`scheduling_policy: priority`) instead of first come, first served."""
    scheduler_reserve_full_isl: bool = True
    """A request joins only when all it knows would fit now."""
    async_scheduling: bool = False
    """The next step is scheduled before the outputs of the present one are known."""
    enable_prefix_caching: bool = False
    """Full blocks are found again by their content."""
    num_speculative_tokens: int = 0
    """Drafts per request and step."""
    speculative_lookahead: bool = False
    """The drafter has a KV cache of its own (EAGLE, MTP): it needs slots ahead and computes the last hit block anew."""
    sliding_windows: tuple[int, ...] = (0,)
    """One entry per KV cache group: its window in tokens, 0 = full attention."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_num_seqs <= self.max_num_batched_tokens:
            raise ValueError(
                f"max_num_seqs {self.max_num_seqs} must not exceed max_num_batched_tokens "
                f"{self.max_num_batched_tokens}, and must be at least 1"
            )
        if self.max_num_active_seqs is not None and not 1 <= self.max_num_active_seqs <= self.max_num_seqs:
            raise ValueError(
                f"max_num_active_seqs {self.max_num_active_seqs} must be between 1 and max_num_seqs {self.max_num_seqs}"
            )
        if self.speculative_lookahead and self.sliding_windows != (0,) and self.enable_prefix_caching:
            raise ValueError("a drafter with a KV cache, prefix caching and sliding windows together are not followed")

    @property
    def seats(self) -> int:
        """Most running requests (`Scheduler.max_num_active_reqs`)."""
        return self.max_num_seqs if self.max_num_active_seqs is None else self.max_num_active_seqs

    @property
    def watermark_blocks(self) -> int:
        """`KVCacheManager.watermark_blocks`: of all blocks, the null block included."""
        return int(self.watermark * (self.num_blocks + 1))

    @property
    def lookahead_tokens(self) -> int:
        """Slots past the scheduled tokens (`VllmConfig.num_lookahead_tokens`)."""
        return self.num_speculative_tokens if self.speculative_lookahead else 0

    @property
    def countable(self) -> bool:
        """Whether counts describe a batch, so that `kernel.py` can play it: requests are served in order, give one
        token a step, and hold one kind of block. With asynchronous scheduling that holds until somebody is
        preempted."""
        return (
            self.enable_chunked_prefill
            and self.long_prefill_token_threshold == 0
            and self.watermark_blocks == 0
            and self.seats == self.max_num_seqs
            and self.scheduler_reserve_full_isl
            and not self.priority_policy
            and self.num_speculative_tokens == 0
            and self.sliding_windows == (0,)
        )

    def long_prefill_cap_tokens(self, eligible: int) -> int:
        """The cap of a step in which `eligible` requests run or wait; 0 = none (`Scheduler.schedule`)."""
        if self.long_prefill_token_threshold == 0 or eligible <= 1:
            return 0
        if self.long_prefill_token_threshold_adaptive:
            return max(self.long_prefill_token_threshold, self.max_num_batched_tokens // eligible)
        return self.long_prefill_token_threshold

    def most_blocks_held(self, group: int) -> int:
        """Blocks that the admission check counts at most (`SlidingWindowSpec.max_admission_blocks_per_request`)."""
        window = self.sliding_windows[group]
        if window == 0:
            return 1 << 40
        in_flight_tokens = (2 if self.async_scheduling else 1) * self.max_num_batched_tokens
        return -(-min(window - 1 + in_flight_tokens, self.max_model_len) // self.block_size) + 1

    def fits_alone(self, *, prompt_tokens: int, output_tokens: int, open_end: bool = False) -> bool:
        """Whether a request could ever finish: all but the last token of the answer must fit; that is never read again.

        Drafts and their lookahead need slots as well, and under asynchronous scheduling so does the step in flight;
        `open_end`: the engine does not know where the answer ends.
        """
        beyond_tokens = self.num_speculative_tokens + self.lookahead_tokens
        if self.async_scheduling and (open_end or self.num_speculative_tokens):
            beyond_tokens += 1 + self.num_speculative_tokens
        slots = min(prompt_tokens + output_tokens - 1 + beyond_tokens, self.max_model_len)
        blocks = -(-slots // self.block_size)
        return sum(min(blocks, self.most_blocks_held(g)) for g in range(len(self.sliding_windows))) <= self.num_blocks

    def skipped_tokens(self, group: int, computed_tokens: int) -> int:
        """Tokens behind the window that no later token reads (`SlidingWindowManager.get_num_skipped_tokens`)."""
        window = self.sliding_windows[group]
        return max(0, computed_tokens - window + 1) if window else 0
