"""What a step holds and why, worked out by hand, one fact at a time, for every telling of the scheduler.

Requests are (arrival step, prompt, answer tokens) and called a, b, c, ...; blocks hold four tokens. vLLM's own class
was asked about each of these workloads and of those in `test_kv_block_facts.py` on 2026-12-01, and schedules the same.
"""

import json
from typing import Any

import pytest

from simulator.schedule_trace import ENGINES, ScheduledStep
from simulator.schedule_workload import parse_schedule_workload

all_tellings = pytest.mark.parametrize("engine", ENGINES)

Request = tuple[int, int | list[int], int] | tuple[int, int | list[int], int, dict[str, Any]]


def steps_of(
    engine: str, *requests: Request, blocks: int = 99, windows: tuple[int | None, ...] = (None,), **flags: Any
) -> list[ScheduledStep]:
    """The steps that a telling schedules; `blocks` are those that requests can use."""
    rows: list[dict[str, Any]] = []
    for index, (step, prompt, answer, *more) in enumerate(requests):
        row: dict[str, Any] = {"id": "abcdefgh"[index], "arrival_step": step, "max_tokens": answer}
        row |= {"prompt_len": prompt} if isinstance(prompt, int) else {"prompt_tokens": prompt}
        rows.append(row | (more[0] if more else {}))
    data = {
        "flags": {"block_size": 4} | flags,
        "num_blocks": blocks + 1,
        "sliding_windows": windows,
        "requests": rows,
    }
    return list(ENGINES[engine](parse_schedule_workload(json.dumps(data))))


def batches(steps: list[ScheduledStep]) -> list[dict[str, int]]:
    return [dict(step.scheduled) for step in steps]


def text(count: int, first: int) -> list[int]:
    """Token ids that no other text here has, as long as `first` is hundreds away."""
    return list(range(first, first + count))


# ---- Tokens of a step ----


@all_tellings
def test_the_threshold_cuts_a_prompt_only_while_another_request_is_there(engine: str) -> None:
    steps = steps_of(engine, (0, 150, 1), (0, 20, 1), long_prefill_token_threshold=16)
    assert batches(steps) == [{"a": 16, "b": 16}, {"a": 16, "b": 4}, {"a": 64}, {"a": 54}]


@all_tellings
def test_a_waiting_request_counts_as_another_one(engine: str) -> None:
    steps = steps_of(engine, (0, 100, 1), (0, 8, 1), max_num_seqs=1, long_prefill_token_threshold=16)
    assert batches(steps) == [{"a": 16}] * 6 + [{"a": 4}, {"b": 8}]


@all_tellings
def test_an_adaptive_threshold_is_a_fair_share_of_the_budget_or_the_threshold_if_that_is_more(engine: str) -> None:
    def first_step(threshold: int) -> dict[str, int]:
        flags: dict[str, Any] = {
            "long_prefill_token_threshold": threshold,
            "long_prefill_token_threshold_adaptive": True,
        }
        return batches(steps_of(engine, (0, 150, 1), (0, 90, 1), **flags))[0]

    assert first_step(4) == {"a": 32, "b": 32}
    assert first_step(40) == {"a": 40, "b": 24}


@all_tellings
def test_without_chunked_prefill_the_head_waits_for_room_and_nobody_passes_it(engine: str) -> None:
    steps = steps_of(engine, (0, 40, 2), (0, 40, 1), (0, 2, 1), max_model_len=64, enable_chunked_prefill=False)
    assert batches(steps) == [{"a": 40}, {"a": 1, "b": 40, "c": 2}]


@all_tellings
def test_fewer_active_seats_than_max_num_seqs(engine: str) -> None:
    steps = steps_of(engine, *[(0, 9, 3)] * 3, max_num_seqs=8, max_num_active_seqs=2)
    assert batches(steps) == [{"a": 9, "b": 9}, {"a": 1, "b": 1}, {"a": 1, "b": 1}, {"c": 9}, {"c": 1}, {"c": 1}]


