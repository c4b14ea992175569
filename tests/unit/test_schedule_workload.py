"""A workload by steps: the tokens it writes down, and the blocks it must have."""

import json
from typing import Any

import pytest

from hardware_profiles.errors import InputError
from simulator.schedule_workload import ScheduleWorkload, parse_schedule_workload


def workload_of(request: dict[str, Any], *, windows: list[int | None] | None = None, **flags: Any) -> ScheduleWorkload:
    row = {"id": "a", "arrival_step": 0} | request
    data = {"flags": flags, "num_blocks": 1000, "sliding_windows": windows or [None], "requests": [row]}
    return parse_schedule_workload(json.dumps(data))


def most_blocks(request: dict[str, Any], *, windows: list[int | None] | None = None, **flags: Any) -> int:
    workload = workload_of(request, windows=windows, **flags)
    return workload.most_blocks(workload.requests[0])


def test_a_prompt_given_by_its_length_has_tokens_that_depend_on_its_name() -> None:
    workload = workload_of({"prompt_len": 3, "max_tokens": 2})
    (request,) = workload.requests
    assert request.prompt_token_ids == (3, 33, 55)
    assert workload.token_ids(request) == (3, 33, 55, 7, 7)


def test_an_answer_ends_with_its_stop_token() -> None:
    workload = workload_of({"prompt_tokens": [5, 6], "max_tokens": 9, "eos_after": 3})
    (request,) = workload.requests
    assert workload.output_tokens(request) == 3
    assert workload.most_output_tokens(request) == 9
    assert workload.token_ids(request) == (5, 6, 7, 7, 1)


def test_max_model_len_ends_an_answer_before_its_stop_token() -> None:
    workload = workload_of({"prompt_tokens": [5, 6], "max_tokens": 9, "eos_after": 8}, max_model_len=6)
    (request,) = workload.requests
    assert workload.token_ids(request) == (5, 6, 7, 7, 7, 7)


ANSWER_OF_4 = {"prompt_len": 60, "max_tokens": 4}
DRAFTS_OF_2 = {"method": "ngram", "num_speculative_tokens": 2}


@pytest.mark.parametrize(
    ("blocks", "request_row", "flags"),
    [
        (63, ANSWER_OF_4, {}),
        (63, ANSWER_OF_4, {"async_scheduling": True}),
        (61, ANSWER_OF_4 | {"eos_after": 2}, {}),
        (62, ANSWER_OF_4 | {"eos_after": 2}, {"async_scheduling": True}),
        (65, ANSWER_OF_4, {"speculative_config": DRAFTS_OF_2}),
        (67, ANSWER_OF_4, {"speculative_config": DRAFTS_OF_2 | {"method": "eagle"}}),
        (67, ANSWER_OF_4, {"speculative_config": DRAFTS_OF_2, "async_scheduling": True}),
        (64, ANSWER_OF_4, {"speculative_config": DRAFTS_OF_2, "async_scheduling": True, "max_model_len": 64}),
    ],
)
def test_blocks_of_one_token_are_the_tokens_that_may_take_a_place(
    blocks: int, request_row: dict[str, Any], flags: dict[str, Any]
) -> None:
    assert most_blocks(request_row, block_size=1, **flags) == blocks


def test_a_sliding_window_holds_its_tokens_those_in_flight_and_a_block_more() -> None:
    assert most_blocks(ANSWER_OF_4, windows=[10], block_size=1, max_num_batched_tokens=20) == 9 + 20 + 1
    flags = {"max_num_batched_tokens": 20, "async_scheduling": True}
    assert most_blocks(ANSWER_OF_4, windows=[10], block_size=1, **flags) == 9 + 40 + 1
    assert most_blocks(ANSWER_OF_4, windows=[None, 10], block_size=1, **flags) == 63 + 50


def test_a_priority_that_changes_nothing_is_refused() -> None:
    request = {"prompt_len": 4, "max_tokens": 2, "priority": 1}
    with pytest.raises(InputError, match=r"requests\[0\].priority: 1 changes nothing .*scheduling_policy: priority"):
        workload_of(request)
    assert workload_of(request, scheduling_policy="priority").requests[0].priority == 1
    assert workload_of(request | {"priority": 0}).requests[0].priority == 0


@pytest.mark.parametrize("key", ["arrival_step", "max_tokens", "prompt_len", "max_num_seqs", "num_blocks"])
def test_a_number_beyond_any_machine_is_refused(key: str) -> None:
    request = {"id": "a", "arrival_step": 0, "prompt_len": 1, "max_tokens": 1}
    data: dict[str, Any] = {"flags": {}, "num_blocks": 1000, "requests": [request]}
    holder = next((part for part in (data, request) if key in part), data["flags"])
    holder[key] = 10**20
    with pytest.raises(InputError, match=f"{key}: .*at most 1000000000"):
        parse_schedule_workload(json.dumps(data))
