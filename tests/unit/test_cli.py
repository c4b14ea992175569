"""What a person at a terminal gets: one message and exit code 2 for a mistake, 3 when nothing meets, else 0."""

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from hardware_profiles.errors import InputError
from planner.plan_file import Plan
from planner.recipe import write_shortlist
from simulator.flags import EngineFlags
from simulator.log import LOG_COLUMNS
from simulator.scenario import load_scenario
from tests.conftest import SMALL_SCENARIO
from validator.cli import app

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def goodfleet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """The console script, in this process (a new one takes seconds to import numba)."""

    def run(*arguments: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["goodfleet", *map(str, arguments)])
        monkeypatch.chdir(ROOT)
        code = 0
        try:
            app()
        except SystemExit as end:
            code = int(end.code or 0)
        printed = capsys.readouterr()
        return Done(code, printed.out, printed.err)

    return run


Run = Callable[..., Done]


def write(folder: Path, text: str, name: str = "my.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


MISTAKES = {
    "an unknown key": ("ttft_ms: 400", "ttft_msec: 400", "ttft_msec", "ttft_ms"),
    "a negative rate": ("rate_rps: 40", "rate_rps: -40", "rate_rps", "-40"),
    "a rate that is not a number": ("rate_rps: 40", "rate_rps: .nan", "rate_rps", "nan"),
    "an unknown model": ("model: gpt-oss-120b", "model: gpt-oss-121b", "model", "gpt-oss-120b"),
    "a TP that does not divide the heads": (
        "baseline: {tensor_parallel_size: 8}",
        "baseline: {tensor_parallel_size: 7}",
        "tensor_parallel_size",
        "7",
    ),
    "lengths above max_model_len": ("isl: 300", "isl: 9000", "labels.isl", "max_model_len"),
    "a target of zero": ("ttft_ms: 400", "ttft_ms: 0", "ttft_ms", "0"),
    "batched tokens below the sequences": (
        "baseline: {tensor_parallel_size: 8}",
        "baseline: {tensor_parallel_size: 8, max_num_seqs: 512, max_num_batched_tokens: 256}",
        "max_num_batched_tokens",
        "512",
    ),
    "a limit on queued requests beyond any number": (
        "engine: {max_model_len: 8192}", f"engine: {{max_num_queued_reqs: {10**20}}}", "max_num_queued_reqs", "at most"
    ),
    "a block size beyond any number": (
        "engine: {max_model_len: 8192}", f"engine: {{block_size: {10**20}}}", "block_size", "8, 16, 32, 64, 128 or 256"
    ),
    "an answer longer than any": ("osl: 2", f"osl: {10**20}", "labels.osl", "1,000,000,000"),
    "an unknown node": ("hardware: [mi355x]", "hardware: [mi356x]", "hardware", "mi355x"),
    "a model that was never measured there": ("hardware: [mi355x]", "precision: bf16\nhardware: [mi355x]",
                                              "hardware", "profile"),
    "an unknown precision": ("hardware: [mi355x]", "precision: int3\nhardware: [mi355x]", "precision", "mxfp4"),
    "a term that the price book lacks": ("start: 2027-01", "term: reserved_7y", "reserved_7y", "on_demand"),
    "a closed loop": ("{rate_rps: 40}", "{concurrency: 4}", "concurrency", "closed loop"),
    "no workloads": (SMALL_SCENARIO[SMALL_SCENARIO.index("workloads:") : SMALL_SCENARIO.index("baseline:")],
                     "workloads: {}\n", "workloads", "no workloads"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_message_with_file_line_and_key_and_exit_code_2(
    goodfleet: Run, mistake: str, tmp_path: Path
) -> None:
    old, new, key, said = MISTAKES[mistake]
    assert old in SMALL_SCENARIO
    path = write(tmp_path, SMALL_SCENARIO.replace(old, new))
    done = goodfleet("plan", path, "--out", tmp_path / "out")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert key in done.stderr and said in done.stderr
    if mistake != "a term that the price book lacks":
        assert "my.yaml:" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_duplicate_key_is_refused_with_both_lines(goodfleet: Run, tmp_path: Path) -> None:
    path = write(tmp_path, SMALL_SCENARIO + "seed: 2\n")
    done = goodfleet("plan", path)
    assert done.returncode == 2
    lines = [i for i, line in enumerate(path.read_text().splitlines(), 1) if line.startswith("seed:")]
    assert all(str(line) in done.stderr for line in lines)


def test_a_broken_line_of_a_trace_is_named(goodfleet: Run, tmp_path: Path) -> None:
    (tmp_path / "calls.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0.0,10,5\n1.0,ten,5\n")
    text = SMALL_SCENARIO.replace("traffic: {rate_rps: 40}", "traffic: {trace: calls.csv}")
    text = text.replace("    isl: {mean: 400, cv: 0.5}\n    osl: {mean: 120, cv: 0.5}\n", "")
    done = goodfleet("plan", write(tmp_path, text))
    assert done.returncode == 2
    assert "calls.csv:3" in done.stderr and "ten" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("plan", "absent.yaml"), "absent.yaml"),
        (("profile", "show", "mi355x/nothing"), "shipped"),
        (("recipe", "export", "absent.yaml"), "absent.yaml"),
        (("simulate", "examples/four-workloads.yaml", "--servers", "0"), "servers"),
        (("simulate", "examples/four-workloads.yaml", "--servers", "1", "--requests-out", "x.txt"), ".parquet"),
        (("simulate", "examples/four-workloads.yaml", "--servers", "1", "--timeline-events", "0"), "timeline-events"),
        (("simulate", "examples/four-workloads.yaml", "--servers", "1", "--timeline", "tests"), ".json"),
        (
            ("simulate", "examples/four-workloads.yaml", "--servers", "1", "--timeline", "LICENSE/x.json"),
            "cannot be written",
        ),
        (("plan",), "SCENARIO"),
    ],
)
def test_other_mistakes_exit_2_without_a_traceback(goodfleet: Run, arguments: tuple[str, ...], said: str) -> None:
    done = goodfleet(*arguments)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert said.lower() in done.stderr.lower()