# ---- Blocks ----


@all_tellings
def test_the_watermark_holds_an_admission_back_only_while_somebody_runs(engine: str) -> None:
    """Five of eleven blocks (the null block counts) are kept free; a takes eight of ten, for it is alone."""
    flags: dict[str, Any] = {"watermark": 0.5, "max_num_batched_tokens": 99}
    alone = steps_of(engine, (0, 32, 1), blocks=10, **flags)
    assert batches(alone) == [{"a": 32}]
    steps = steps_of(engine, (0, 4, 3), (1, 16, 1), blocks=10, **flags)  # four blocks and five, of eight that are free
    assert batches(steps) == [{"a": 4}, {"a": 1}, {"a": 1}, {"b": 16}]
    unmarked = steps_of(engine, (0, 4, 3), (1, 16, 1), blocks=10)
    assert batches(unmarked) == [{"a": 4}, {"a": 1, "b": 16}, {"a": 1}]


@all_tellings
def test_the_watermark_is_a_share_of_all_blocks_the_null_block_included(engine: str) -> None:
    """Seven blocks are free for the seven of b: a tenth of ten blocks is one to keep, 0.09 of them is none."""
    requests: list[Request] = [(0, 4, 3), (1, 28, 1)]
    held_back = steps_of(engine, *requests, blocks=9, watermark=0.1)
    assert batches(held_back)[1] == {"a": 1}
    admitted = steps_of(engine, *requests, blocks=9, watermark=0.09)
    assert batches(admitted)[1] == {"a": 1, "b": 28}


@all_tellings
def test_a_prompt_may_be_admitted_by_its_first_chunk_alone(engine: str) -> None:
    requests: list[Request] = [(0, 4, 9), (1, 36, 1)]  # at step 1 eight blocks are free and nine are needed in the end
    flags: dict[str, Any] = {"blocks": 10, "max_num_batched_tokens": 9}
    assert batches(steps_of(engine, *requests, **flags))[1] == {"a": 1}
    first_chunk = steps_of(engine, *requests, scheduler_reserve_full_isl=False, **flags)
    assert batches(first_chunk)[1] == {"a": 1, "b": 8}


# ---- Priorities ----


@all_tellings
def test_an_urgent_request_overtakes_the_queue(engine: str) -> None:
    flags: dict[str, Any] = {"max_num_seqs": 1, "scheduling_policy": "priority"}
    steps = steps_of(
        engine, (0, 9, 2, {"priority": 1}), (0, 9, 1, {"priority": 1}), (1, 9, 1, {"priority": 0}), **flags
    )
    assert batches(steps) == [{"a": 9}, {"a": 1}, {"c": 9}, {"b": 9}]


@all_tellings
def test_priority_preempts_in_the_middle_of_the_step_and_the_budget_comes_back(engine: str) -> None:
    """In step 7 b needs its third block and none of seventeen is free. The least urgent gives way: a, which had its
    token in this step already. That is taken back, so the chunk of c, the rest of the budget, is nine and not eight.
    """
    steps = steps_of(
        engine,
        (0, 20, 30, {"priority": 2}),
        (2, 4, 30, {"priority": 0}),
        (3, 60, 1, {"priority": 1}),
        blocks=17,
        max_num_batched_tokens=10,
        scheduling_policy="priority",
        scheduler_reserve_full_isl=False,
    )
    assert batches(steps)[3:7] == [{"a": 1, "b": 1, "c": 8}] * 4
    assert [step.free_blocks for step in steps[3:7]] == [7, 5, 3, 0]
    assert steps[7] == ScheduledStep(step=7, scheduled=(("b", 1), ("c", 9)), preempted=("a",), free_blocks=3)


