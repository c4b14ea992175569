"""What the clock, the front end and data-parallel ranks add to a scheduler, worked out by hand, for every telling.

Steps take one second unless said otherwise, so that times are step numbers.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.engine import EngineConfig
from simulator.log import RequestLog
from simulator.reference import Rank
from simulator.rows import Rows
from simulator.run import Backend, Window, simulate
from simulator.scheduler import Scheduler
from simulator.scheduler_settings import SchedulerSettings
from simulator.score import Targets, score
from simulator.sequence import Sequence
from simulator.steptime import StepTimeModel
from simulator.tables import IN_WINDOW
from simulator.workload import RequestStream
from tests.step_times import NO_TIME

all_backends = pytest.mark.parametrize("backend", ["kernel", "full-kernel", "reference"])

ONE_SECOND = replace(NO_TIME, decode_s=np.ones(513), mixed_s=np.ones(513))


def play(
    *requests: tuple[float, int, int],
    backend: Backend,
    model: StepTimeModel = ONE_SECOND,
    num_blocks: int = 1000,
    window: Window | None = None,
    in_lockstep: bool = False,
    columns: dict[str, Any] | None = None,
    **flags: Any,
) -> RequestLog:
    """Requests as (arrival second, prompt tokens, output tokens), on one replica; `columns` of the stream."""
    arrival_s, prompt_tokens, output_tokens = (np.array(column) for column in zip(*requests, strict=True))
    stream = RequestStream(
        arrival_s=arrival_s.astype(np.float64),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        workload=np.zeros(len(requests), dtype=np.int32),
        workload_names=("chat",),
        span_s=float(arrival_s[-1]),
        clipped_fraction=(0.0,),
        **(columns or {}),
    )
    sizes = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 4096, "async_scheduling": False}
    return simulate(
        stream,
        engine=EngineConfig(tensor_parallel_size=1, **(sizes | flags)),
        model=model,
        num_blocks=num_blocks,
        replicas=1,
        window=window,
        backend=backend,
        in_lockstep=in_lockstep,
    )


# ---- The front end's limits ----

FINISHED, TURNED_AWAY = 0, 2


@all_backends
def test_a_server_with_as_many_unfinished_requests_as_it_may_have_answers_503(backend: Backend) -> None:
    """The third finds two. The fourth comes when the first has left, after two steps."""
    rows = [(0.0, 16, 2), (0.0, 16, 9), (0.5, 16, 2), (2.5, 16, 2)]
    log = play(*rows, backend=backend, max_num_queued_reqs=2)
    assert log.status.tolist() == [FINISHED, FINISHED, TURNED_AWAY, FINISHED]
    assert log.replica[2] == -1 and log.output_tokens[2] == 0
    assert np.isnan([log.scheduled_s[2], log.first_token_s[2], log.finish_s[2]]).all()


@all_backends
def test_a_whole_prompt_counts_as_queued_until_its_first_token(backend: Backend) -> None:
    """A hundred tokens take two steps of 64. After the first of them 36 are left, and a hundred still count."""
    rows = [(0.0, 100, 5), (1.5, 8, 1), (2.5, 8, 1)]
    log = play(*rows, backend=backend, max_num_queued_tokens=100)
    assert log.first_token_s[0] == 2.0
    assert log.status.tolist() == [FINISHED, TURNED_AWAY, FINISHED]


@all_backends
def test_the_own_prompt_does_not_count(backend: Backend) -> None:
    """So 90 and 90 come in under a limit of 100, and then one token does not."""
    log = play((0.0, 90, 1), (0.0, 90, 1), (0.0, 1, 1), backend=backend, max_num_queued_tokens=100)
    assert log.status.tolist() == [FINISHED, FINISHED, TURNED_AWAY]


@all_backends
def test_a_503_of_the_window_is_judged_as_a_miss_and_does_not_keep_the_run_open(backend: Backend) -> None:
    rows = [(0.0, 16, 2), (0.5, 16, 2), (5.0, 16, 9), (9.0, 16, 9)]
    log = play(*rows, backend=backend, max_num_queued_reqs=1, window=Window(start_s=0.0, end_s=1.0))
    assert log.status.tolist() == [FINISHED, TURNED_AWAY]
    assert log.window_complete
    assert log.end_s == 5.0
    promised = Targets(per_request_s={"e2e": 99.0}, percentiles=(), attainment=0.9, deadline_s=None)
    judged = score(log, {"chat": promised}).workload("chat")
    assert (judged.judged, judged.attainment) == (2, 0.5)


# ---- What readers see ----


@all_backends
def test_tokens_of_one_step_reach_the_reader_together(backend: Backend) -> None:
    """With three drafts accepted a step gives four tokens: one from the prompt's step, then 4, 4 and the last 3."""
    columns = {"accepted": Rows.of([[3, 3, 3]])}
    log = play((0.0, 20, 12), backend=backend, columns=columns, num_speculative_tokens=3)
    assert (log.first_token_s[0], log.finish_s[0]) == (1.0, 4.0)
    assert log.output_tokens.tolist() == [12]
    assert log.itl_counts[0, 0] == 3 + 3 + 2  # gaps of nothing
    assert log.itl_counts.sum() == 11
    assert log.itl_max_s.tolist() == [1.0]


