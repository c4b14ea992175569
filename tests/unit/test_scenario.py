"""A scenario says what the user wrote, with the defaults of the design, and brings its traces along."""

from __future__ import annotations

import hashlib
import itertools
from datetime import date
from pathlib import Path

import pytest

from hardware_profiles.errors import InputError
from simulator.arrivals import offered_rps
from simulator.engine import ENGINE_FLAGS
from simulator.flags import EngineFlags, Search
from simulator.hardware_check import load_model_and_nodes
from simulator.lengths import LognormalLengths, UniformLengths, typical_tokens
from simulator.scenario import Fleet, LoadedScenario, Scenario, load_scenario
from simulator.slo import PercentileTarget, Slo
from simulator.traffic import Batch, ClosedTraffic, RateTraffic, TraceTraffic

EXAMPLES = Path(__file__).parents[2] / "examples"

SMALL = """\
name: small
model: gpt-oss-120b
hardware: [mi355x]
workloads:
  chat:
    traffic: {rate_rps: 40}
    isl: 256
    osl: 256
    slo: {ttft_ms: 500}
"""


def load(folder: Path, text: str) -> LoadedScenario:
    path = folder / "s.yaml"
    path.write_text(text, encoding="utf-8")
    return load_scenario(path)


def test_defaults_are_those_of_the_design(tmp_path: Path) -> None:
    scenario = load(tmp_path, SMALL).scenario
    assert scenario.fleet == Fleet(routing="least_outstanding", spare_servers=1, headroom=0.2, max_servers=64)
    assert (scenario.seed, scenario.as_of, scenario.precision) == (1, None, None)
    assert (scenario.baseline, scenario.search, scenario.cost) == (None, None, None)
    assert scenario.engine.given() == {}
    assert scenario.workloads["chat"].slo == Slo(ttft_ms=500, attainment=0.99)


def test_the_hash_is_that_of_the_files_bytes(tmp_path: Path) -> None:
    loaded = load(tmp_path, SMALL)
    assert loaded.sha256 == hashlib.sha256(SMALL.encode()).hexdigest()
    assert loaded.path == tmp_path / "s.yaml"


def test_every_spelling_of_traffic_and_lengths_is_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,5,5\n1,5,5\n")
    text = """\
name: spellings
model: gpt-oss-120b
hardware: mi355x
precision: [mxfp4, bf16]
workloads:
  poisson: {traffic: {rate_rps: 40}, isl: 256, osl: {mean: 9.5, cv: 0}, slo: {tpot_ms: 40}}
  gamma: {traffic: {rate_rps: 0.5, arrivals: gamma, burstiness: 2}, isl: {uniform: [8, 9]}, osl: 1, slo: {e2e_ms: 1}}
  recorded: {traffic: {trace: t.csv, scale: 0.5}, slo: {itl_p99_ms: 80}}
  batch: {batch: {requests: 2_000_000, within_hours: 8}, isl: 512, osl: 4}
as_of: 2026-12-01
"""
    loaded = load(tmp_path, text)
    scenario = loaded.scenario
    assert scenario.hardware == ("mi355x",)
    assert scenario.precision == ("mxfp4", "bf16")
    assert scenario.as_of == date(2026, 12, 1)
    workloads = scenario.workloads
    assert workloads["poisson"].traffic == RateTraffic(rate_rps=40)
    assert workloads["poisson"].osl == LognormalLengths(mean=9.5, cv=0)
    assert workloads["gamma"].traffic == RateTraffic(rate_rps=0.5, arrivals="gamma", burstiness=2)
    assert workloads["gamma"].isl == UniformLengths(uniform=(8, 9))
    assert workloads["recorded"].traffic == TraceTraffic(trace="t.csv", scale=0.5)
    assert workloads["batch"].batch == Batch(requests=2_000_000, within_hours=8)
    assert offered_rps(workloads["recorded"], loaded.traces["recorded"]) == pytest.approx(0.5)
    assert offered_rps(workloads["batch"]) == pytest.approx(2_000_000 / (0.95 * 8 * 3600))


def test_a_closed_loop_may_stand_alone_and_without_targets(tmp_path: Path) -> None:
    text = SMALL.replace("{rate_rps: 40}", "{concurrency: 64}").replace("    slo: {ttft_ms: 500}\n", "")
    workload = load(tmp_path, text).scenario.workloads["chat"]
    assert workload.traffic == ClosedTraffic(concurrency=64)
    assert workload.slo.metrics() == frozenset()