@all_tellings
def test_by_priority_the_first_of_the_running_list_can_preempt_itself_and_the_step_is_empty(engine: str) -> None:
    """Both hold two of four blocks; in step 6 a needs a third before b has had its turn."""
    steps = steps_of(
        engine, (0, 3, 9, {"priority": 2}), (1, 3, 9, {"priority": 0}), blocks=4, scheduling_policy="priority"
    )
    assert batches(steps)[5] == {"a": 1, "b": 1}
    assert steps[6] == ScheduledStep(step=6, scheduled=(), preempted=("a",), free_blocks=2)
    assert batches(steps)[7] == {"b": 1}


# ---- Asynchronous scheduling ----


@all_tellings
def test_a_stop_token_wastes_a_slot_and_a_length_does_not(engine: str) -> None:
    """Both give three tokens. Step 3 is scheduled before the third is known: a must have ended, b may go on."""
    steps = steps_of(engine, (0, 20, 3), (0, 20, 9, {"eos_after": 3}), async_scheduling=True)
    assert batches(steps) == [{"a": 20, "b": 20}, {"a": 1, "b": 1}, {"a": 1, "b": 1}, {"b": 1}]
    synchronous = steps_of(engine, (0, 20, 3), (0, 20, 9, {"eos_after": 3}))
    assert batches(synchronous) == batches(steps)[:3]


@all_tellings
def test_a_request_preempted_with_its_last_token_in_flight_ends_while_it_waits(engine: str) -> None:
    """Step 5 is scheduled while step 4 gives b its last token: a needs a block, and b holds two of the four. Step 6 is
    empty: it is scheduled while step 5 gives a its last."""
    steps = steps_of(engine, (0, 4, 6), (0, 4, 5), blocks=4, async_scheduling=True)
    assert batches(steps) == [{"a": 4, "b": 4}] + [{"a": 1, "b": 1}] * 4 + [{"a": 1}, {}]
    assert [step.preempted for step in steps] == [()] * 5 + [("b",), ()]
    assert not any(step.preempted for step in steps_of(engine, (0, 4, 6), (0, 4, 5), blocks=4))


# ---- Speculation ----

NGRAM_3 = {"method": "ngram", "num_speculative_tokens": 3}


@all_tellings
def test_accepted_drafts_shorten_the_answer(engine: str) -> None:
    """One token from the prompt's step, then four, four, and the three that are left of twelve."""
    steps = steps_of(engine, (0, 20, 12, {"accepted": [3, 3, 3]}), speculative_config=NGRAM_3)
    assert batches(steps) == [{"a": 20}, {"a": 4}, {"a": 4}, {"a": 4}]


@all_tellings
def test_refused_drafts_are_computed_and_taken_back(engine: str) -> None:
    """Every step computes four tokens and keeps one, so the blocks grow with the answer: 21 slots are six blocks, and
    the slots of three drafts reach into the seventh when 25 are needed."""
    steps = steps_of(engine, (0, 20, 4), speculative_config=NGRAM_3)
    assert batches(steps) == [{"a": 20}, {"a": 4}, {"a": 4}, {"a": 4}]
    assert [step.free_blocks for step in steps] == [94, 93, 92, 92]


@all_tellings
def test_a_request_that_needs_one_token_is_padded_to_the_width_of_the_others(engine: str) -> None:
    steps = steps_of(engine, (0, 20, 9), (2, 1, 1), speculative_config=NGRAM_3)
    assert batches(steps)[2] == {"a": 4, "b": 4}


@all_tellings
def test_where_the_padding_does_not_fit_nobody_behind_it_is_tried(engine: str) -> None:
    """Three tokens are left in step 2: b would take four, so c does not get the two that it needs."""
    requests: list[Request] = [(0, 4, 3), (2, 1, 1), (2, 2, 1)]
    steps = steps_of(engine, *requests, max_num_batched_tokens=7, max_num_seqs=4, speculative_config=NGRAM_3)
    assert batches(steps) == [{"a": 4}, {"a": 4}, {"a": 4}, {"b": 1, "c": 2}]
