"""Measuring a node with a stand-in for vLLM: what is run, what counts, what is resumed, what is written."""

import csv
import io
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hardware_profiles.errors import InputError
from hardware_profiles.model import load_model_card
from hardware_profiles.node import load_node
from hardware_profiles.profile import load_profile
from simulator.benchmark_rows import read_rows
from tests.hardware.measure_cpu import node_text
from validator import bench_run
from validator.contention import Contention, ContentionWatch
from validator.measure import Measurement, check_open_loop, held_alone, target_source
from validator.measured_rows import session_spread, write_measured, write_runs
from validator.open_loop import open_loop_of
from validator.open_loop_table import Comparison
from validator.processes import start_of
from validator.run_records import RunRecord, finished, keep_plan, records
from validator.sweep import sweep
from validator.sweep_plan import Shape, SweepPlan, SweepRun, numbers_of, shapes_of
from validator.targets.local import LocalTarget
from validator.targets.target import TargetError

STUB = (sys.executable, str(Path(__file__).parents[1] / "stub_vllm.py"))
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 2048,
    "max_position_embeddings": 4096,
}
NODE = """\
name: one-core
gpu: one CPU core
platform: cpu
gpus_per_server: 2
hbm_bytes: 8_000_000_000
hbm_bytes_per_s: 1.4e+10
flops: {bf16: 1.2e+12}
scaleup_bytes_per_s: 1.4e+10
scaleup_topology: switched
tdp_w: 100
sources:
"""
FIELDS = (
    "gpus_per_server",
    "hbm_bytes",
    "hbm_bytes_per_s",
    "flops",
    "scaleup_bytes_per_s",
    "scaleup_topology",
    "tdp_w",
)


def plan(**changes: object) -> SweepPlan:
    settings = {
        "model": "m",
        "node": "one-core",
        "precision": "bf16",
        "degrees": (1,),
        "sessions": 1,
        "shapes": (Shape(isl=256, osl=32), Shape(isl=32, osl=128)),
        "concurrency": (1, 4),
        "waves": 3,
        "range_ratio": 0.2,
        "seed": 1,
        "command": "stub",
        "server": "",
        "arguments": "",
    }
    return SweepPlan.model_validate(settings | changes)


def silent(stage: str, done: int, total: int) -> None:
    pass


def swept(folder: Path, wanted: SweepPlan) -> list[RunRecord]:
    keep_plan(folder, wanted)
    sweep(wanted, folder, target_source(wanted, STUB, ()), STUB, silent)
    return list(records(folder, wanted))


def node_file(folder: Path) -> Path:
    sources = "".join(f"  {name}: {{source: here, date: 2026-12-01, how_known: measured}}\n" for name in FIELDS)
    path = folder / "one-core.yaml"
    path.write_text(NODE + sources)
    return path


def model_folder(folder: Path) -> Path:
    (folder / "tiny").mkdir()
    (folder / "tiny" / "config.json").write_text(json.dumps(MODEL))
    return folder / "tiny"


