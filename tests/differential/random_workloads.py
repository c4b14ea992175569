"""Random workloads by steps, pressed into small caches so that preemption is common, and the cases people ask about."""

from __future__ import annotations

import json

import numpy as np

from simulator.schedule_workload import ScheduleWorkload, parse_schedule_workload

__all__ = ["ENDLESS_WORKLOADS", "NAMED_WORKLOADS", "random_workload", "random_workloads"]


def random_workloads(seed: int, count: int) -> list[ScheduleWorkload]:
    """The i-th workload of a seed does not depend on how many are drawn."""
    return [random_workload(np.random.default_rng([seed, index])) for index in range(count)]


def random_workload(rng: np.random.Generator) -> ScheduleWorkload:
    """Up to 30 requests; every one fits the cache alone, most caches hold only a few of them."""
    max_num_seqs = int(rng.choice([1, 2, 3, 4, 6, 8, 12, 16]))
    budget = max_num_seqs + int(rng.choice([0, 1, 4, 12, 30, 80]))
    block_size = int(rng.choice([1, 2, 3, 4, 8, 16, 32, int(rng.integers(1, 33))]))
    max_model_len = int(rng.choice([48, 160, 4096]))
    count = int(rng.integers(1, 31))
    longest_prompt = int(rng.choice([4, 12, 30, budget, 3 * budget]))
    longest_answer = int(rng.choice([2, 12, 24, 40]))
    gap_steps = rng.geometric(float(rng.choice([0.2, 0.5, 0.8, 1.0])), count) - 1
    if rng.random() < 0.3:  # bursts: most arrive with the one before
        gap_steps[rng.random(count) < 0.8] = 0
    if rng.random() < 0.3:  # a pause long enough to work everything off
        gap_steps[rng.integers(count)] += 200
    arrival_step = np.cumsum(gap_steps)
    prompt_tokens = np.minimum(rng.integers(1, longest_prompt + 1, count), max_model_len - 1)
    answer_tokens = np.where(rng.random(count) < 0.15, 1, rng.integers(1, longest_answer + 1, count))
    cached_tokens = prompt_tokens + np.minimum(answer_tokens, max_model_len - prompt_tokens) - 1
    least_blocks = int(-(-cached_tokens.max() // block_size))
    spare_blocks = int(rng.choice([0, 1, int(rng.integers(0, 6)), int(rng.integers(0, least_blocks + 1)), 1000]))
    requests = [
        {"id": str(index), "arrival_step": int(step), "prompt_len": int(prompt), "max_tokens": int(answer)}
        for index, (step, prompt, answer) in enumerate(zip(arrival_step, prompt_tokens, answer_tokens, strict=True))
    ]
    flags = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": budget,
        "block_size": block_size,
        "max_model_len": max_model_len,
    }
    data = {"flags": flags, "num_blocks": 1 + least_blocks + spare_blocks, "requests": requests}
    return parse_schedule_workload(json.dumps(data))


def _endless(*requests: tuple[int, int, int], num_blocks: int, **flags: int) -> ScheduleWorkload:
    """Requests a, b, c, ... as (arrival step, prompt tokens, answer tokens); `num_blocks` without the null block."""
    rows = [
        {"id": chr(ord("a") + i), "arrival_step": step, "prompt_len": prompt, "max_tokens": answer}
        for i, (step, prompt, answer) in enumerate(requests)
    ]
    return ScheduleWorkload.model_validate({"flags": flags, "num_blocks": num_blocks + 1, "requests": rows})


def _workload(*requests: tuple[int, int, int], num_blocks: int, **flags: int) -> ScheduleWorkload:
    """The same, checked: it ends."""
    return parse_schedule_workload(_endless(*requests, num_blocks=num_blocks, **flags).model_dump_json())


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
}
"""What people ask about, by name."""

ENDLESS_WORKLOADS = {
    "a prompt that needs more blocks than exist": _endless((0, 16, 4), (1, 65, 4), (2, 16, 4), num_blocks=4),
    "an answer that outgrows the cache": _endless((0, 60, 9), (1, 16, 4), num_blocks=4),
}
"""vLLM's scheduler keeps such a request at the head of its queue for ever; its front end does not let it in."""
