"""What the prefix cache finds and loses, and what a sliding window frees, worked out by hand, for every telling.

A hit shows in the tokens of the step that admits: those found are not computed. Blocks hold four tokens.
"""

from typing import Any

from simulator.schedule_trace import ScheduledStep
from tests.unit.test_scheduler_facts import Request, all_tellings, batches, steps_of, text


def cached(engine: str, *requests: Request, blocks: int = 99, **more: Any) -> list[ScheduledStep]:
    return steps_of(engine, *requests, blocks=blocks, enable_prefix_caching=True, **more)


A, B = text(12, 100), text(12, 200)


# ---- Hits ----


@all_tellings
def test_a_hit_is_whole_blocks_and_never_the_last_token(engine: str) -> None:
    """The same 8 tokens again find one block of two; with one token behind them both; 7 equal ones are one block."""
    steps = cached(engine, (0, A[:8], 1), (1, A[:8], 1), (2, [*A[:8], 9], 1), (3, [*A[:7], 9, 9], 1))
    assert batches(steps) == [{"a": 8}, {"b": 4}, {"c": 1}, {"d": 5}]


@all_tellings
def test_a_block_is_found_in_the_very_step_that_computes_it(engine: str) -> None:
    steps = cached(engine, (0, A[:8], 1), (0, [*A[:8], 9], 1), blocks=10)
    assert steps[0].scheduled == (("a", 8), ("b", 1))
    assert steps[0].free_blocks == 10 - 3


@all_tellings
def test_two_that_compute_the_same_block_at_once_both_keep_theirs(engine: str) -> None:
    """b finds the first block of a and computes the second itself, which then exists twice. When c takes the older of
    the two (the front of the free list is the fourth block, never used, then it), d still finds the other one."""
    steps = cached(engine, (0, A[:8], 1), (0, A[:8], 1), (1, B[:8], 1), (2, [*A[:8], 9], 1), blocks=4)
    assert steps[0].scheduled == (("a", 8), ("b", 4))
    assert steps[0].free_blocks == 4 - 3
    assert batches(steps)[1:] == [{"c": 8}, {"d": 1}]


@all_tellings
def test_a_preempted_request_finds_its_own_blocks_again(engine: str) -> None:
    """In step 1 the fifth block goes to a, and b loses its two. From step 3 on, when a has left, it needs one token."""
    steps = cached(engine, (0, A[:8], 3), (0, B[:8], 3), blocks=5)
    assert batches(steps) == [{"a": 8, "b": 8}, {"a": 1}, {"a": 1}, {"b": 1}, {"b": 1}]
    assert [step.preempted for step in steps] == [(), ("b",), (), (), ()]
    without = steps_of(engine, (0, A[:8], 3), (0, B[:8], 3), blocks=5)
    assert batches(without)[3] == {"b": 9}


@all_tellings
def test_a_drafter_with_a_cache_of_its_own_gives_up_the_last_block_of_a_hit(engine: str) -> None:
    def second(method: str) -> dict[str, int]:
        config = {"method": method, "num_speculative_tokens": 2}
        return batches(cached(engine, (0, [*A, 8], 1), (2, [*A, 9], 1), speculative_config=config))[1]

    assert second("ngram") == {"b": 3}  # the last token, and two dummies that make it as wide as a decode
    assert second("eagle") == {"b": 5}


# ---- Eviction ----


@all_tellings
def test_a_block_that_nobody_can_find_again_goes_first(engine: str) -> None:
    """a and b leave a full block and a partial one each. c takes two: the partial block of b, then the one never used
    (the partial block of a went to b). By age alone the full block of a would be the second to go."""
    steps = cached(engine, (0, A[:6], 1), (1, B[:6], 1), (2, text(8, 300), 1), (3, A[:6], 1), blocks=4)
    assert batches(steps) == [{"a": 6}, {"b": 6}, {"c": 8}, {"d": 2}]


@all_tellings
def test_the_last_blocks_of_a_prefix_go_first(engine: str) -> None:
    """b takes the block never used and the third of a; its first two are still found."""
    steps = cached(engine, (0, A, 1), (1, B[:8], 1), (2, [*A, 9], 1), blocks=4)
    assert batches(steps) == [{"a": 12}, {"b": 8}, {"c": 5}]


@all_tellings
def test_what_was_used_last_stays_longest(engine: str) -> None:
    """c uses the block of a again, so d, which needs three, takes the older one of b."""
    steps = cached(
        engine,
        (0, A[:4], 1),
        (1, B[:4], 1),
        (2, A[:5], 1),
        (3, text(12, 300), 1),
        (4, A[:5], 1),
        (5, B[:5], 1),
        blocks=4,
    )
    assert batches(steps) == [{"a": 4}, {"b": 4}, {"c": 1}, {"d": 12}, {"e": 1}, {"f": 5}]


# ---- Sliding windows ----


@all_tellings
def test_blocks_behind_the_window_are_freed(engine: str) -> None:
    """A window of 10 reads the last 9 tokens and the new one: of 30 cached tokens 21 are behind it, five full blocks.
    Behind the 33rd token a sixth is free."""
    steps = steps_of(engine, (0, 30, 6), blocks=20, windows=(10,))
    assert [step.free_blocks for step in steps] == [12, 17, 17, 16, 17, 17]


@all_tellings
def test_two_in_flight_free_the_blocks_behind_the_window_one_step_later(engine: str) -> None:
    steps = steps_of(engine, (0, 30, 6), blocks=20, windows=(10,), async_scheduling=True)
    assert [step.free_blocks for step in steps if step.scheduled] == [12, 12, 17, 16, 16, 17]


@all_tellings
def test_a_window_keeps_only_the_blocks_before_the_end_of_a_prompt_and_before_a_junction(engine: str) -> None:
    """A window of 8 needs two blocks before the token that goes on. Of a's ten it keeps the two before the last prompt
    token, up to token 36, so b, which begins with all of a, finds 36. c leaves after 20 tokens: full attention knows
    them, the window does not, nothing is found, and the junction is learned. d leaves there, too, and finds 20."""
    document = text(40, 100)
    steps = cached(
        engine,
        (0, document, 1),
        (1, document + text(9, 500), 1),
        (2, document[:20] + text(9, 600), 1),
        (3, document[:20] + text(9, 700), 1),
        windows=(None, 8),
    )
    assert batches(steps) == [{"a": 40}, {"b": 49 - 36}, {"c": 29}, {"d": 29 - 20}]
