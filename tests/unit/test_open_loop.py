"""A replayed stream beside its prediction: one score for both, and what is told about it."""

import sys
from pathlib import Path

import numpy as np
import pytest

from hardware_profiles.errors import InputError
from hardware_profiles.model import load_model_card
from hardware_profiles.node import load_node
from validator.bench_run import BenchResult, Played
from validator.contention import Contention, ContentionWatch
from validator.measure import target_source
from validator.open_loop import (
    BURST,
    OpenLoopPlan,
    Prediction,
    Replay,
    Stream,
    _replay,
    _share_name,
    make_prediction,
    open_loop_of,
    read_prediction,
    replay_streams,
)
from validator.open_loop_table import compare, markdown, write_comparisons
from validator.replay_log import Figures, figures_of, lateness_p99_s, log_of, rate_error
from validator.run_records import ServerRecord, write_whole
from validator.sweep import server_differences
from validator.sweep_plan import Shape, SweepPlan
from validator.targets.target import TargetError

STUB = (sys.executable, str(Path(__file__).parents[1] / "stub_vllm.py"))


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
        server=server_record(),
        capacity_rps=4.0,
        streams=(stream(BURST, None), stream("50%", 2.0)),
    )


def server_record() -> ServerRecord:
    """What the stand-in says of itself, as far as it matters."""
    return ServerRecord(
        vllm_version="0.32.0",
        model_id="m",
        model_path="m",
        kv_cache_tokens=87_296,
        num_gpu_blocks=682,
        flags={},
        told_by="",
        command="",
        fresh=True,
        started="",
    )


def replay(session: int, ttft_p50_s: float, *invalid: str) -> Replay:
    played = Played(
        command="",
        result=result([0.0]),
        wait=0.0,
        strangers=0.0,
        stolen=0.0,
        contention=0.0,
        watched=True,
        prompt_tokens=8,
        cached_tokens=0,
        preemptions=0,
    )
    return Replay(
        prediction_sha256="",
        stream="50%",
        session=session,
        server=server_record(),
        played=played,
        measured=figures(ttft_p50_s),
        lateness_p99_s=0.0,
        date="2026-12-01T11:00:00Z",
        invalid=invalid,
    )