QUIET = Contention(wait=0.0, strangers=0.0, cpus=2, stolen=0.0)


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others that use the machine of the tests must not disturb what the stand-in makes up."""
    monkeypatch.setattr(ContentionWatch, "between", lambda *_: QUIET)


def goodfleet(*arguments: str | Path) -> tuple[str, ...]:
    """The command, on a machine that looks quiet."""
    script = (
        "from validator.contention import Contention, ContentionWatch; from validator.cli import app; "
        f"ContentionWatch.between = lambda watch, *_: {QUIET!r} if watch.possible else None; app()"
    )
    return (sys.executable, "-c", script, *map(str, arguments))


def measure_command(folder: Path, *more: str) -> tuple[str, ...]:
    vllm = " ".join(STUB)
    options = ("--node", str(node_file(folder)), "--vllm", vllm, "--concurrency", "1,4", "--shapes", "256/32,32/128")
    command = ("profile", "measure", str(model_folder(folder)), *options, "--waves", "2", "--out", str(folder / "out"))
    return goodfleet(*command, *more)


# What is run


def test_every_run_of_a_plan_has_prompts_of_its_own() -> None:
    wanted = plan(degrees=(1, 2, 8), sessions=3, seed=399)
    runs = [run for d in wanted.degrees for s in (1, 2, 3) for run in (*wanted.runs(d, s), *wanted.warm_up(d, s))]
    seeds = [run.seed for run in runs]
    assert len(set(seeds)) == len(seeds)
    assert max(seeds) < 2**32


def test_a_session_makes_every_point_once_in_an_order_of_its_own() -> None:
    wanted = plan(concurrency=(1, 2, 4, 8, 16), sessions=2)
    first, second = ([run.name for run in wanted.runs(1, session)] for session in (1, 2))
    assert sorted(first) == sorted(second)
    assert first != second


def test_a_run_that_is_made_again_has_other_prompts() -> None:
    (run, *_) = plan(seed=399).runs(1, 1)
    assert run.again(1) == run
    seeds = {run.again(attempt).seed for attempt in (1, 2, 3)}
    assert len(seeds) == 3 and max(seeds) < 2**32


def test_a_longest_request_is_both_lengths_stretched() -> None:
    assert plan(shapes=(Shape(isl=100, osl=11),), range_ratio=0.2).longest_tokens == 120 + 14


@pytest.mark.parametrize("text", ["", "0", "1,1", "a", "1;2"])
def test_lists_of_numbers_are_checked(text: str) -> None:
    with pytest.raises(InputError, match="--tp"):
        numbers_of(text, "--tp")


@pytest.mark.parametrize("text", ["", "1024", "1024/1", "1024/128,1024/128", "a/b", "1/2/3"])
def test_shapes_are_checked(text: str) -> None:
    with pytest.raises(InputError, match="--shapes"):
        shapes_of(text, "--shapes")


# What counts


def contended(share: float) -> Contention:
    return Contention(wait=share, strangers=1.0, cpus=128, stolen=0.0)


def test_what_strangers_took_by_waiting_is_bounded_by_the_wait_and_by_their_time() -> None:
    assert Contention(wait=0.4, strangers=0.02, cpus=2, stolen=0.0).share == 0.02
    assert Contention(wait=0.03, strangers=0.9, cpus=128, stolen=0.0).share == 0.03


def test_strangers_on_cpus_that_nobody_waits_for_count_by_their_share_of_the_machine() -> None:
    assert Contention(wait=0.0, strangers=0.6, cpus=2, stolen=0.0).share == 0.3


def test_what_the_hypervisor_gave_away_comes_on_top() -> None:
    assert Contention(wait=0.03, strangers=0.9, cpus=128, stolen=0.04).share == pytest.approx(0.07)


def test_a_disturbed_run_is_kept_with_its_figure_and_not_given_to_the_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ContentionWatch, "between", lambda *_: contended(0.12))
    found = swept(tmp_path, plan())
    assert all(record.invalid == ("others took up to 12.0% of the run's time (limit 5%)",) for record in found)
    write_runs(tmp_path / "runs.csv", found)
    assert write_measured(tmp_path / "measured.csv", found, plan=plan(), model="m", command="c") == 0
    with (tmp_path / "runs.csv").open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    assert len(rows) == 4
    assert {row["contention"] for row in rows} == {"0.12"}


def test_a_disturbed_run_is_made_again_by_the_same_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ContentionWatch, "between", lambda *_: contended(0.12))
    swept(tmp_path, plan())
    before = {record.run.name: record.run.seed for record in records(tmp_path, plan())}
    monkeypatch.setattr(ContentionWatch, "between", lambda *_: contended(0.01))
    again = swept(tmp_path, plan())
    assert not any(record.invalid for record in again)
    assert all(record.run.seed != before[record.run.name] for record in again)


def test_an_open_loop_waits_until_every_run_of_the_sweep_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ContentionWatch, "between", lambda *_: contended(0.12))
    said, folder = io.StringIO(), tmp_path / "open-loop"
    wanted = open_loop_of("0.5", mix="", seconds=5, sessions=1, plan=plan())
    assert wanted is not None
    compared = check_open_loop(
        wanted,
        plan(),
        swept(tmp_path, plan()),
        tmp_path / "profile.yaml",
        node=load_node(node_file(tmp_path)),
        card=load_model_card(str(model_folder(tmp_path))),
        folder=folder,
        client=STUB,
        target_of=target_source(plan(), STUB, ()),
        command="c",
        tell=silent,
        console=Console(file=said, width=200),
    )
    assert (compared, folder.exists()) == ((), False)
    assert "give the same command again" in said.getvalue()


def test_a_run_whose_prompts_were_in_the_prefix_cache_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_VLLM", "cached")
    found = swept(tmp_path, plan())
    assert all("from the prefix cache" in record.invalid[0] for record in found)


def test_a_run_that_nobody_watched_on_a_machine_that_can_be_watched_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ContentionWatch, "between", lambda *_: None)
    found = swept(tmp_path, plan(concurrency=(1,)))
    assert {record.invalid for record in found} == {
        ("it is not known whether others used the machine: the watch saw too little of the run",)
    }


def test_a_run_on_a_server_that_others_used_too_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_VLLM", "shared")
    found = swept(tmp_path, plan(concurrency=(1,)))
    assert all("prompt tokens, and" in record.invalid[0] for record in found)


def test_a_server_without_counters_is_said_to_be_unchecked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_VLLM", "uncounted")
    found = swept(tmp_path, plan(concurrency=(1,)))
    assert [(r.played.prompt_tokens, r.played.cached_tokens, r.invalid) for r in found] == [(None, None, ())] * 2
    write_measured(tmp_path / "measured.csv", found, plan=plan(), model="m", command="c")
    assert "The server has no counters" in read_rows(tmp_path / "measured.csv")[0].file.caveat[0]


def test_a_client_that_fails_is_told_with_its_command_and_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_VLLM", "fails")
    with pytest.raises(TargetError, match=r"(?s)ended with 1.*bench serve.*connection refused"):
        swept(tmp_path, plan())


def test_a_client_that_never_ends_is_stopped_and_nothing_of_its_run_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_VLLM", "hangs")
    monkeypatch.setattr(SweepRun, "at_most_s", 1.0)
    with pytest.raises(TargetError, match=r"stopped after 1 s, far more than its run can take"):
        swept(tmp_path, plan())
    assert finished(tmp_path, plan(), 1, 1) == {}


def test_a_run_may_take_long_on_a_slow_server() -> None:
    runs = {run.name: run.at_most_s for run in plan(shapes=(Shape(isl=1024, osl=128),), waves=10).runs(1, 1)}
    assert runs["1024-128-c1"] == pytest.approx(600 + 10 * 128 * 2 + 10 * 1024 / 100)


# What is resumed


def test_what_is_finished_is_not_run_again_and_a_half_written_result_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = plan()
    first = {record.run.name: record.date for record in swept(tmp_path, wanted)}
    half = tmp_path / "tp1" / "session-1" / "256-32-c4.run.json"
    half.write_text(half.read_text()[:200])
    assert set(finished(tmp_path, wanted, 1, 1)) == set(first) - {"256-32-c4"}
    played: list[str] = []
    plain = bench_run.play

    def counting(command: object, server: object, arguments: object, saved: Path, *, within_s: float) -> object:
        played.append(saved.stem)
        return plain(command, server, arguments, saved, within_s=within_s)  # type: ignore[arg-type]

    monkeypatch.setattr("validator.sweep.play", counting)
    swept(tmp_path, wanted)
    assert [name for name in played if not name.startswith("warm-up")] == ["256-32-c4"]
    played.clear()
    swept(tmp_path, wanted)
    assert played == []


def test_a_client_that_leaves_half_a_result_leaves_nothing_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_VLLM", "half")
    with pytest.raises(TargetError, match="no whole result"):
        swept(tmp_path, plan())
    assert finished(tmp_path, plan(), 1, 1) == {}


def test_a_folder_of_another_plan_is_refused_with_what_differs(tmp_path: Path) -> None:
    keep_plan(tmp_path, plan())
    with pytest.raises(InputError, match=r"other settings \(waves 3\)"):
        keep_plan(tmp_path, plan(waves=4))


def test_a_folder_holds_runs_of_one_version_and_one_kind_of_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept(tmp_path, plan(concurrency=(1,), sessions=2))
    (tmp_path / "tp1" / "session-2" / "32-128-c1.run.json").unlink()
    monkeypatch.setenv("STUB_VLLM", "smaller")
    with pytest.raises(InputError, match=r"differs from that of earlier runs: 43648 KV cache tokens instead of 87296"):
        swept(tmp_path, plan(concurrency=(1,), sessions=2))
    monkeypatch.setenv("STUB_VLLM", "newer")
    with pytest.raises(InputError, match=r"holds runs of vLLM 0.32.0, and the server is 0.33.0"):
        swept(tmp_path, plan(concurrency=(1,), sessions=2))


@pytest.mark.parametrize(
    ("said", "flag"),
    [
        ("parallel_config.data_parallel_size=2", "data_parallel_size 2"),
        ("parallel_config.pipeline_parallel_size=2", "pipeline_parallel_size 2"),
        ("parallel_config.enable_expert_parallel=true", "enable_expert_parallel True"),
        ("speculative_config.num_speculative_tokens=3", "num_speculative_tokens 3"),
        ("scheduler_config.enable_chunked_prefill=false", "enable_chunked_prefill False"),
        ("scheduler_config.long_prefill_token_threshold=64", "long_prefill_token_threshold 64"),
        ("scheduler_config.watermark=0.1", "watermark 0.1"),
    ],
)
def test_a_server_that_does_what_no_row_holds_is_refused(
    said: str, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_VLLM_CONFIG", said)
    with pytest.raises(InputError, match=rf"--flags: the server runs with {flag}.*leave --.* out of --flags"):
        swept(tmp_path, plan(concurrency=(1,)))


# What is written


def test_rows_carry_what_the_server_really_did(tmp_path: Path) -> None:
    found = swept(tmp_path, plan(sessions=2))
    assert write_measured(tmp_path / "measured.csv", found, plan=plan(), model="m", command="c") == 8
    rows = read_rows(tmp_path / "measured.csv")
    assert len(rows) == 8
    row = next(r for r in rows if (r.isl, r.concurrency) == (256, 4))
    assert (row.block_size, row.async_scheduling, row.max_num_batched_tokens) == (128, False, 512)
    assert (row.kv_cache_tokens, row.max_num_seqs, row.requests) == (87_296, 64, 12)
    assert (row.length_low, row.length_high) == (0.8, 1.2)
    assert row.tpot_s == pytest.approx(0.0112)
    assert row.ttft_s == pytest.approx(0.020 + 0.0003 * 256)
    assert row.engine_version == "0.32.0"
    assert row.file.tier == "own measurements"
    assert session_spread(found)["tpot"] == 0.0


# The command


def test_a_measurement_ends_in_a_profile_and_an_open_loop_that_was_predicted_first(tmp_path: Path) -> None:
    more = ("--repeats", "1", "--open-loop", "0.5", "--open-loop-seconds", "5", "--open-loop-sessions", "1")
    done = subprocess.run(measure_command(tmp_path, *more), capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    profile = load_profile(tmp_path / "out" / "profile.yaml")
    assert profile.name == "one-core/tiny-bf16-vllm"
    assert profile.tier == "own measurements"
    assert profile.assumed_flags["async_scheduling"] is False
    folder = tmp_path / "out" / "open-loop"
    prediction, replay = folder / "prediction.json", folder / "session-1" / "50-percent.replay.json"
    assert prediction.stat().st_mtime < replay.stat().st_mtime
    with (folder / "open-loop.csv").open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    assert {row["load"] for row in rows} == {"50%", "burst"}
    assert all(row["predicted"] and row["measured"] and row["error"] for row in rows), rows
    assert not any(row["does_not_count"] for row in rows)
    assert json.loads(prediction.read_text())["server"]["flags"]["block_size"] == 128


def test_an_interrupted_measurement_says_how_to_go_on_and_leaves_no_server(tmp_path: Path) -> None:
    command = measure_command(tmp_path, "--repeats", "3")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    held = tmp_path / "out" / "tp1" / "session-1" / "server.pid"
    deadline = time.monotonic() + 60
    while not held.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    pid = int(held.read_text().split()[0])
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on from there" in said
    assert not Path(f"/proc/{pid}").exists()


def test_a_running_server_is_measured_and_left_running(tmp_path: Path) -> None:
    with LocalTarget(model="m", folder=tmp_path, command=STUB).running({"max_num_seqs": 24}) as server:
        command = measure_command(tmp_path, "--server", server.url, "--repeats", "1")
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert start_of(server.pid or 0) is not None
    rows = read_rows(tmp_path / "out" / "measured.csv")
    assert {row.max_num_seqs for row in rows} == {24}
    caveats = " ".join(rows[0].file.caveat)
    assert "a restart changes" in caveats
    assert "Nobody watched" in caveats


def test_a_running_server_has_one_degree(tmp_path: Path) -> None:
    command = measure_command(tmp_path, "--server", "http://127.0.0.1:9", "--repeats", "1", "--tp", "1,2")
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "a server that is running has one degree, and --tp names 1,2" in done.stderr


def test_two_measurements_do_not_share_a_folder(tmp_path: Path) -> None:
    with held_alone(tmp_path / "out"):
        done = subprocess.run(measure_command(tmp_path), capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "out: another measurement is going on in this folder" in done.stderr
    with held_alone(tmp_path / "out"):
        pass


def test_a_plan_that_asks_too_much_of_the_node_is_bad_input(tmp_path: Path) -> None:
    done = subprocess.run(measure_command(tmp_path, "--tp", "4"), capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "error: --tp 4 is more than the 2 GPUs of one-core\n")


@pytest.mark.parametrize("option", ["--flags", "--vllm"])
def test_an_open_quotation_is_bad_input(option: str, tmp_path: Path) -> None:
    done = subprocess.run(measure_command(tmp_path, option, "a 'b"), capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert f"error: {option}: " in done.stderr and "close its quotation" in done.stderr


def test_an_open_loop_without_a_replay_that_counts_is_not_done(tmp_path: Path) -> None:
    found = [replace(row, sessions=sessions) for row, sessions in zip((comparison(),) * 2, (1, 0), strict=True)]
    made = Measurement(records=(), measured=tmp_path, profile=tmp_path, all_reduce=None, comparisons=tuple(found))
    assert not made.open_loop_counts
    assert not replace(made, comparisons=()).open_loop_counts
    assert replace(made, comparisons=(found[0],)).open_loop_counts


def test_a_command_whose_open_loop_is_not_done_ends_with_1(tmp_path: Path) -> None:
    """One stream of a client that is always late."""
    more = ("--repeats", "1", "--open-loop", "0.5", "--open-loop-seconds", "5", "--open-loop-sessions", "1")
    environment = os.environ | {"STUB_VLLM": "late"}
    done = subprocess.run(
        measure_command(tmp_path, *more), capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.returncode == 1, done.stderr
    assert "the open loop is not measured" in done.stderr
    assert "profile: " in done.stdout


def comparison() -> Comparison:
    return Comparison(
        stream="50%",
        rate_rps=1.0,
        metric="ttft_p50_s",
        predicted=1.0,
        measured=1.0,
        error=0.0,
        own_variation=0.0,
        sessions=1,
        invalid=(),
    )


def test_a_vllm_that_is_not_there_is_a_broken_environment(tmp_path: Path) -> None:
    command = measure_command(tmp_path, "--vllm", "no-such-vllm")
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert "no-such-vllm cannot be run" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_node_of_cpu_cores_is_a_node(tmp_path: Path) -> None:
    node = load_node(node_file(tmp_path))
    assert (node.platform, node.gpus_per_server, node.hbm_rate_bytes_per_s) == ("cpu", 2, 1.4e10)


def test_the_node_file_of_this_machines_cores_is_one(tmp_path: Path) -> None:
    path = tmp_path / "cpu.yaml"
    path.write_text(node_text({"memory_bytes": 25_000_000_000, "bytes_per_s": 1.5e10, "bf16_flops": 1.2e12}))
    node = load_node(path)
    assert (node.platform, node.flops["bf16"], node.hbm_rate_bytes_per_s) == ("cpu", 1.2e12, 1.5e10)
    assert node.sources["flops"].how_known == "measured"
