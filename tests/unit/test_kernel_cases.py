"""Small runs whose every step is known: from vLLM's own scheduler, from the field, or by hand.

Most use steps of one second, so that the time is the number of the step.
"""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from simulator.engine import EngineConfig
from simulator.kernel import run_kernel
from simulator.log import RequestLog
from simulator.run import Backend, Window, simulate
from simulator.schedule_trace import ENGINES
from simulator.schedule_workload import ScheduleWorkload, load_schedule_workload
from simulator.score import Targets, score
from simulator.steptime import StepTimeModel
from simulator.tables import (
    ERROR,
    HEAP_COUNT,
    PREEMPTIONS,
    STACK_COUNT,
    STOPPED,
    World,
    engine_settings,
    make_world,
)
from simulator.workload import RequestStream
from tests.step_times import NO_TIME

CASES = Path(__file__).parent / "cases"
BACKENDS: tuple[Backend, ...] = ("kernel", "full-kernel", "reference")
both = pytest.mark.parametrize("backend", BACKENDS)


def constant_steps(step_s: float = 1.0, *, max_tokens: int = 8192, **terms: Any) -> StepTimeModel:
    """Every step takes step_s, whatever it holds, but for the terms that are given."""
    seconds = np.full(max_tokens + 1, step_s)
    return replace(NO_TIME, **{"decode_s": seconds, "mixed_s": seconds} | terms)


def engine_of(**flags: int) -> EngineConfig:
    """Synchronous unless told otherwise: one step after the other is easier to follow by hand."""
    defaults = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 8192, "block_size": 16}
    defaults["async_scheduling"] = False
    return EngineConfig(tensor_parallel_size=1, **(defaults | flags))  # type: ignore[arg-type]


def stream_of(*requests: tuple[float, int, int], concurrency: int | None = None) -> RequestStream:
    """Requests as (arrival, prompt tokens, output tokens)."""
    arrival_s = np.array([r[0] for r in requests])
    return RequestStream(
        arrival_s=arrival_s,
        prompt_tokens=np.array([r[1] for r in requests]),
        output_tokens=np.array([r[2] for r in requests]),
        workload=np.zeros(len(requests), dtype=np.int32),
        workload_names=("chat",),
        span_s=float(np.nanmax(arrival_s)) if concurrency is None else float("nan"),
        clipped_fraction=(0.0,),
        concurrency=concurrency,
    )


def play(
    *requests: tuple[float, int, int],
    model: StepTimeModel | None = None,
    num_blocks: int = 1000,
    replicas: int = 1,
    backend: Backend = "kernel",
    routing: Literal["round_robin", "least_outstanding"] = "least_outstanding",
    window: Window | None = None,
    **flags: int,
) -> RequestLog:
    return simulate(
        stream_of(*requests),
        engine=engine_of(**flags),
        model=model or constant_steps(),
        num_blocks=num_blocks,
        replicas=replicas,
        backend=backend,
        routing=routing,
        window=window,
    )


# ---- Step by step against vLLM's own scheduler ----


def load_case(name: str) -> tuple[ScheduleWorkload, list[str]]:
    """A workload by engine steps, and what vLLM 0.32 printed for it."""
    lines = (CASES / f"{name}.steps.jsonl").read_text().splitlines()
    return load_schedule_workload(CASES / f"{name}.workload.json"), lines


def world_of(
    stream: RequestStream, *, engine: EngineConfig, model: StepTimeModel, num_blocks: int, replicas: int, phase: Any
) -> World:
    released = len(stream) if stream.concurrency is None else min(stream.concurrency, len(stream))
    return make_world(
        engine=engine_settings(
            max_num_seqs=engine.max_num_seqs,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            block_size=engine.block_size,
            num_blocks=num_blocks,
            window_tokens=model.window_tokens,
            least_outstanding=True,
            closed_loop=stream.concurrency is not None,
        ),
        coefficients=model.coefficients(),
        decode_s=model.decode_s,
        mixed_s=model.mixed_s,
        arrival_s=stream.arrival_s,
        prompt_tokens=stream.prompt_tokens,
        output_tokens=stream.output_tokens,
        workload=stream.workload.astype(np.int64),
        phase=phase,
        workloads=len(stream.workload_names),
        replicas=replicas,
        released=released,
    )