@all_backends
def test_refused_drafts_cost_tokens_and_no_time_but_their_own(backend: Backend) -> None:
    log = play((0.0, 20, 12), backend=backend, num_speculative_tokens=3)
    assert log.finish_s.tolist() == [12.0]
    assert log.itl_counts[0, 0] == 0
    if log.replica_times is not None:
        assert log.replica_times.scheduled_tokens.tolist() == [20 + 11 * 4]


@all_backends
def test_an_end_that_the_engine_cannot_know_costs_tokens_and_its_reader_nothing(backend: Backend) -> None:
    """Under asynchronous scheduling the step behind the last token was scheduled before anybody knew."""
    columns = {"max_tokens": np.array([9, 9])}
    log = play((0.0, 16, 3), (0.0, 16, 9), backend=backend, columns=columns, async_scheduling=True)
    assert log.finish_s.tolist() == [3.0, 9.0]
    if log.replica_times is not None:
        assert log.replica_times.scheduled_tokens.tolist() == [(16 + 2) + (16 + 8) + 1]


@all_backends
def test_found_tokens_are_not_computed_and_stand_in_the_log(backend: Backend) -> None:
    columns = {"document": np.array([0, 0, -1]), "document_tokens": np.array([40, 40, 40])}
    rows = [(0.0, 50, 1), (1.0, 50, 1), (2.0, 50, 1)]
    log = play(*rows, backend=backend, columns=columns, enable_prefix_caching=True)
    assert log.cached_tokens.tolist() == [0, 32, 0]  # whole blocks of 16
    if log.replica_times is not None:
        assert log.replica_times.scheduled_tokens.tolist() == [50 + 18 + 50]


# ---- Data-parallel ranks ----


def rank_of(*, blocks_used: int, waiting: int, unfinished: int) -> Rank:
    settings = SchedulerSettings(max_num_seqs=8, max_num_batched_tokens=512, block_size=16, num_blocks=10)
    rank = Rank(number=0, scheduler=Scheduler(settings), unfinished=unfinished)

    def request(index: int, prompt_tokens: int) -> Sequence:
        return Sequence(
            index=index, arrival_s=0.0, prompt_tokens=prompt_tokens, output_tokens=1, workload=0, phase=IN_WINDOW
        )

    if blocks_used:
        rank.scheduler.add(request(0, 16 * blocks_used))
        rank.scheduler.schedule()
    for index in range(waiting):
        rank.scheduler.add(request(1 + index, 160))
    return rank


