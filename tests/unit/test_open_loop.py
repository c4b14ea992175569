"""A replayed stream beside its prediction: one score for both, and what is told about it."""

from pathlib import Path

import numpy as np
import pytest

from hardware_profiles.errors import InputError
from validator.bench_run import BenchResult, Played
from validator.open_loop import BURST, OpenLoopPlan, Prediction, Replay, Stream, open_loop_of
from validator.open_loop_table import compare, markdown, write_comparisons
from validator.replay_log import Figures, figures_of, lateness_p99_s, log_of
from validator.run_records import ServerRecord
from validator.sweep_plan import Shape, SweepPlan


def result(arrival_s: list[float], *, late_s: float = 0.0, ttft_s: float = 0.1, gaps: int = 4) -> BenchResult:
    """Requests that left `late_s` late, but for the first, on a client whose clock began at 1000 s."""
    count = len(arrival_s)
    sent = tuple(1000.0 + at_s + (late_s if i else 0.0) for i, at_s in enumerate(arrival_s))
    zeros = dict.fromkeys(("median", "mean", "p99"), 0.0)
    return BenchResult(
        duration=1.0,
        completed=count,
        failed=0,
        total_input_tokens=10 * count,
        total_output_tokens=(gaps + 1) * count,
        total_token_throughput=1.0,
        **{f"{name}_{metric}_ms": value for name, value in zeros.items() for metric in ("ttft", "tpot")},
        p99_itl_ms=0.0,
        input_lens=(10,) * count,
        output_lens=(gaps + 1,) * count,
        start_times=sent,
        ttfts=(ttft_s,) * count,
        itls=((0.02,) * gaps,) * count,
    )


def figures(ttft_p50_s: float = 0.1) -> Figures:
    return Figures(
        ttft_p50_s=ttft_p50_s,
        ttft_p99_s=0.2,
        tpot_p50_s=0.01,
        tpot_mean_s=0.01,
        itl_p99_s=0.03,
        tokens_per_s=100.0,
        finished_rps=2.0,
    )


def stream(name: str, rate_rps: float | None) -> Stream:
    return Stream(
        name=name, rate_rps=rate_rps, arrival_s=(0.0,), prompt_tokens=(8,), output_tokens=(2,), predicted=figures()
    )


def prediction() -> Prediction:
    mix = Shape(isl=128, osl=64)
    wanted = OpenLoopPlan(shares=(0.5,), mix=mix, seconds=60, sessions=3, degree=1, seed=1)
    return Prediction(
        plan=wanted,
        written="2026-12-01T10:00:00Z",
        profile="profile.yaml",
        flags={},
        kv_cache_tokens=1280,
        capacity_rps=4.0,
        streams=(stream(BURST, None), stream("50%", 2.0)),
    )


def replay(session: int, ttft_p50_s: float, *invalid: str) -> Replay:
    server = ServerRecord(
        vllm_version="0.32.0",
        model_id="m",
        model_path="m",
        kv_cache_tokens=1280,
        num_gpu_blocks=10,
        flags={},
        told_by="",
        command="",
        fresh=True,
        started="",
    )
    played = Played(
        command="",
        result=result([0.0]),
        wait=0.0,
        strangers=0.0,
        stolen=0.0,
        contention=0.0,
        prompt_tokens=8,
        cached_tokens=0,
        preemptions=0,
    )
    return Replay(
        stream="50%",
        session=session,
        server=server,
        played=played,
        measured=figures(ttft_p50_s),
        lateness_p99_s=0.0,
        date="2026-12-01T11:00:00Z",
        invalid=invalid,
    )


def sweep_plan() -> SweepPlan:
    return SweepPlan(
        model="m",
        node="n",
        precision="bf16",
        degrees=(1,),
        sessions=1,
        shapes=(Shape(isl=256, osl=32), Shape(isl=32, osl=128)),
        concurrency=(1,),
        waves=1,
        range_ratio=0.2,
        seed=1,
        command="",
        server="",
        arguments="",
    )


def test_latency_counts_from_the_intended_arrival() -> None:
    found = figures_of(log_of(result([0.0, 1.0, 2.0], late_s=0.05), (0.0, 1.0, 2.0)))
    assert found.ttft_p50_s == pytest.approx(0.15)
    assert found.tpot_mean_s == pytest.approx(0.02)


def test_a_client_that_is_late_is_told_by_how_much() -> None:
    assert lateness_p99_s(result([0.0, 1.0, 2.0], late_s=0.05), (0.0, 1.0, 2.0)) == pytest.approx(0.05)


def test_capacity_is_the_rate_of_finishes_in_the_middle_of_a_burst() -> None:
    """Ten a second in the middle; before, seats fill, after, they empty."""
    finish_s = np.concatenate([[0.0, 5.0], 6.0 + 0.1 * np.arange(8), [20.0]])
    log = log_of(result(list(finish_s)), tuple(finish_s))
    assert figures_of(log).finished_rps == pytest.approx(10.0)


def test_an_error_is_against_the_mean_of_the_sessions_that_count() -> None:
    rows = compare(prediction(), [replay(1, 0.08), replay(2, 0.12), replay(3, 9.0, "others took 40 %")])
    row = next(r for r in rows if r.metric == "ttft_p50_s")
    assert row.measured == pytest.approx(0.1)
    assert row.sessions == 2
    assert row.error == pytest.approx(0.0)
    assert row.own_variation == pytest.approx(np.sqrt(2) * 0.02 / 0.1)
    assert row.invalid == ("session 3: others took 40 %",)


def test_the_page_says_what_the_csv_says(tmp_path: Path) -> None:
    told = prediction()
    replays = [replay(1, 0.08), replay(2, 0.08)]
    path = tmp_path / "open-loop.csv"
    write_comparisons(compare(told, replays), told, replays, path, command="goodfleet profile measure m")
    page = markdown(path)
    assert "| 50%, 2.00/s | TTFT p50, ms | 100.00 | 80.00 | +25.0% | 0.0% | 2 |" in page
    assert "| burst | capacity, requests/s | 2.00 | - | - | - | 0 |" in page
    assert "- command: goodfleet profile measure m" in page


def test_without_a_mix_the_lengths_lie_between_the_shapes() -> None:
    wanted = open_loop_of("0.9,0.5", mix="", seconds=60, sessions=2, plan=sweep_plan())
    assert wanted is not None
    assert (wanted.mix, wanted.shares) == (Shape(isl=144, osl=80), (0.5, 0.9))
    assert open_loop_of("", mix="", seconds=60, sessions=2, plan=sweep_plan()) is None


@pytest.mark.parametrize("text", ["1", "0,0.5", "0.5,0.5", "a"])
def test_shares_of_capacity_are_checked(text: str) -> None:
    with pytest.raises(InputError, match="--open-loop"):
        open_loop_of(text, mix="", seconds=60, sessions=2, plan=sweep_plan())