@pytest.mark.parametrize("flag", [*EngineFlags.model_fields])
@pytest.mark.parametrize("section", ["engine", "search"])
def test_a_number_beyond_any_machine_is_refused_for_every_flag(section: str, flag: str, tmp_path: Path) -> None:
    start, end = SMALL_SCENARIO.index("baseline:"), SMALL_SCENARIO.index("fleet:")
    value = 10**20 if section == "engine" else [10**20]
    path = write(tmp_path, f"{SMALL_SCENARIO[:start]}{section}: {{{flag}: {value}}}\n{SMALL_SCENARIO[end:]}")
    with pytest.raises(InputError) as caught:
        load_scenario(path)
    assert str(caught.value.key).startswith(f"{section}.{flag}")
    assert re.search("must be|allowed: ", caught.value.problem)


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_computed(
    goodfleet: Run, small_scenario: Path, small_plan: Plan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("computed")

    monkeypatch.setattr("planner.write_up.make_plan", never)
    recipe = write_shortlist(small_plan, tmp_path)[0]
    for command in (
        ("plan", small_scenario, "--out", "/proc/x"),
        ("plan", small_scenario, "--out", small_scenario / "x"),
        ("recipe", "export", recipe, "--out", "/proc/x.yaml"),
        ("recipe", "export", recipe, "--out", "/proc/x/y.yaml"),
        ("recipe", "export", recipe, "--out", tmp_path),
    ):
        done = goodfleet(*command)
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and "--out" in done.stderr


def test_no_output_replaces_the_file_it_is_made_from(goodfleet: Run, tmp_path: Path) -> None:
    (tmp_path / "calls.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0.0,10,5\n1.0,10,5\n")
    text = SMALL_SCENARIO.replace("traffic: {rate_rps: 40}", "traffic: {trace: calls.csv}")
    text = text.replace("    isl: {mean: 400, cv: 0.5}\n    osl: {mean: 120, cv: 0.5}\n", "")
    scenario = write(tmp_path, text, "base.json")
    (tmp_path / "link.json").symlink_to(scenario)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for option, name in (("--timeline", "base.json"), ("--timeline", "link.json"), ("--requests-out", "calls.csv")):
        done = goodfleet("simulate", scenario, "--servers", "1", option, tmp_path / name)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ") and "overwritten" in done.stderr and option in done.stderr
    other = goodfleet("simulate", write(tmp_path, SMALL_SCENARIO), "--servers", "1", "--timeline", tmp_path / "my.yaml")
    assert (other.returncode, ".json" in other.stderr) == (2, True)
    assert (tmp_path / "my.yaml").read_text() == SMALL_SCENARIO
    assert {path: path.read_bytes() for path in before} == before


def test_an_export_does_not_replace_its_recipe(goodfleet: Run, small_plan: Plan, tmp_path: Path) -> None:
    recipe = write_shortlist(small_plan, tmp_path)[0]
    before = recipe.read_bytes()
    done = goodfleet("recipe", "export", recipe, "--out", recipe)
    assert done.returncode == 2 and "overwritten" in done.stderr
    assert recipe.read_bytes() == before


def test_a_plan_writes_its_folder_and_a_recipe_can_be_exported(
    goodfleet: Run, small_scenario: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = goodfleet("plan", small_scenario, "--out", out)
    assert done.returncode == 0, done.stderr
    plan = json.loads((out / "plan.json").read_text())
    assert f"{plan['best']['servers']} servers" in done.stdout
    assert (out / "plan.html").read_text().startswith("<!doctype html>")
    rows = pd.read_csv(out / "candidates.csv")
    assert len(rows) == len(plan["candidates"])
    assert [f"shortlist/{p.name}" for p in sorted((out / "shortlist").glob("*.yaml"))] == plan["shortlist"]
    exported = goodfleet("recipe", "export", out / "shortlist" / "01.yaml")
    assert exported.returncode == 0, exported.stderr
    assert f"max-num-seqs: {plan['best']['engine']['max_num_seqs']}" in exported.stdout


def test_nothing_meets_the_targets_is_exit_code_3_with_the_binding_target(goodfleet: Run, tmp_path: Path) -> None:
    path = write(tmp_path, SMALL_SCENARIO.replace("ttft_ms: 400", "ttft_ms: 1"))
    done = goodfleet("plan", path, "--out", tmp_path / "out")
    assert done.returncode == 3, done.stderr
    assert "Nothing meets the targets" in done.stdout and "chat ttft_ms" in done.stdout
    assert json.loads((tmp_path / "out" / "plan.json").read_text())["best"] is None


def test_simulate_prints_the_checks_and_writes_the_log(goodfleet: Run, small_scenario: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.parquet"
    done = goodfleet("simulate", small_scenario, "--servers", "1", "--replications", "2", "--requests-out", log)
    assert done.returncode == 0, done.stderr
    for word in ("Conservation", "Little", "prefill", "Preemptions", "chat", "labels"):
        assert word in done.stdout
    rows = pd.read_parquet(log)
    assert tuple(rows.columns) == LOG_COLUMNS
    assert set(rows["phase"]) == {"warmup", "window", "runout"}


def test_simulate_draws_its_first_run_and_says_what_was_cut(
    goodfleet: Run, small_scenario: Path, tmp_path: Path
) -> None:
    path, log = tmp_path / "deep" / "run.json", tmp_path / "log.csv"
    command = ("simulate", small_scenario, "--servers", "1", "--replications", "2", "--multiplier", "0.2")
    done = goodfleet(*command, "--timeline", path, "--timeline-events", "20000", "--requests-out", log, "--json")
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)
    trace = json.loads(path.read_text())
    about, rows = trace["otherData"], pd.read_csv(log)
    assert len(trace["traceEvents"]) <= 20_000
    assert about["requests"] + about["requests_left_out"] == len(rows)
    assert about["complete"] is False
    assert "20,000 events" in done.stderr and "left out" in done.stderr
    decodes = [(e, rows.iloc[e["tid"] - 1_000_000]) for e in trace["traceEvents"] if e["name"] == "decode"]
    ended = [(event, row) for event, row in decodes if row["finish_s"] < about["until_s"]]
    assert len(ended) > 100
    for event, row in ended:
        assert event["ts"] == pytest.approx(row["first_token_s"] * 1e6, abs=1)
        assert event["ts"] + event["dur"] == pytest.approx(row["finish_s"] * 1e6, abs=1)
    assert [p.name for p in path.parent.iterdir()] == ["run.json"]


def test_drawing_a_timeline_says_that_it_is_at_work(goodfleet: Run, small_scenario: Path, tmp_path: Path) -> None:
    command = ("simulate", small_scenario, "--servers", "1", "--replications", "2", "--multiplier", "0.2")
    done = goodfleet(*command, "--timeline", tmp_path / "t.json", "--timeline-events", "2000")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == "drawing the timeline …"
    assert ". 1 server, " in " ".join(done.stdout.split())


def test_simulate_shows_the_gaps_that_readers_feel(goodfleet: Run, small_scenario: Path) -> None:
    command = ("simulate", small_scenario, "--servers", "1", "--replications", "2")
    done = goodfleet(*command)
    assert "Between two tokens of a stream" in done.stdout
    row = json.loads(goodfleet(*command, "--json").stdout)["workloads"]["chat"]
    assert 0 < row["stall_p50_ms"] <= row["stall_p99_ms"] <= row["longest_stall_ms"]
    assert row["itl_p50_ms"] <= row["itl_p99_ms"] < row["longest_stall_ms"] * 1.07


def test_offered_load_above_capacity_is_called_saturated(goodfleet: Run, small_scenario: Path) -> None:
    done = goodfleet(
        "simulate", small_scenario, "--servers", "1", "--replications", "2", "--multiplier", "40", "--json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["saturated"] is True and found["meets"] is False


def test_a_closed_loop_can_be_simulated(goodfleet: Run, tmp_path: Path) -> None:
    text = SMALL_SCENARIO.replace("{rate_rps: 40}", "{concurrency: 4}")
    text = text[: text.index("  labels:")] + text[text.index("baseline:") :]
    done = goodfleet("simulate", write(tmp_path, text), "--servers", "1", "--replications", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["little"]["in_flight_mean"] <= 4.0 + 1e-6


def test_capacity_answers_in_one_sentence(goodfleet: Run, small_scenario: Path) -> None:
    done = goodfleet("capacity", small_scenario, "--servers", "1", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["multiplier"] > 1 and found["binding"]


def test_the_schema_is_json_and_knows_the_keys(goodfleet: Run) -> None:
    done = goodfleet("schema")
    schema = json.loads(done.stdout)
    assert {"workloads", "hardware", "search", "fleet", "cost"} <= set(schema["properties"])


@pytest.mark.parametrize("arguments", [("schema",), ("profile", "show", "mi355x/gpt-oss-120b"), ("profile", "list")])
def test_a_reader_that_has_gone_is_no_defect_and_a_full_disk_is_one_line(arguments: tuple[str, ...]) -> None:
    code = "from validator.cli import app; app()"
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe, open("/dev/full", "wb") as full:
        for output, expected, said in ((pipe, 0, ""), (full, 1, "error: the output cannot be written (No space left")):
            done = subprocess.run(
                [sys.executable, "-c", code, *arguments], stdout=output, stderr=subprocess.PIPE, text=True
            )
            assert done.returncode == expected, done.stderr
            assert done.stderr.startswith(said) and done.stderr.count("\n") <= 1 and "Traceback" not in done.stderr


def test_a_disk_that_fills_up_while_a_file_is_written_is_one_line_and_exit_code_1(
    goodfleet: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "found.json")

    monkeypatch.setattr("planner.check_file.write_check", full)
    rows = ROOT / "hardware_profiles" / "measurements" / "mi355x-gpt-oss-120b-mxfp4.csv"
    done = goodfleet("profile", "check", "mi355x/gpt-oss-120b", rows, "--json", tmp_path / "found.json")
    assert done.returncode == 1
    assert done.stderr.startswith("error: found.json cannot be written (No space left on device); what stands there")
    assert "Traceback" not in done.stderr