def test_the_front_end_counts_a_waiting_request_up_to_four_times_where_the_cache_is_more_than_half_full() -> None:
    assert rank_of(blocks_used=0, waiting=3, unfinished=3).load() == 3
    assert rank_of(blocks_used=5, waiting=3, unfinished=4).load() == 4
    assert rank_of(blocks_used=9, waiting=2, unfinished=3).load() == pytest.approx(3 + 2 * 6 * 0.4)
    assert rank_of(blocks_used=10, waiting=1, unfinished=2).load() == 2 + 6 * 0.5
    assert rank_of(blocks_used=10, waiting=0, unfinished=1).load() == 1


@all_backends
def test_a_request_goes_to_the_rank_whose_score_is_least(backend: Backend) -> None:
    """Rank 0 runs one request that holds nine of ten blocks and keeps one waiting: 2 + 6 x 0.4 = 4.4. Rank 1 gets the
    next ones until it has five; by numbers alone the second of them would have gone to rank 0."""
    rows = [(0.0, 144, 9), (0.0, 16, 9), (0.0, 64, 2), *[(0.5, 1, 1)] * 5]
    log = play(*rows, backend=backend, num_blocks=10, max_num_batched_tokens=256, data_parallel_size=2)
    assert log.replica.tolist() == [0, 1, 0, 1, 1, 1, 1, 0]


@all_backends
def test_equal_ranks_take_turns(backend: Backend) -> None:
    """vLLM starts its search one rank further with each request: an idle replica does not serve all from its first."""
    log = play(*[(2.0 * i, 16, 1) for i in range(5)], backend=backend, data_parallel_size=3)
    assert log.replica.tolist() == [0, 1, 2, 0, 1]


@all_backends
def test_a_request_that_is_turned_away_moves_no_rank(backend: Backend) -> None:
    rows = [(0.0, 16, 1), (0.5, 16, 1), (2.0, 16, 1), (4.0, 16, 1)]
    log = play(*rows, backend=backend, data_parallel_size=3, max_num_queued_reqs=1)
    assert log.replica.tolist() == [0, -1, 1, 2]


SLOW_PROMPTS = replace(ONE_SECOND, mixed_s=np.full(513, 3.0))


@all_backends
def test_ranks_in_lockstep_take_the_step_of_the_slowest(backend: Backend) -> None:
    """Decodes take a second and prompts three. The second request comes in the second step, and its prompt's step is
    the third, for both ranks."""
    rows = [(0.0, 16, 5), (3.5, 16, 1)]
    log = play(*rows, backend=backend, model=SLOW_PROMPTS, data_parallel_size=2, in_lockstep=True)
    assert log.replica.tolist() == [0, 1]
    assert log.scheduled_s.tolist() == [0.0, 4.0]
    assert log.finish_s.tolist() == [3.0 + 1 + 3 + 1 + 1, 7.0]


@all_backends
def test_independent_ranks_do_not_wait_for_each_other(backend: Backend) -> None:
    log = play((0.0, 16, 5), (3.5, 16, 1), backend=backend, model=SLOW_PROMPTS, data_parallel_size=2)
    assert log.replica.tolist() == [0, 1]
    assert log.scheduled_s.tolist() == [0.0, 3.5]
    assert log.finish_s.tolist() == [7.0, 6.5]


@all_backends
def test_a_rank_that_was_idle_joins_the_next_step_of_the_others(backend: Backend) -> None:
    """In lockstep a rank without work steps along; independent, it starts at once."""
    rows = [(0.0, 16, 9), (0.25, 16, 2)]
    together = play(*rows, backend=backend, data_parallel_size=2, in_lockstep=True)
    apart = play(*rows, backend=backend, data_parallel_size=2)
    assert together.finish_s.tolist() == [9.0, 3.0]
    assert apart.finish_s.tolist() == [9.0, 2.25]


@all_backends
def test_the_limits_of_the_front_end_are_those_of_all_ranks_together(backend: Backend) -> None:
    log = play(*[(0.0, 16, 2)] * 4, backend=backend, data_parallel_size=2, max_num_queued_reqs=3)
    assert log.status.tolist() == [FINISHED] * 3 + [TURNED_AWAY]
    assert log.replica.tolist() == [0, 1, 0, -1]
