"""Random workloads by steps, pressed into small caches so that preemption is common, and the cases people ask about."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from simulator.schedule_workload import ANSWER_TOKEN, ScheduleWorkload, parse_schedule_workload

__all__ = ["ENDLESS_WORKLOADS", "NAMED_WORKLOADS", "random_workload", "random_workloads"]

PLAIN = 0.3
"""This share of workloads has none of the features below; the others have each of them by chance."""
ENOUGH_BLOCKS = 1_000_000


def random_workloads(seed: int, count: int) -> list[ScheduleWorkload]:
    """The i-th workload of a seed does not depend on how many are drawn."""
    return [random_workload(np.random.default_rng([seed, index])) for index in range(count)]


def random_workload(rng: np.random.Generator) -> ScheduleWorkload:
    """Up to 30 requests; every one fits the cache alone, most caches hold only a few of them."""
    plain = rng.random() < PLAIN
    flags = random_flags(rng, plain=plain)
    windows = [None] if plain or rng.random() < 0.7 else random_windows(rng)
    windowed = any(window is not None for window in windows)
    if "speculative_config" in flags and (windowed or (len(windows) > 1 and flags["enable_prefix_caching"])):
        flags["speculative_config"]["method"] = "ngram"  # EAGLE is not followed there
    data = {
        "flags": flags,
        "num_blocks": ENOUGH_BLOCKS,
        "sliding_windows": windows,
        "requests": random_requests(rng, flags, plain=plain),
    }
    roomy = parse_schedule_workload(json.dumps(data))
    least_blocks = max(roomy.most_blocks(request) for request in roomy.requests)
    spare_blocks = int(rng.choice([0, 1, int(rng.integers(0, 6)), int(rng.integers(0, least_blocks + 1)), 1000]))
    return parse_schedule_workload(json.dumps(data | {"num_blocks": 1 + least_blocks + spare_blocks}))


def random_flags(rng: np.random.Generator, *, plain: bool) -> dict[str, Any]:
    max_num_seqs = int(rng.choice([1, 2, 3, 4, 6, 8, 12, 16]))
    flags: dict[str, Any] = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_seqs + int(rng.choice([0, 1, 4, 12, 30, 80])),
        "block_size": int(rng.choice([1, 2, 3, 4, 8, 16, 32, int(rng.integers(1, 33))])),
        "max_model_len": int(rng.choice([48, 160, 4096])),
    }
    if plain:
        return flags
    flags["enable_prefix_caching"] = bool(rng.random() < 0.6)
    flags["async_scheduling"] = bool(rng.random() < 0.5)
    drafts = 0
    if rng.random() < 0.35:
        drafts = int(rng.integers(1, 5))
        method = str(rng.choice(["ngram", "eagle", "eagle"]))
        flags["speculative_config"] = {"method": method, "num_speculative_tokens": drafts}
        flags["max_num_batched_tokens"] = max(flags["max_num_batched_tokens"], drafts + 1)
    if rng.random() < 0.3:
        flags["scheduling_policy"] = "priority"
    if rng.random() < 0.25:
        flags["long_prefill_token_threshold"] = drafts + int(rng.choice([1, 2, 5, 16, 40]))
        flags["long_prefill_token_threshold_adaptive"] = bool(rng.random() < 0.5)
    if rng.random() < 0.12:
        flags["enable_chunked_prefill"] = False
        flags["max_model_len"] = int(rng.choice([48, 160]))
        flags["max_num_batched_tokens"] = max(flags["max_num_batched_tokens"], flags["max_model_len"])
    if rng.random() < 0.2:
        flags["watermark"] = float(rng.choice([0.01, 0.1, 0.25, 0.6]))
    if rng.random() < 0.2:
        flags["max_num_active_seqs"] = int(rng.integers(1, max_num_seqs + 1))
    if rng.random() < 0.2:
        flags["scheduler_reserve_full_isl"] = False
    return flags


def random_windows(rng: np.random.Generator) -> list[int | None]:
    near, far = (int(window) for window in rng.integers(2, 41, 2))
    layouts: list[list[int | None]] = [
        [None, near],
        [near],
        [None, None, near],
        [None, near, far],
        [near, far],
        [None] * 2,
    ]
    return layouts[int(rng.choice(len(layouts), p=[0.4, 0.15, 0.15, 0.2, 0.05, 0.05]))]


def random_requests(rng: np.random.Generator, flags: dict[str, Any], *, plain: bool) -> list[dict[str, Any]]:
    budget, max_model_len = flags["max_num_batched_tokens"], flags["max_model_len"]
    count = int(rng.integers(1, 31))
    longest_prompt = int(rng.choice([4, 12, 30, budget, min(3 * budget, 250)]))
    longest_answer = int(rng.choice([2, 12, 24, 40]))
    gap_steps = rng.geometric(float(rng.choice([0.2, 0.5, 0.8, 1.0])), count) - 1
    if rng.random() < 0.3:  # bursts: most arrive with the one before
        gap_steps[rng.random(count) < 0.8] = 0
    if rng.random() < 0.3:  # a pause long enough to work everything off
        gap_steps[rng.integers(count)] += 200
    arrival_step = np.cumsum(gap_steps)
    prompt_tokens = np.minimum(rng.integers(1, longest_prompt + 1, count), max_model_len - 1)
    answer_tokens = np.where(rng.random(count) < 0.15, 1, rng.integers(1, longest_answer + 1, count))
    rows: list[dict[str, Any]] = [
        {"id": str(index), "arrival_step": int(step), "prompt_len": int(prompt), "max_tokens": int(answer)}
        for index, (step, prompt, answer) in enumerate(zip(arrival_step, prompt_tokens, answer_tokens, strict=True))
    ]
    if plain:
        return rows
    if rng.random() < (0.85 if flags["enable_prefix_caching"] else 0.1):
        share_prompts(rng, rows, block_size=flags["block_size"], longest=max(longest_prompt, 2), most=max_model_len - 1)
    stopping = float(rng.choice([0.0, 0.0, 0.3, 0.9]))
    for row in rows:
        if flags.get("scheduling_policy") == "priority":
            row["priority"] = int(rng.integers(0, 3))
        if rng.random() < stopping:
            row["eos_after"] = int(rng.integers(1, row["max_tokens"] + 1))
        if "speculative_config" in flags and rng.random() < 0.9:
            most = flags["speculative_config"]["num_speculative_tokens"] + 1  # now and then more than there are
            row["accepted"] = [int(taken) for taken in rng.integers(0, most + 1, int(rng.integers(0, 30)))]
    return rows


def share_prompts(
    rng: np.random.Generator, rows: list[dict[str, Any]], *, block_size: int, longest: int, most: int
) -> None:
    """Give most requests the beginning of a document, of an earlier prompt, or of an earlier prompt and its answer.

    The vocabulary may be tiny, so that requests share tokens by accident, too.
    """
    vocabulary = int(rng.choice([1, 2, 3, 40]))

    def tokens(count: int) -> list[int]:
        return [int(token) for token in rng.integers(8, 8 + vocabulary, count)]

    def length() -> int:
        blocks = -(-int(rng.integers(1, longest + 1)) // block_size)
        return blocks * block_size if rng.random() < 0.5 else int(rng.integers(1, longest + 1))

    documents = [tokens(length()) for _ in range(int(rng.integers(1, 5)))]
    prompts: list[list[int]] = []
    for row in rows:
        own, document = tokens(row.pop("prompt_len")), documents[rng.integers(len(documents))]
        kind = rng.random()
        if kind < 0.15 and prompts:  # the same again
            prompt = prompts[rng.integers(len(prompts))]
        elif kind < 0.3 and prompts:  # the next turn of a conversation
            prompt = prompts[rng.integers(len(prompts))] + [ANSWER_TOKEN] * int(rng.integers(1, 20)) + own[:8]
        elif kind < 0.85:
            prompt = document + own
        else:
            prompt = own
        prompts.append(prompt[:most])
        row["prompt_tokens"] = prompts[-1]


def _endless(
    *requests: tuple[int, int | list[int], int] | tuple[int, int | list[int], int, dict[str, Any]],
    num_blocks: int,
    windows: tuple[int | None, ...] = (None,),
    **flags: Any,
) -> ScheduleWorkload:
    """Requests a, b, c, ... as (arrival step, prompt, answer tokens, what else); a prompt is its length or its tokens.

    `num_blocks` is without the null block.
    """
    rows: list[dict[str, Any]] = []
    for index, (step, prompt, answer, *more) in enumerate(requests):
        row: dict[str, Any] = {"id": chr(ord("a") + index), "arrival_step": step, "max_tokens": answer}
        row |= {"prompt_len": prompt} if isinstance(prompt, int) else {"prompt_tokens": tuple(prompt)}
        rows.append(row | (more[0] if more else {}))
    data = {"flags": flags, "num_blocks": num_blocks + 1, "sliding_windows": windows, "requests": rows}
    return ScheduleWorkload.model_validate(data)


def _workload(
    *requests: tuple[int, int | list[int], int] | tuple[int, int | list[int], int, dict[str, Any]],
    num_blocks: int,
    windows: tuple[int | None, ...] = (None,),
    **flags: Any,
) -> ScheduleWorkload:
    """The same, checked: it ends."""
    return parse_schedule_workload(
        _endless(*requests, num_blocks=num_blocks, windows=windows, **flags).model_dump_json()
    )


def _text(count: int, first: int) -> list[int]:
    """Token ids that no other text here has, as long as `first` is hundreds away."""
    return list(range(first, first + count))


NGRAM_3 = {"method": "ngram", "num_speculative_tokens": 3}
EAGLE_2 = {"method": "eagle", "num_speculative_tokens": 2}

NAMED_WORKLOADS = {
    "a prompt longer than the token budget": _workload((0, 16, 9), (2, 150, 3), num_blocks=99),
    "answers of one token": _workload((0, 64, 1), (0, 65, 1), (1, 3, 1), num_blocks=99),
    "one seat": _workload((0, 16, 4), (0, 40, 2), (1, 16, 1), num_blocks=99, max_num_seqs=1),
    "one seat, one token a step": _workload(
        (0, 5, 4), (0, 3, 2), num_blocks=99, max_num_seqs=1, max_num_batched_tokens=1
    ),
    "a block larger than every sequence": _workload(*[(0, 5, 9)] * 3, num_blocks=2, block_size=4096),
    "a half-prefilled request is preempted": _workload(
        *[(0, 10, 30)] * 3, (2, 60, 4), num_blocks=100, block_size=1, max_num_batched_tokens=12
    ),
    "a sequence that fills the cache to the last token": _workload((0, 3, 14), (1, 3, 14), num_blocks=1, block_size=16),
    "an answer cut off by max_model_len": _workload((0, 20, 99), (1, 31, 9), num_blocks=9, max_model_len=32),
    "two are preempted in one step": _workload((0, 4, 6), (0, 4, 6), (0, 4, 6), num_blocks=3, block_size=4),
    "prefix caching: all requests share one prefix": _workload(
        *[(step, _text(40, 100) + _text(5, 1000 + 10 * step), 4) for step in range(5)],
        num_blocks=99,
        enable_prefix_caching=True,
    ),
    "prefix caching: the last token of a prompt is never a hit": _workload(
        (0, _text(32, 100), 3),
        (1, _text(32, 100), 3),
        (9, _text(33, 100), 3),
        num_blocks=99,
        enable_prefix_caching=True,
    ),
    "prefix caching: the end of what was freed first is evicted first": _workload(
        (0, _text(12, 100), 2),
        (5, _text(12, 200), 2),
        (10, _text(8, 300), 2),
        (15, _text(13, 200), 2),
        (20, _text(13, 100), 2),
        num_blocks=8,
        block_size=4,
        enable_prefix_caching=True,
    ),
    "prefix caching: a preempted half-prefilled request finds its own blocks again": _workload(
        *[(0, _text(10, 100 * i), 12) for i in range(1, 4)],
        (2, _text(60, 1000), 4),
        num_blocks=100,
        block_size=1,
        max_num_batched_tokens=12,
        enable_prefix_caching=True,
    ),
    "prefix caching: a conversation goes on from its answer": _workload(
        (0, _text(20, 100), 20),
        (30, _text(20, 100) + [ANSWER_TOKEN] * 20 + _text(9, 500), 5),
        num_blocks=99,
        enable_prefix_caching=True,
    ),
    "threshold: a prompt alone ignores it": _workload(
        (0, 150, 4), (9, 150, 4), (10, 150, 4), num_blocks=99, long_prefill_token_threshold=16
    ),
    "threshold: an adaptive one is a fair share at least": _workload(
        (0, 150, 4),
        (0, 90, 4),
        (1, 90, 4),
        (2, 3, 4),
        num_blocks=99,
        long_prefill_token_threshold=4,
        long_prefill_token_threshold_adaptive=True,
    ),
    "no chunked prefill: nobody passes the head of the queue, which waits for a step that holds all of it": _workload(
        (0, 40, 9),
        (0, 40, 3),
        (0, 2, 3),
        (1, 60, 2),
        (1, 2, 3),
        num_blocks=99,
        max_model_len=64,
        enable_chunked_prefill=False,
    ),
    "watermark: an admission is held back although it fits": _workload(
        (0, 32, 9), (1, 32, 9), (1, 16, 9), num_blocks=10, watermark=0.5
    ),
    "fewer active seats than max_num_seqs": _workload(*[(0, 9, 5)] * 5, num_blocks=99, max_num_active_seqs=2),
    "admission by the first chunk alone": _workload(
        (0, 90, 3), (0, 90, 3), (0, 90, 3), num_blocks=9, scheduler_reserve_full_isl=False
    ),
    "priority: one that the step had scheduled already gives way": _workload(
        (0, 1, 12, {"priority": 2}),
        (1, 4, 9, {"priority": 0}),
        num_blocks=4,
        block_size=4,
        scheduling_policy="priority",
    ),
    "priority: the first of the running list preempts itself": _workload(
        (0, 3, 12, {"priority": 2}),
        (1, 3, 9, {"priority": 0}),
        num_blocks=4,
        block_size=4,
        scheduling_policy="priority",
    ),
    "priority: a late request overtakes the queue": _workload(
        (0, 9, 9, {"priority": 1}),
        (0, 9, 4, {"priority": 1}),
        (2, 9, 4, {"priority": 0}),
        num_blocks=99,
        max_num_seqs=1,
        scheduling_policy="priority",
    ),
    "async: a stop token wastes a step, a length does not": _workload(
        (0, 20, 3), (0, 20, 9, {"eos_after": 3}), num_blocks=99, async_scheduling=True
    ),
    "async: a preempted request has an output under way": _workload(
        *[(0, 4, 6)] * 3, num_blocks=4, block_size=4, async_scheduling=True
    ),
    "async: an arrival takes over a seat one step later": _workload(
        (0, 16, 3), (0, 40, 2), (5, 16, 1), num_blocks=99, max_num_seqs=1, async_scheduling=True
    ),
    "async: the last steps of an engine are empty": _workload(
        (0, 4, 1), (9, 4, 2), num_blocks=9, async_scheduling=True
    ),
    "speculation: rejected drafts": _workload(
        (0, 20, 12, {"accepted": [0, 2, 3]}), (1, 20, 12), num_blocks=99, speculative_config=NGRAM_3
    ),
    "speculation: a request that needs one token is padded when it is admitted": _workload(
        (0, 20, 12, {"accepted": [0, 2, 3]}), (2, 1, 8, {"accepted": [3, 3]}), num_blocks=99, speculative_config=NGRAM_3
    ),
    "speculation: EAGLE takes slots ahead and gives up the last block of a prefix": _workload(
        (0, _text(49, 100), 6, {"accepted": [1, 2]}),
        (3, _text(49, 100), 6, {"accepted": [2]}),
        num_blocks=9,
        enable_prefix_caching=True,
        speculative_config=EAGLE_2,
    ),
    "speculation: drafts of an async step are counted as accepted": _workload(
        (0, 20, 12, {"accepted": [0, 2, 3]}),
        (1, 20, 12, {"accepted": [3, 0, 1]}),
        num_blocks=9,
        async_scheduling=True,
        speculative_config=NGRAM_3,
    ),
    "sliding window: blocks behind it are freed": _workload(
        (0, 30, 30), (1, 90, 9), num_blocks=80, block_size=4, windows=(None, 10), max_num_batched_tokens=24
    ),
    "sliding window: the only group": _workload(
        (0, 30, 30), (1, 90, 9), num_blocks=12, block_size=4, windows=(10,), max_num_batched_tokens=24
    ),
    "sliding window: async steps free a block one step later": _workload(
        (0, 30, 30),
        (1, 90, 9),
        num_blocks=80,
        block_size=4,
        windows=(None, 10),
        max_num_batched_tokens=24,
        async_scheduling=True,
    ),
    "sliding window: a prefix is kept at the end of a prompt and where another one leaves it": _workload(
        (0, _text(40, 100), 4),
        (8, _text(40, 100) + _text(9, 500), 4),
        (16, _text(20, 100) + _text(9, 600), 4),
        (24, _text(20, 100) + _text(9, 700), 4),
        num_blocks=99,
        block_size=4,
        windows=(None, 8),
        enable_prefix_caching=True,
    ),
}
"""What people ask about, by name."""

ENDLESS_WORKLOADS = {
    "a prompt that needs more blocks than exist": _endless((0, 16, 4), (1, 65, 4), (2, 16, 4), num_blocks=4),
    "an answer that outgrows the cache": _endless((0, 60, 9), (1, 16, 4), num_blocks=4),
}
"""vLLM's scheduler keeps such a request at the head of its queue for ever; its front end does not let it in."""