def sweep_plan(server: str = "") -> SweepPlan:
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
        server=server,
        arguments="",
    )


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others that use the machine of the tests must not disturb what the stand-in makes up."""
    quiet = Contention(wait=0.0, strangers=0.0, cpus=2, stolen=0.0)
    monkeypatch.setattr(ContentionWatch, "between", lambda *_: quiet)


def silent(stage: str, done: int, total: int) -> None:
    pass


def replayed(folder: Path, told: Prediction) -> list[str]:
    """Write a prediction, replay it on the stand-in, and name the replays that were made for it."""
    folder.mkdir(exist_ok=True)
    write_whole(folder / "prediction.json", told)
    before = {path: path.read_bytes() for path in folder.glob("session-*/*.json")}
    target = target_source(sweep_plan(), STUB, ())
    replay_streams(told, sweep_plan(), folder=folder, target_of=target, client=STUB, tell=silent)
    made = folder.glob("session-*/*.replay.json")
    return sorted(path.name for path in made if path.read_bytes() != before.get(path))


def test_latency_counts_from_the_intended_arrival() -> None:
    found = figures_of(log_of(result([0.0, 1.0, 2.0], late_s=0.05), (0.0, 1.0, 2.0)))
    assert found is not None
    assert found.ttft_p50_s == pytest.approx(0.15)
    assert found.tpot_mean_s == pytest.approx(0.02)


def test_a_client_that_is_late_is_told_by_how_much() -> None:
    assert lateness_p99_s(result([0.0, 1.0, 2.0], late_s=0.05), (0.0, 1.0, 2.0)) == pytest.approx(0.05)


def test_capacity_is_the_rate_of_finishes_in_the_middle_of_a_burst() -> None:
    """Ten a second in the middle; before, seats fill, after, they empty."""
    finish_s = np.concatenate([[0.0, 5.0], 6.0 + 0.1 * np.arange(8), [20.0]])
    found = figures_of(log_of(result(list(finish_s)), tuple(finish_s)))
    assert found is not None
    assert found.finished_rps == pytest.approx(10.0)


def test_requests_that_finish_at_once_have_no_rate_of_finishes_and_read_back() -> None:
    found = figures_of(log_of(result([0.0, 0.0]), (0.0, 0.0)))
    assert found is not None
    assert found.finished_rps is None
    assert Figures.model_validate_json(found.model_dump_json()) == found


def test_a_replay_in_which_every_request_failed_has_no_figures() -> None:
    failed = result([0.0, 1.0], gaps=0).model_copy(
        update={"completed": 0, "failed": 2, "output_lens": (0, 0), "ttfts": (0.0, 0.0)}
    )
    assert figures_of(log_of(failed, (0.0, 1.0))) is None
    some = replay(1, 0.1)
    sent = stream("50%", 2.0).model_copy(update={"arrival_s": (0.0, 1.0)})
    made = _replay(sent, 1, some.server, some.played.model_copy(update={"result": failed}), "")
    assert made.measured is None
    assert made.invalid[0] == "0 of 2 requests were answered"


def test_a_rate_of_sending_is_told_against_the_intended_one() -> None:
    arrivals = tuple(0.1 * i for i in range(100))
    slow = result([1.02 * at_s for at_s in arrivals])
    assert rate_error(slow, arrivals) == pytest.approx(1 / 1.02 - 1)
    assert rate_error(result(list(arrivals)), arrivals) == pytest.approx(0.0)


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


def test_shares_are_named_to_the_last_digit() -> None:
    assert (_share_name(0.125), _share_name(0.29), _share_name(0.9)) == ("12.5%", "29%", "90%")


def test_a_running_server_is_one_session_of_an_open_loop() -> None:
    plan = sweep_plan(server="http://127.0.0.1:8000")
    wanted = open_loop_of("0.5", mix="", seconds=60, sessions=None, plan=plan)
    assert wanted is not None and wanted.sessions == 1
    with pytest.raises(InputError, match=r"--open-loop-sessions: 2 is not allowed: a server that is running"):
        open_loop_of("0.5", mix="", seconds=60, sessions=2, plan=plan)
    fresh = open_loop_of("0.5", mix="", seconds=60, sessions=None, plan=sweep_plan())
    assert fresh is not None and fresh.sessions == 2


def test_replays_belong_to_the_prediction_that_was_sent(tmp_path: Path) -> None:
    told = prediction()
    told = told.model_copy(update={"plan": told.plan.model_copy(update={"sessions": 1})})
    assert replayed(tmp_path / "out", told) == ["50-percent.replay.json", "burst.replay.json"]
    assert replayed(tmp_path / "out", told) == []
    other = told.model_copy(update={"capacity_rps": 5.0})
    assert replayed(tmp_path / "out", other) == ["50-percent.replay.json", "burst.replay.json"]


def test_what_two_starts_of_a_server_say_differently_is_named() -> None:
    was = server_record().model_copy(update={"flags": {"max_num_seqs": 64}})
    nearly = was.model_copy(update={"kv_cache_tokens": 87_296 * 101 // 100, "started": "later"})
    assert server_differences(was, nearly) == ()
    other = {"kv_cache_tokens": 80_000, "vllm_version": "0.33.0", "flags": {"max_num_seqs": 32}}
    assert server_differences(was, was.model_copy(update=other)) == (
        "max_num_seqs 32 instead of 64",
        "vLLM 0.33.0 instead of 0.32.0",
        "80000 KV cache tokens instead of 87296",
    )


def test_a_prediction_for_another_version_is_not_replayed(tmp_path: Path) -> None:
    server = server_record().model_copy(update={"vllm_version": "0.31.0"})
    with pytest.raises(TargetError, match=r"not the one of the prediction: vLLM 0.32.0 instead of 0.31.0"):
        replayed(tmp_path, prediction().model_copy(update={"server": server}))


def test_a_prediction_that_cannot_be_read_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "prediction.json"
    assert read_prediction(path) is None
    path.write_text("{}")
    with pytest.raises(InputError, match=r"prediction.json: is no whole prediction.*remove it"):
        read_prediction(path)
    assert path.read_text() == "{}"


@pytest.mark.parametrize("text", ["1", "0,0.5", "0.5,0.5", "0.5,0.50000001", "a"])
def test_shares_of_capacity_are_checked(text: str) -> None:
    with pytest.raises(InputError, match="--open-loop"):
        open_loop_of(text, mix="", seconds=60, sessions=2, plan=sweep_plan())


def test_a_stream_too_short_for_percentiles_is_refused_with_the_length_that_would_do() -> None:
    profile = next(
        (Path(__file__).parents[2] / "hardware_profiles" / "profiles" / "mi355x").glob("*gpt-oss-120b*.yaml")
    )
    flags = {"tensor_parallel_size": 1, "max_num_seqs": 64, "max_num_batched_tokens": 8192, "max_model_len": 4096}
    server = replay(1, 0.1).server.model_copy(update={"flags": flags, "kv_cache_tokens": 160_000})
    wanted = OpenLoopPlan(shares=(0.001,), mix=Shape(isl=144, osl=80), seconds=5, sessions=1, degree=1, seed=1)
    with pytest.raises(InputError, match=r"at 0.1% of a capacity .* fewer than the 20 .* give --open-loop-seconds \d+"):
        make_prediction(
            wanted,
            profile=profile,
            node=load_node("mi355x"),
            card=load_model_card("gpt-oss-120b"),
            server=server,
        )