@both
@pytest.mark.parametrize("name", ["S01", "S07"])
def test_every_step_is_what_vllm_scheduled(name: str, backend: Backend) -> None:
    workload, lines = load_case(name)
    assert [step.line() for step in ENGINES[backend](workload)] == lines


@both
def test_every_step_serves_the_open_stream_first_and_the_long_prompt_gets_the_rest(backend: Backend) -> None:
    steps = [dict(step.scheduled) for step in ENGINES[backend](load_case("S01")[0])]
    assert len(steps) == 40
    assert [s.get("a") for s in steps] == [16] + [1] * 39
    assert [s.get("b") for s in steps[5:23]] == [63] * 15 + [55, 1, 1]
    assert all("b" not in s for s in steps[:5] + steps[23:])
    assert sum("b" in s for s in steps[5:21]) == -(-1000 // 63) == 16


@both
def test_the_long_prompt_delays_the_stream_by_nothing_but_longer_steps(backend: Backend) -> None:
    """With a step that costs its tokens, the stall per token is one step of 64 tokens, for ceil(1000 / 63) steps."""
    seconds = np.arange(65) / 64
    model = constant_steps(decode_s=seconds, mixed_s=seconds)
    log = play((0.0, 16, 40), (0.25 + 4.5 / 64, 1000, 3), model=model, backend=backend)  # step 0, then during step 5
    assert log.itl_max_s[0] == 1.0
    assert log.first_token_s[1] == log.scheduled_s[1] + 15 + 56 / 64
    assert log.finish_s[0] == 0.25 + (39 - 16 - 2) / 64 + (15 + 56 / 64) + 2 * 2 / 64


@both
def test_the_long_prompts_first_token_comes_from_step_20_and_it_ends_with_step_22(backend: Backend) -> None:
    workload, _ = load_case("S01")
    requests = [(float(r.arrival_step), r.prompt_length_tokens, r.max_tokens) for r in workload.requests]
    log = play(*requests, num_blocks=workload.usable_blocks, backend=backend)
    assert log.scheduled_s.tolist() == [0.0, 5.0]
    assert log.first_token_s.tolist() == [1.0, 21.0]  # the end of step 20 is second 21
    assert log.finish_s.tolist() == [40.0, 23.0]
    assert log.output_tokens.tolist() == [40, 3]


@both
def test_a_prompt_one_token_longer_than_the_budget_takes_one_step_more(backend: Backend) -> None:
    log = play((0.0, 64, 1), (0.0, 65, 1), num_blocks=99, backend=backend)
    assert log.first_token_s.tolist() == log.finish_s.tolist() == [1.0, 3.0]
    assert np.isnan(log.itl_max_s).all()
    assert log.itl_counts.sum() == 0


# ---- The client's own queue: https://github.com/vllm-project/vllm/issues/54101 ----


@both
def test_latency_counts_from_the_intended_arrival_through_every_queue(backend: Backend) -> None:
    arrivals = [(i / 10, 1, 1) for i in range(8)]
    log = play(*arrivals, model=constant_steps(0.5), max_num_seqs=1, backend=backend)
    e2e_s = log.finish_s - log.arrival_s
    assert e2e_s.tolist() == pytest.approx([0.5, 0.9, 1.3, 1.7, 2.1, 2.5, 2.9, 3.3], abs=1e-12)
    assert e2e_s.mean() == pytest.approx(1.9, abs=1e-12)
    assert (log.finish_s - log.scheduled_s).tolist() == pytest.approx([0.5] * 8, abs=1e-12)
    promised = Targets(per_request_s={"e2e": 10.0}, percentiles=(), attainment=0.9, deadline_s=None)
    judged = score(log, {"chat": promised}).workload("chat")
    assert judged.means_s["e2e"] == pytest.approx(1.9, abs=1e-12)
    assert judged.percentiles_s["e2e"][3] == pytest.approx(3.3, abs=1e-12)


# ---- Preemption ----


@both
def test_a_preempted_request_keeps_its_arrival_time_its_tokens_and_its_first_schedule(backend: Backend) -> None:
    """Twelve blocks of one token for two sequences of nine: the younger gives way after its third token.

    Steps 0-2 give both three tokens and fill the cache. In step 3 b loses its six tokens; seven are free for it only
    when a has ended, after step 5. Step 6 computes b's seven known tokens anew and gives the fourth.
    """
    log = play((0.0, 4, 6), (0.0, 4, 6), num_blocks=12, block_size=1, backend=backend)
    assert log.preemptions.tolist() == [0, 1]
    assert log.arrival_s.tolist() == log.scheduled_s.tolist() == [0.0, 0.0]
    assert log.first_token_s.tolist() == [1.0, 1.0]
    assert log.finish_s.tolist() == [6.0, 9.0]
    assert log.output_tokens.tolist() == [6, 6]
    assert log.itl_max_s.tolist() == [1.0, 4.0]  # the reader of b waits from second 3 to second 7
    assert log.itl_counts.sum() == 10
    if log.replica_times is not None:
        assert log.replica_times.preemptions.tolist() == [1]
        assert log.replica_times.discarded_tokens.tolist() == [6]
        assert log.replica_times.scheduled_tokens.tolist() == [9 + 9 + 6]
        assert log.replica_times.kv_peak_fraction.tolist() == [1.0]


@both
def test_a_preempted_request_goes_before_those_that_wait(backend: Backend) -> None:
    log = play((0.0, 4, 6), (0.0, 4, 6), (0.5, 1, 1), num_blocks=12, block_size=1, max_num_seqs=2, backend=backend)
    assert log.preemptions.tolist() == [0, 1, 0]
    assert log.scheduled_s[2] >= 6.0  # a seat is free from second 3 on, but b stands before it


@both
def test_two_long_prompts_that_were_both_admitted_can_still_preempt_each_other(backend: Backend) -> None:
    """Admission checks the whole prompt and takes the chunk: the decodes beside it may eat what was checked."""
    rows = [(0.0, 10, 30), (0.0, 10, 30), (0.0, 10, 30), (2.0, 60, 4)]
    log = play(*rows, num_blocks=100, block_size=1, max_num_batched_tokens=12, backend=backend)
    assert log.preemptions.sum() > 0
    assert np.isfinite(log.finish_s).all()
    assert log.output_tokens.tolist() == [30, 30, 30, 4]


@both
def test_a_prompt_waits_until_all_of_it_fits_though_its_first_chunk_would(backend: Backend) -> None:
    """vLLM's `scheduler_reserve_full_isl`: 15 blocks are free for 17 tokens, until a ends after ten steps."""
    log = play((0.0, 4, 10), (0.5, 17, 2), num_blocks=20, block_size=1, max_num_batched_tokens=8, backend=backend)
    assert log.scheduled_s.tolist() == [0.0, 10.0]
    assert log.first_token_s[1] == 13.0
    assert log.preemptions.tolist() == [0, 0]


def test_many_preemptions_are_counted_the_same_in_requests_and_replicas() -> None:
    rng = np.random.default_rng(1)
    rows = [(i / 8, int(rng.integers(1, 40)), int(rng.integers(1, 60))) for i in range(200)]
    log = play(*rows, num_blocks=100, block_size=1, replicas=2)
    assert log.replica_times is not None
    assert log.preemptions.sum() == log.replica_times.preemptions.sum() > 50
    assert log.preemptions.max() > 1
    assert log.arrival_s.tolist() == [row[0] for row in rows]
    assert log.output_tokens.tolist() == [row[2] for row in rows]


# ---- Requests that cannot be served ----


@both
def test_a_request_that_could_never_fit_the_cache_is_rejected_and_the_others_do_not_notice(backend: Backend) -> None:
    alone = play((0.0, 16, 4), (1.0, 16, 4), num_blocks=4, backend=backend)
    log = play((0.0, 16, 4), (0.5, 62, 4), (1.0, 16, 4), num_blocks=4, backend=backend)  # 65 to cache, of 64
    assert log.status.tolist() == [0, 2, 0]
    assert log.output_tokens[1] == 0 and log.replica[1] == -1
    assert np.isnan([log.scheduled_s[1], log.first_token_s[1], log.finish_s[1]]).all()
    assert log.finish_s[[0, 2]].tolist() == alone.finish_s.tolist()
    assert log.window_complete


@both
def test_a_request_that_just_fits_the_cache_is_served(backend: Backend) -> None:
    log = play((0.0, 60, 4), num_blocks=4, backend=backend)
    assert log.status.tolist() == [0]


@both
def test_a_run_in_which_everything_is_rejected_ends(backend: Backend) -> None:
    log = play((0.5, 200, 4), (1.5, 200, 4), num_blocks=4, backend=backend)
    assert log.status.tolist() == [2, 2]
    assert log.window_complete
    assert log.end_s == 1.5


@both
def test_a_rejected_request_of_the_window_does_not_keep_the_run_open(backend: Backend) -> None:
    rows = [(0.0, 16, 2), (1.0, 200, 2), (5.0, 16, 2), (9.0, 16, 2)]
    log = play(*rows, num_blocks=4, window=Window(start_s=0.0, end_s=2.0), backend=backend)
    assert log.status.tolist() == [0, 2]
    assert log.window_complete
    assert log.end_s == 5.0


@both
def test_a_closed_loop_sends_the_next_request_when_one_is_rejected(backend: Backend) -> None:
    stream = replace(
        stream_of((0.0, 200, 2), (0.0, 16, 2), (0.0, 16, 2), concurrency=1), arrival_s=np.array([0.0, np.nan, np.nan])
    )
    log = simulate(stream, engine=engine_of(), model=constant_steps(), num_blocks=4, replicas=1, backend=backend)
    assert log.status.tolist() == [2, 0, 0]
    assert log.finish_s[1:].tolist() == [2.0, 4.0]
    assert log.window_complete


# ---- Edges ----


@both
def test_requests_that_arrive_together_start_together_in_the_order_of_the_stream(backend: Backend) -> None:
    log = play(*[(0.5, 16, 4)] * 4, max_num_batched_tokens=48, backend=backend)
    assert log.scheduled_s.tolist() == [0.5, 0.5, 0.5, 1.5]
    assert log.first_token_s.tolist() == [1.5, 1.5, 1.5, 2.5]


@both
@pytest.mark.parametrize("routing", ["round_robin", "least_outstanding"])
def test_requests_that_arrive_together_are_dealt_out_in_turn(
    backend: Backend, routing: Literal["round_robin", "least_outstanding"]
) -> None:
    log = play(*[(0.5, 16, 4)] * 7, replicas=3, routing=routing, backend=backend)
    assert log.replica.tolist() == [0, 1, 2, 0, 1, 2, 0]


@both
def test_least_outstanding_counts_queued_and_running_requests(backend: Backend) -> None:
    rows = [(0.0, 16, 30), (0.0, 16, 2), (0.5, 16, 30), (3.5, 16, 2), (3.5, 16, 2)]
    log = play(*rows, replicas=2, max_num_seqs=1, backend=backend)
    assert log.replica.tolist() == [0, 1, 0, 1, 1]  # at 3.5 replica 0 has one that runs and one that waits


@both
def test_a_request_that_arrives_as_a_step_ends_joins_the_next_step(backend: Backend) -> None:
    log = play((0.0, 16, 3), (1.0, 16, 1), backend=backend)
    assert log.scheduled_s[1] == 1.0
    assert log.first_token_s[1] == 2.0


@both
def test_one_seat_serves_one_request_after_the_other(backend: Backend) -> None:
    log = play((0.0, 16, 4), (0.25, 16, 2), (0.5, 16, 1), max_num_seqs=1, backend=backend)
    assert log.scheduled_s.tolist() == [0.0, 4.0, 6.0]
    assert log.finish_s.tolist() == [4.0, 6.0, 7.0]


@both
def test_an_answer_of_one_token_is_first_and_last_at_once(backend: Backend) -> None:
    log = play((0.0, 16, 1), (0.25, 16, 1), backend=backend)
    assert log.first_token_s.tolist() == log.finish_s.tolist() == [1.0, 2.0]
    assert np.isnan(log.itl_max_s).all()


@both
def test_a_prompt_longer_than_the_budget_takes_its_share_of_steps_rounded_up(backend: Backend) -> None:
    log = play((0.0, 1000, 2), backend=backend)
    assert log.first_token_s[0] == -(-1000 // 64) == 16
    assert log.finish_s[0] == 17.0


@both
def test_a_prompt_shorter_than_a_block_takes_a_block_and_no_more(backend: Backend) -> None:
    """Three tokens of prompt and fourteen of answer are sixteen cached tokens: the last is never read again."""
    requests = [(0.0, 3, 14)] * 2
    log = play(*requests, num_blocks=2, block_size=16, backend=backend)
    assert log.preemptions.tolist() == [0, 0]
    assert log.finish_s.tolist() == [14.0, 14.0]
    longer = play(*[(0.0, 3, 15)] * 2, num_blocks=3, block_size=16, backend=backend)
    assert longer.preemptions.tolist() == [0, 1]
    if log.replica_times is not None:
        assert log.replica_times.kv_peak_fraction[0] == 1.0


@both
def test_a_block_larger_than_every_sequence_is_one_block_each(backend: Backend) -> None:
    log = play(*[(0.0, 5, 9)] * 3, num_blocks=2, block_size=4096, backend=backend)
    assert log.finish_s.tolist() == [9.0, 9.0, 18.0]


@both
def test_a_burst_at_the_very_start_can_be_scored(backend: Backend) -> None:
    log = play(*[(0.0, 16, 4)] * 3, backend=backend)
    promised = Targets(per_request_s={"ttft": 2.0}, percentiles=(), attainment=0.9, deadline_s=None)
    result = score(log, {"chat": promised})
    assert result.window_s == log.end_s == 4.0
    assert result.goodput_tokens_per_s == 12 / 4.0


# ---- How long a step takes ----


@both
def test_every_term_of_a_step_is_charged_once(backend: Backend) -> None:
    tokens = np.arange(65, dtype=np.float64)
    model = constant_steps(
        decode_s=1.0 + tokens / 8,
        mixed_s=2.0 + tokens / 8,
        sequence_s=1 / 16,
        kv_s=1 / 256,
        window_kv_s=1 / 128,
        attention_s=1 / 1024,
        window_attention_s=1 / 2048,
        prefill_request_s=1 / 4,
        sync_s=1 / 2,
        window_tokens=8,
    )
    log = play((0.0, 80, 3), model=model, backend=backend)  # two chunks, 64 and 16 tokens
    first_s = 2 + 8 + 1 / 4 + (64 * 32) / 1024 + (8 * 4 + 56 * 8) / 2048 + 1 / 2
    second_s = 2 + 2 + 1 / 16 + 1 / 4 + (16 * (64 + 8)) / 1024 + (16 * 8) / 2048 + 1 / 2
    third_s = 1 + 1 / 8 + 1 / 16 + 81 / 256 + 8 / 128 + 1 / 2
    fourth_s = 1 + 1 / 8 + 1 / 16 + 82 / 256 + 8 / 128 + 1 / 2
    assert log.first_token_s[0] == first_s + second_s
    assert log.finish_s[0] == first_s + second_s + third_s + fourth_s
    assert log.itl_max_s[0] == fourth_s


@both
def test_host_time_hides_behind_the_gpu_and_the_longer_one_counts(backend: Backend) -> None:
    model = constant_steps(1.0, host_s=1.5, host_sequence_s=0.25, sync_s=0.125)
    log = play((0.0, 16, 2), (0.0, 16, 2), model=model, async_scheduling=True, backend=backend)
    assert log.finish_s.tolist() == [2 * (1.5 + 2 * 0.25 + 0.125)] * 2
    model = constant_steps(2.0, host_s=1.5, sync_s=0.125)
    quick = play((0.0, 16, 2), model=model, async_scheduling=True, backend=backend)
    assert quick.finish_s.tolist() == [4.25]


@both
def test_without_asynchronous_scheduling_the_gpu_waits_for_the_host(backend: Backend) -> None:
    model = constant_steps(1.0, host_s=1.5, host_sequence_s=0.25, sync_s=0.125)
    log = play((0.0, 16, 2), (0.0, 16, 2), model=model, backend=backend)
    assert log.finish_s.tolist() == [2 * (1.0 + 1.5 + 2 * 0.25 + 0.125)] * 2


# ---- Two steps in flight ----


@both
def test_a_new_request_waits_a_step_longer_when_the_next_step_is_scheduled_already(backend: Backend) -> None:
    """It arrives during step 0; step 1 was scheduled as step 0 began, so it joins step 2."""
    log = play((0.0, 16, 5), (0.5, 16, 1), async_scheduling=True, backend=backend)
    assert log.scheduled_s.tolist() == [0.0, 2.0]
    assert log.first_token_s.tolist() == [1.0, 3.0]
    assert log.finish_s.tolist() == [5.0, 3.0]


@both
def test_an_idle_engine_starts_at_once_and_the_next_to_come_waits_for_two_steps(backend: Backend) -> None:
    log = play((0.5, 16, 1), (0.5, 16, 9), (0.5 + 2**-20, 16, 1), async_scheduling=True, backend=backend)
    assert log.scheduled_s.tolist() == [0.5, 0.5, 2.5]


@both
def test_a_seat_is_free_a_step_after_the_last_token(backend: Backend) -> None:
    """The step behind the last token's was scheduled while that was not known; nobody can take the seat in it."""
    log = play((0.0, 16, 3), (0.25, 16, 2), (0.25, 16, 1), max_num_seqs=1, async_scheduling=True, backend=backend)
    assert log.finish_s.tolist() == [3.0, 5.0, 6.0]
    two = play((0.0, 16, 9), (0.0, 16, 3), (0.25, 16, 1), max_num_seqs=2, async_scheduling=True, backend=backend)
    assert two.finish_s.tolist() == [9.0, 3.0, 5.0]


@both
def test_the_front_end_delays_the_engine_and_not_the_clock(backend: Backend) -> None:
    log = play((0.5, 16, 2), model=constant_steps(request_overhead_s=0.25), backend=backend)
    assert (log.arrival_s[0], log.scheduled_s[0], log.finish_s[0]) == (0.5, 0.75, 2.75)


def test_step_times_that_do_not_reach_the_engines_flags_are_refused() -> None:
    play((0.0, 16, 2), model=constant_steps(max_tokens=64), max_num_seqs=64)
    with pytest.raises(ValueError, match=r"max_num_batched_tokens 64.* reach 63 and 63 tokens"):
        play((0.0, 16, 2), model=constant_steps(max_tokens=63))
    with pytest.raises(ValueError, match=r"max_num_seqs 8 .* reach 7 and 64 tokens"):
        play((0.0, 16, 2), model=constant_steps(max_tokens=64, decode_s=np.ones(8)))
    with pytest.raises(ValueError, match=r"max_num_seqs 65 must not exceed max_num_batched_tokens 64"):
        play((0.0, 16, 2), max_num_seqs=65)


# ---- Stopping and going on ----


def pressed_world(*, seed: int, closed: bool, window_tokens: int) -> World:
    """Preemptions, rejections, chunks, both phases; run-out arrivals in an open loop."""
    rng = np.random.default_rng(seed)
    count, tokens = 150, np.arange(65, dtype=np.float64)
    rows = [
        (float(t), int(p), int(o))
        for t, p, o in zip(
            np.cumsum(rng.exponential(np.where(np.arange(count) < 90, 0.02, 0.4))),
            np.where(rng.random(count) < 0.03, 500, rng.integers(1, 120, count)),
            rng.integers(1, 60, count),
            strict=True,
        )
    ]
    stream = stream_of(*rows)
    if closed:
        arrival_s = np.where(np.arange(count) < 12, 0.0, np.nan)
        prompts = np.minimum(stream.prompt_tokens, 200)
        stream = replace(stream, arrival_s=arrival_s, prompt_tokens=prompts, concurrency=12)
    model = constant_steps(
        decode_s=0.01 + 1e-4 * tokens,
        mixed_s=0.012 + 1e-4 * tokens,
        kv_s=1e-5,
        window_kv_s=1e-6,
        attention_s=1e-7,
        sync_s=1e-3,
        window_tokens=window_tokens,
    )
    warmup, inside = np.arange(count) < 20, np.arange(count) < 90
    phase = np.ones(count, dtype=np.int64) if closed else np.select([warmup, inside], [0, 1], 2)
    engine = engine_of(block_size=4, max_num_seqs=10)
    return world_of(stream, engine=engine, model=model, num_blocks=80, replicas=2, phase=phase)


def assert_same_state(first: World, second: World) -> None:
    """Equal to the last bit, but for the parts of stacks and heaps that are not in use."""
    used = {"heap_keys": HEAP_COUNT, "heap_values": HEAP_COUNT, "stall_steps": STACK_COUNT, "stall_s": STACK_COUNT}
    for name in World._fields:
        a, b = getattr(first, name), getattr(second, name)
        if name in used:
            for r in range(len(first.ints)):
                count = int(first.ints[r, used[name]])
                np.testing.assert_array_equal(a[r, :count], b[r, :count], err_msg=name)
        elif name == "pool":
            for part, x, y in zip(a._fields, a, b, strict=True):
                np.testing.assert_array_equal(x, y, err_msg=part)
        elif name not in ("completing", "late"):
            np.testing.assert_array_equal(a, b, err_msg=name)


@pytest.mark.parametrize("window_tokens", [0, 32])
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_run_in_slices_is_the_run_in_one_go_to_the_last_bit(seed: int, closed: bool, window_tokens: int) -> None:
    whole = pressed_world(seed=seed, closed=closed, window_tokens=window_tokens)
    run_kernel(whole, np.inf)
    assert whole.totals[ERROR] == 0
    assert whole.ri[:, PREEMPTIONS].sum() > 10
    sliced = pressed_world(seed=seed, closed=closed, window_tokens=window_tokens)
    rng = np.random.default_rng(seed)
    until_s = 0.0
    while until_s < 60.0:
        until_s += float(rng.choice([0.0, 1e-4, 0.003, 0.011, 0.2]))
        run_kernel(sliced, until_s)
    run_kernel(sliced, np.inf)
    assert_same_state(whole, sliced)


@pytest.mark.parametrize("closed", [False, True])
def test_a_run_may_be_cut_at_the_very_moments_of_arrivals_and_step_ends(closed: bool) -> None:
    whole = pressed_world(seed=1, closed=closed, window_tokens=0)
    run_kernel(whole, np.inf)
    moments = np.unique(whole.rf[np.isfinite(whole.rf)])
    sliced = pressed_world(seed=1, closed=closed, window_tokens=0)
    for moment_s in moments:
        run_kernel(sliced, moment_s)
        run_kernel(sliced, moment_s)
    run_kernel(sliced, np.inf)
    assert_same_state(whole, sliced)


def test_a_run_in_slices_stops_at_the_same_arrival_with_every_replica_advanced_to_it() -> None:
    whole = pressed_world(seed=2, closed=False, window_tokens=0)
    run_kernel(whole, np.inf)
    assert whole.totals[STOPPED] == 1
    sliced = pressed_world(seed=2, closed=False, window_tokens=0)
    until_s = 0.0
    while not sliced.totals[STOPPED]:
        until_s += 1e-3
        run_kernel(sliced, until_s)
    assert_same_state(whole, sliced)


def test_a_run_that_is_cut_and_never_finished_has_the_same_log_as_one_with_nothing_to_come() -> None:
    """What has happened until a moment does not depend on what arrives later."""
    rng = np.random.default_rng(3)
    rows = [(2.0 * i, int(rng.integers(1, 100)), int(rng.integers(1, 60))) for i in range(80)]
    stream, begun = stream_of(*rows), stream_of(*rows[:50])
    arguments: dict[str, Any] = {"engine": engine_of(), "model": constant_steps(), "num_blocks": 40, "replicas": 2}
    cut = simulate(begun, drain=False, **arguments)
    whole = simulate(stream, **arguments)
    happened = whole.first_token_s[:50] < cut.end_s
    np.testing.assert_array_equal(cut.first_token_s[happened], whole.first_token_s[:50][happened])
    ended = whole.finish_s[:50] < cut.end_s
    assert 5 < ended.sum() < 50
    np.testing.assert_array_equal(cut.finish_s[ended], whole.finish_s[:50][ended])
    assert np.isnan(cut.finish_s[~ended]).all()


def test_log_columns_all_have_one_row_per_request() -> None:
    log = play((0.0, 16, 2), (0.5, 16, 2))
    columns = [f.name for f in fields(log) if f.name.endswith(("_s", "_tokens")) or f.name in ("status", "replica")]
    for name in set(columns) - {"itl_edges_s", "end_s", "window_s"}:
        assert len(getattr(log, name)) == 2, name