def test_a_trace_path_starts_at_the_scenarios_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "project" / "traces"
    folder.mkdir(parents=True)
    (folder / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,5,5\n1,5,5\n")
    text = SMALL.replace("{rate_rps: 40}", "{trace: traces/t.csv}").replace("    isl: 256\n    osl: 256\n", "")
    (tmp_path / "project" / "s.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    loaded = load_scenario("project/s.yaml")
    assert loaded.traces["chat"].prompt_tokens.tolist() == [5, 5]


def test_one_token_answers_are_judged_by_the_first_token(tmp_path: Path) -> None:
    """Case S07: with a TTFT target beside the TPOT target, answers of one token are no mistake."""
    text = SMALL.replace("osl: 256", "osl: 1").replace("{ttft_ms: 500}", "{ttft_ms: 500, tpot_ms: 40}")
    slo = load(tmp_path, text).scenario.workloads["chat"].slo
    assert slo.per_request_s() == {"ttft": 0.5, "tpot": 0.04}


def test_targets_come_in_seconds_and_in_two_kinds() -> None:
    slo = Slo(tpot_ms=40, itl_p99_ms=80, e2e_p95_ms=9000, ttft_p50_ms=200)
    assert slo.per_request_s() == {"tpot": 0.04}
    assert slo.percentile_targets() == (
        PercentileTarget(metric="ttft", percentile=50, limit_s=0.2),
        PercentileTarget(metric="itl", percentile=99, limit_s=0.08),
        PercentileTarget(metric="e2e", percentile=95, limit_s=9.0),
    )
    assert slo.metrics() == {"ttft", "tpot", "itl", "e2e"}
    assert not Slo(tpot_ms=40, itl_p99_ms=80).judges_one_token_answers()


def test_the_baseline_runs_with_the_fixed_flags(tmp_path: Path) -> None:
    text = SMALL + "baseline: {tensor_parallel_size: 8, servers: 3}\nengine: {max_model_len: 4096}\n"
    scenario = load(tmp_path, text).scenario
    assert scenario.baseline_flags() == {"tensor_parallel_size": 8, "max_model_len": 4096}
    assert scenario.baseline is not None and scenario.baseline.servers == 3


def test_a_line_can_be_looked_up_for_a_later_error(tmp_path: Path) -> None:
    error = load(tmp_path, SMALL).error("is too long", ("workloads", "chat", "isl"))
    assert str(error) == f"{tmp_path / 's.yaml'}:7: workloads.chat.isl: is too long"


def test_a_length_must_fit_with_its_upper_bound_or_its_mean() -> None:
    assert typical_tokens(512) == 512
    assert typical_tokens(UniformLengths(uniform=(8, 90))) == 90
    assert typical_tokens(LognormalLengths(mean=300, cv=2)) == 300


def test_the_file_knows_exactly_the_flags_of_the_engine() -> None:
    assert set(EngineFlags.model_fields) == set(Search.model_fields) == set(ENGINE_FLAGS)


def test_the_schema_describes_every_field_of_the_file() -> None:
    schema = Scenario.model_json_schema()
    assert "Requests per second" not in str(schema["properties"]["name"])
    assert {"type": "string"} in schema["properties"]["hardware"]["anyOf"]  # `hardware: mi355x` is a list of one
    missing = [
        f"{title}.{name}"
        for title, part in schema["$defs"].items()
        for name, field in part["properties"].items()
        if "description" not in field and title not in ("Search", "Slo")  # named like the flags and metrics above them
    ]
    assert missing == []


def test_the_examples_load_and_fit_their_hardware() -> None:
    loaded = {path.stem: load_scenario(path) for path in EXAMPLES.glob("*.yaml")}
    assert {"four-workloads", "azure-conversation"} <= set(loaded)
    for example in loaded.values():
        card, nodes = load_model_and_nodes(example)
        assert (card.name, [node.name for node in nodes]) == ("gpt-oss-120b", ["mi355x"])


def test_the_four_workloads_search_more_than_a_thousand_configurations() -> None:
    search = load_scenario(EXAMPLES / "four-workloads.yaml").scenario.search
    assert search is not None
    assert len(list(itertools.product(*search.lists().values()))) >= 1_248
    assert search.max_num_seqs is not None and search.max_num_batched_tokens is not None
    assert min(search.max_num_batched_tokens) >= max(search.max_num_seqs)  # vLLM refuses the rest


def test_the_four_workloads_keep_the_lines_that_readers_change() -> None:
    lines = (EXAMPLES / "four-workloads.yaml").read_text(encoding="utf-8").splitlines()
    assert "model: gpt-oss-120b" in lines
    assert "hardware: [mi355x]" in lines
    for key in ("rate_rps: ", "ttft_ms: ", "tpot_ms: "):
        values = [line.split("#")[0].split(": ")[1] for line in lines if line.strip().startswith(key)]
        assert len(values) == 3
        assert all(float(value) > 0 for value in values)


def test_an_example_with_a_broken_trace_path_names_the_place_it_looked(tmp_path: Path) -> None:
    text = (EXAMPLES / "azure-conversation.yaml").read_text(encoding="utf-8")
    with pytest.raises(
        InputError, match=r"s\.yaml:\d+: workloads\.conversation\.traffic\.trace: there is no trace file"
    ):
        load(tmp_path, text)
