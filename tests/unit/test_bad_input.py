"""Every mistake in a scenario is one message with file, line, key, the value, the rule and the cure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hardware_profiles.errors import InputError
from hardware_profiles.model import load_model_card
from hardware_profiles.node import load_node
from simulator.hardware_check import load_model_and_nodes, unusable_tensor_parallel_size
from simulator.scenario import load_scenario

GOOD = """\
name: good
model: gpt-oss-120b
hardware: [mi355x]
workloads:
  chat:
    traffic: {rate_rps: 40}
    isl: {mean: 256, cv: 0.6}
    osl: 256
    slo: {ttft_ms: 500, tpot_ms: 40}
  batch:
    batch: {requests: 2_000, within_hours: 8}
    isl: 512
    osl: 4
baseline: {tensor_parallel_size: 8}
engine: {max_model_len: 4096}
search: {max_num_seqs: [64, 128]}
fleet: {headroom: 0.2}
cost: {start: 2027-01}
seed: 1
as_of: 2026-12-01
"""

RATE, ISL, OSL, SLO = "{rate_rps: 40}", "{mean: 256, cv: 0.6}", "osl: 256", "{ttft_ms: 500, tpot_ms: 40}"


def refusal(folder: Path, text: str) -> InputError:
    path = folder / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_model_and_nodes(load_scenario(path))
    assert str(caught.value).startswith(f"{path}:")
    return caught.value


def test_the_scenario_that_the_mistakes_are_put_into_is_good(tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD, encoding="utf-8")
    card, nodes = load_model_and_nodes(load_scenario(path))
    assert (card.name, nodes[0].name) == ("gpt-oss-120b", "mi355x")


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "words"),
    [
        pytest.param("ttft_ms:", "ttft_msec:", 9, "workloads.chat.slo.ttft_msec", ["`ttft_ms`"], id="unknown key"),
        pytest.param("seed: 1", "sed: 1", 19, "sed", ["unknown key `sed`", "`seed`"], id="unknown top-level key"),
        pytest.param(
            "within_hours: 8",
            "within_hours: 8, starts: 22:00",
            11,
            "workloads.batch.batch.starts",
            ["unknown key `starts`"],
            id="a key of a later feature",
        ),
        pytest.param(
            "rate_rps: 40", "rate_rps: -40", 6, "workloads.chat.traffic.rate_rps", ["-40"], id="negative rate"
        ),
        pytest.param("rate_rps: 40", "rate_rps: 0", 6, "workloads.chat.traffic.rate_rps", ["0 is not"], id="zero rate"),
        pytest.param(
            "rate_rps: 40", "rate_rps: true", 6, "workloads.chat.traffic.rate_rps", ["number"], id="true rate"
        ),
        pytest.param(
            "rate_rps: 40", 'rate_rps: "40"', 6, "workloads.chat.traffic.rate_rps", ["quotes"], id="text rate"
        ),
        pytest.param("rate_rps: 40", "rate_rps: .nan", 6, "workloads.chat.traffic.rate_rps", ["nan"], id="NaN rate"),
        pytest.param("ttft_ms: 500", "ttft_ms: .inf", 9, "workloads.chat.slo.ttft_ms", ["inf"], id="infinite target"),
        pytest.param(
            "ttft_ms: 500",
            "ttft_ms: 0",
            9,
            "workloads.chat.slo.ttft_ms",
            ["0 is not allowed", "greater than 0", "e.g. ttft_ms: 500"],
            id="a target of zero",
        ),
        pytest.param(
            SLO, f"{SLO[:-1]}, attainment: 99}}", 9, "workloads.chat.slo.attainment", ["99", "1"], id="99 as share"
        ),
        pytest.param(SLO, "{attainment: 0.9}", 5, "workloads.chat", ["no latency target"], id="no target"),
        pytest.param("mi355x", "mi355", 3, "hardware", ["'mi355'", "`mi355x`"], id="unknown node"),
        pytest.param(
            "gpt-oss-120b", "gpt-oss-12b", 2, "model", ["'gpt-oss-12b'", "`gpt-oss-120b`"], id="unknown model"
        ),
        pytest.param("[mi355x]", "[]", 3, "hardware", ["at least one"], id="no hardware"),
        pytest.param("[mi355x]", "[mi355x, mi355x]", 3, "hardware", ["twice"], id="the same node twice"),
        pytest.param(
            "tensor_parallel_size: 8",
            "tensor_parallel_size: 7",
            14,
            "baseline.tensor_parallel_size",
            ["7 does not divide the 8 GPUs of a mi355x server", "1, 2, 4, 8"],
            id="TP 7",
        ),
        pytest.param(
            "tensor_parallel_size: 8",
            "tensor_parallel_size: 16",
            14,
            "baseline.tensor_parallel_size",
            ["16 does not divide the 8 GPUs"],
            id="TP above the server",
        ),
        pytest.param(
            "max_model_len: 4096",
            "max_model_len: 500",
            7,
            "workloads.chat.isl",
            ["256 prompt and 256 answer tokens", "engine.max_model_len: 500 (line 15)"],
            id="ISL + OSL above max_model_len",
        ),
        pytest.param(ISL, "{uniform: [1, 4000]}", 7, "workloads.chat.isl", ["4000 prompt"], id="upper bound too long"),
        pytest.param(
            "max_model_len: 4096",
            "max_model_len: 200_000",
            15,
            "engine.max_model_len",
            ["131072", "gpt-oss-120b"],
            id="max_model_len above the model's",
        ),
        pytest.param(
            "engine: {max_model_len: 4096}\nsearch: {max_num_seqs: [64, 128]}",
            "engine: {max_num_batched_tokens: 256, max_num_seqs: 512}",
            15,
            "engine.max_num_batched_tokens",
            ["256 is below max_num_seqs (512)", "at least 512"],
            id="max_num_batched_tokens below max_num_seqs",
        ),
        pytest.param(
            "baseline: {tensor_parallel_size: 8}\nengine: {max_model_len: 4096}",
            "baseline: {max_num_seqs: 512}\nengine: {max_num_batched_tokens: 256}",
            15,
            "engine.max_num_batched_tokens",
            ["256 is below max_num_seqs (512)"],
            id="the same, over two sections",
        ),
        pytest.param(
            "max_model_len: 4096", "max_num_seqs: 64", 16, "search.max_num_seqs", ["line 15"], id="fixed and searched"
        ),
        pytest.param(
            "tensor_parallel_size: 8",
            "max_model_len: 8192",
            14,
            "baseline.max_model_len",
            ["8192 contradicts engine.max_model_len: 4096"],
            id="baseline against engine",
        ),
        pytest.param("[64, 128]", "[64, 64]", 16, "search", ["64 twice"], id="a searched value twice"),
        pytest.param("[64, 128]", "[]", 16, "search", ["max_num_seqs has no values"], id="an empty search list"),
        pytest.param("[64, 128]", "64", 16, "search.max_num_seqs", ["a list"], id="a search value without brackets"),
        pytest.param(OSL, "osl: 0", 8, "workloads.chat.osl", ["0 is not allowed", "1 token"], id="no answer"),
        pytest.param(OSL, "osl: 2.5", 8, "workloads.chat.osl", ["2.5"], id="half a token"),
        pytest.param(ISL, "{uniform: [9, 8]}", 7, "workloads.chat.isl.uniform", ["[8, 9]"], id="bounds reversed"),
        pytest.param(ISL, "{mean: 256}", 7, "workloads.chat.isl.cv", ["missing"], id="mean without cv"),
        pytest.param(ISL, "{mean: 256, cv: -1}", 7, "workloads.chat.isl.cv", ["-1"], id="negative cv"),
        pytest.param(
            RATE,
            "{rate_rps: 40, burstiness: 0.5}",
            6,
            "workloads.chat.traffic",
            ["arrivals: gamma"],
            id="burst Poisson",
        ),
        pytest.param(
            RATE, "{rate_rps: 40, arrivals: gamma}", 6, "workloads.chat.traffic", ["burstiness: 0.5"], id="bare gamma"
        ),
        pytest.param(
            RATE,
            "{concurrency: 8}",
            6,
            "workloads.chat.traffic.concurrency",
            ["closed loop", "scenario of its own"],
            id="a closed loop beside others",
        ),
        pytest.param(
            RATE, "{rate_rps: 4, concurrency: 8}", 6, "workloads.chat.traffic", ["exclude each other"], id="two kinds"
        ),
        pytest.param(RATE, "{trace: no.csv}", 5, "workloads.chat", ["isl", "trace"], id="a trace and lengths"),
        pytest.param(
            "    osl: 4\n",
            "    osl: 4\n    traffic: {rate_rps: 1}\n",
            10,
            "workloads.batch",
            ["both"],
            id="traffic and batch",
        ),
        pytest.param(
            "headroom: 0.2", "headroom: 20", 17, "fleet.headroom", ["20", "at most 4"], id="headroom in percent"
        ),
        pytest.param("2027-01", "2027-13", 18, "cost.start", ["2027-13", "e.g. start: 2027-01"], id="month 13"),
        pytest.param("2026-12-01", "2026-12-32", 20, "as_of", ["2026-12-32"], id="no such day"),
        pytest.param("seed: 1", "seed: -1", 19, "seed", ["-1"], id="negative seed"),
        *(
            pytest.param("engine: {max_model_len: 4096}", f"engine: {{{flag}}}", 15, f"engine.{key}", words, id=flag)
            for flag, key, words in (
                ('enable_prefix_caching: "yes"', "enable_prefix_caching", ["'yes'", "true or false"]),
                ("enable_prefix_caching: yes", "enable_prefix_caching", ["'yes'", "true or false"]),
                ("async_scheduling: 0", "async_scheduling", ["0", "true or false"]),
                ("watermark: 1", "watermark", ["1 is not allowed", "less than 1"]),
                ("watermark: -0.1", "watermark", ["-0.1"]),
                ("max_num_queued_reqs: 0", "max_num_queued_reqs", ["0 is not allowed", "at least 1"]),
                ("scheduling_policy: prio", "scheduling_policy", ["'prio'", "fcfs", "priority"]),
                ("scheduling-policy: fcfs", "scheduling-policy", ["`scheduling_policy`"]),
                ("data_parallel_size: 2", "data_parallel_size", ["unknown key"]),
                (
                    "max_num_batched_tokens: 2048, long_prefill_token_threshold: 2048",
                    "long_prefill_token_threshold",
                    ["2048 caps nothing", "max_num_batched_tokens (2048)"],
                ),
                (
                    "long_prefill_token_threshold_adaptive: true",
                    "long_prefill_token_threshold_adaptive",
                    ["add long_prefill_token_threshold"],
                ),
            )
        ),
        pytest.param(
            "max_num_seqs: [64, 128]",
            "enable_prefix_caching: [true, true]",
            16,
            "search",
            ["lists true twice"],
            id="a switch twice",
        ),
        *(
            pytest.param(OSL, f"{OSL}\n    {line}", 9, f"workloads.chat.{key}", words, id=line)
            for line, key, words in (
                ("prefix: {documents: 0, tokens: 9}", "prefix.documents", ["0 is not allowed", "at least 1"]),
                ("prefix: {documents: 9, tokens: 0}", "prefix.tokens", ["0 is not allowed", "at least 1"]),
                ("prefix: {documents: 9}", "prefix.tokens", ["missing"]),
                ("prefix: {documents: 9, tokens: 9, popularity: zipfian}", "prefix.popularity", ["zipf", "uniform"]),
                (
                    "prefix: {documents: 9, tokens: 5000}",
                    "prefix.tokens",
                    ["5000 do not fit engine.max_model_len: 4096"],
                ),
                ("priority: 1", "priority", ["1 changes nothing", "scheduling_policy: priority"]),
                ("priority: high", "priority", ["'high'"]),
            )
        ),
    ],
)
def test_a_mistake_is_named_with_line_key_value_and_cure(
    tmp_path: Path, old: str, new: str, line: int, key: str, words: list[str]
) -> None:
    assert GOOD.count(old) == 1
    error = refusal(tmp_path, GOOD.replace(old, new))
    assert error.line == line, str(error)
    assert error.key is not None and (error.key == key or error.key.startswith(f"{key}[")), str(error)
    for word in words:
        assert word in error.problem, str(error)


def test_a_duplicate_key_is_refused_with_both_lines(tmp_path: Path) -> None:
    error = refusal(tmp_path, GOOD.replace("  batch:\n    batch:", "  chat:\n    batch:"))
    assert "duplicate key workloads.chat, lines 5 and 10" in str(error)


@pytest.mark.parametrize("written", ["workloads: {}", "workloads:"])
def test_empty_workloads_are_refused(tmp_path: Path, written: str) -> None:
    error = refusal(tmp_path, f"name: none\nmodel: gpt-oss-120b\nhardware: [mi355x]\n{written}\n")
    assert (error.line, error.key) == (4, "workloads")


@pytest.mark.parametrize("osl", ["1", "{uniform: [1, 1]}"])
@pytest.mark.parametrize("target", ["tpot_ms", "tpot_p99_ms", "itl_p99_ms"])
def test_a_target_between_tokens_alone_cannot_judge_one_token_answers(tmp_path: Path, osl: str, target: str) -> None:
    """Case S07: the configuration error names the workload."""
    error = refusal(tmp_path, GOOD.replace(OSL, f"osl: {osl}").replace(SLO, f"{{{target}: 40}}"))
    assert (error.line, error.key) == (5, "workloads.chat")
    assert "one token" in error.problem and "ttft_ms: 500" in error.problem


def recorded(rows: str, folder: Path, slo: str = SLO) -> str:
    (folder / "calls.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}")
    lengths = f"    isl: {ISL}\n    {OSL}\n"
    return GOOD.replace(RATE, "{trace: calls.csv}").replace(lengths, "").replace(SLO, slo)


def test_a_trace_with_a_broken_line_is_refused_at_that_line_of_the_trace(tmp_path: Path) -> None:
    text = recorded("0,5,5\n1,5,5\n2,five,5\n", tmp_path)
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        load_scenario(tmp_path / "bad.yaml")
    error = caught.value
    assert (error.file, error.line, error.key) == (str(tmp_path / "calls.csv"), 4, "prompt_tokens")
    assert "'five'" in error.problem


def test_a_trace_that_is_not_there_is_refused_at_the_scenarios_line(tmp_path: Path) -> None:
    text = recorded("", tmp_path).replace("calls.csv", "absent.csv")
    error = refusal(tmp_path, text)
    assert (error.line, error.key) == (6, "workloads.chat.traffic.trace")
    assert "absent.csv" in error.problem


def test_a_trace_that_does_not_fit_max_model_len_is_refused(tmp_path: Path) -> None:
    error = refusal(tmp_path, recorded("0,9000,5\n1,9000,5\n", tmp_path))
    assert (error.line, error.key) == (6, "workloads.chat.traffic.trace")
    assert "9000 prompt" in error.problem


def test_a_prefix_longer_than_the_models_context_is_refused(tmp_path: Path) -> None:
    text = GOOD.replace("engine: {max_model_len: 4096}\n", "")
    error = refusal(tmp_path, text.replace(OSL, f"{OSL}\n    prefix: {{documents: 9, tokens: 140_000}}"))
    assert (error.line, error.key) == (9, "workloads.chat.prefix.tokens")
    assert "140000 do not fit the 131072 tokens of gpt-oss-120b" in error.problem


def test_a_trace_cannot_have_a_prefix(tmp_path: Path) -> None:
    text = recorded("0,5,5\n1,5,5\n", tmp_path)
    error = refusal(tmp_path, text.replace("    slo:", "    prefix: {documents: 9, tokens: 9}\n    slo:"))
    assert (error.line, error.key) == (5, "workloads.chat")
    assert "prompts of a trace share what was recorded" in error.problem


@pytest.mark.parametrize("section", ["engine", "baseline", "search"])
def test_priorities_are_taken_where_any_section_has_the_policy(tmp_path: Path, section: str) -> None:
    policy = "scheduling_policy: [fcfs, priority]" if section == "search" else "scheduling_policy: priority"
    text = GOOD.replace(f"{section}: {{", f"{section}: {{{policy}, ").replace(OSL, f"{OSL}\n    priority: -3")
    (tmp_path / "good.yaml").write_text(text, encoding="utf-8")
    assert load_scenario(tmp_path / "good.yaml").scenario.workloads["chat"].priority == -3


def test_a_trace_of_one_token_answers_needs_a_target_that_applies(tmp_path: Path) -> None:
    error = refusal(tmp_path, recorded("0,5,1\n1,5,1\n", tmp_path, slo="{tpot_ms: 40}"))
    assert (error.line, error.key) == (7, "workloads.chat.slo")
    assert "one token" in error.problem


def test_an_unknown_precision_is_refused_with_those_of_the_card(tmp_path: Path) -> None:
    error = refusal(tmp_path, GOOD.replace("hardware:", "precision: int3\nhardware:"))
    assert (error.line, error.key) == (3, "precision")
    assert "'int3'" in error.problem and "mxfp4" in error.problem


def test_a_tensor_parallel_size_must_split_the_heads_of_the_model() -> None:
    node, card = load_node("mi355x"), load_model_card("gpt-oss-120b")
    assert [unusable_tensor_parallel_size(size, node, card) for size in (1, 2, 4, 8)] == [None] * 4
    twenty = replace(card, heads=20, kv_heads=4)
    problem = unusable_tensor_parallel_size(8, node, twenty)
    assert problem == "8 does not divide the 20 attention heads (4 KV heads) of gpt-oss-120b; use 1, 2, 4"
    six_gpus = replace(node, gpus_per_server=6)
    assert unusable_tensor_parallel_size(3, six_gpus, card) is not None
    assert unusable_tensor_parallel_size(8, node, replace(card, heads=64, kv_heads=3)) is not None


def test_several_mistakes_come_in_one_message(tmp_path: Path) -> None:
    text = (
        GOOD.replace("rate_rps: 40", "rate_rps: -1").replace("ttft_ms: 500", "ttft_ms: 0").replace("seed: 1", "sed: 1")
    )
    error = refusal(tmp_path, text)
    assert error.line == 6
    assert "and 2 more problems" in error.problem
    assert "line 9: workloads.chat.slo.ttft_ms" in error.problem and "line 19: sed" in error.problem
