"""A result of `vllm bench serve` is a row with the run's own lengths; what it does not say is asked for by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hardware_profiles.errors import InputError
from simulator.benchmark_inputs import Imported, read_inputs

REAL = Path(__file__).parent / "cases" / "bench-serve.json"
FACTS = "gpu: mi355x\nprecision: mxfp4\nframework: vllm\ntp: 2\n"


def result(**changes: Any) -> dict[str, Any]:
    """A closed loop of 8 requests at TP2, 1,000 and 100 tokens, 10 ms a token and 90 ms to the first."""
    made: dict[str, Any] = {
        "date": "20261130-101500",
        "backend": "vllm",
        "model_id": "openai/gpt-oss-120b",
        "num_prompts": 80,
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": 8,
        "duration": 10.8,
        "completed": 80,
        "failed": 0,
        "total_input_tokens": 80_000,
        "total_output_tokens": 8_000,
        "request_throughput": 80 / 10.8,
        "output_throughput": 8_000 / 10.8,
        "total_token_throughput": 88_000 / 10.8,
        "mean_ttft_ms": 90.0,
        "median_ttft_ms": 88.0,
        "mean_tpot_ms": 10.0,
        "median_tpot_ms": 9.9,
    }
    return {key: value for key, value in (made | changes).items() if value is not ...}


def imported(folder: Path, data: object, *, facts: str = FACTS, given: dict[str, str] | None = None) -> Imported:
    path = folder / "run-1.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    if facts:
        (folder / "run.yaml").write_text(facts, encoding="utf-8")
    return read_inputs([path], given=given)


def reason(folder: Path, data: object) -> str:
    found = imported(folder, data)
    assert (found.read, found.rows) == (1, ())
    ((why, count),) = found.left_out
    assert count == 1
    return why


def test_a_run_is_a_row_in_seconds_with_its_own_lengths_date_and_number_of_requests(tmp_path: Path) -> None:
    found = imported(tmp_path, result())
    (row,) = found.rows
    assert (found.read, found.files, found.left_out) == (1, 1, ())
    assert (row.gpu, row.model, row.precision, row.framework) == ("mi355x", "gpt-oss-120b", "mxfp4", "vllm")
    assert (row.tensor_parallel_size, row.isl, row.osl, row.concurrency, row.requests) == (2, 1000, 100, 8, 80)
    assert (row.tpot_s, row.ttft_s) == pytest.approx((0.0099, 0.088))
    assert (row.tpot_statistic, row.ttft_statistic) == ("median", "median")
    assert row.tokens_per_s == pytest.approx(88_000 / 10.8)
    assert (row.length_low, row.length_high) == (1.0, 1.0)
    assert (row.date, row.weight, row.special, row.variant) == ("2026-11-30", 1.0, "", "")


def test_a_real_result_with_every_length_gives_their_range(tmp_path: Path) -> None:
    """40 requests of 256 and 32 tokens, each within 20 %, 4 in flight (vLLM 0.32)."""
    (row,) = imported(tmp_path, REAL.read_text(encoding="utf-8")).rows
    assert (row.isl, row.osl, row.concurrency, row.requests) == (252, 32, 4, 40)
    assert row.length_low == pytest.approx(0.8, abs=0.02)
    assert row.length_high == pytest.approx(1.2, abs=0.04)
    assert row.tpot_s == pytest.approx(0.028667, rel=1e-4)
    assert row.tokens_per_s == pytest.approx(1086.27, rel=1e-5)
    assert row.weight == 1.0


def test_the_command_line_fills_what_is_missing_and_the_file_beside_goes_before_it(tmp_path: Path) -> None:
    given = {"gpu": "mi300x", "precision": "fp8", "framework": "vllm", "tp": "8"}
    (row,) = imported(tmp_path, result(), facts="tp: 4\nmax_num_seqs: 64\nasync_scheduling: false\n", given=given).rows
    assert (row.gpu, row.precision, row.tensor_parallel_size) == ("mi300x", "fp8", 4)
    assert (row.max_num_seqs, row.async_scheduling) == (64, False)
    assert row.tokens_per_s == pytest.approx(88_000 / 10.8)


def test_metadata_of_the_client_counts_as_the_results_own(tmp_path: Path) -> None:
    (row,) = imported(tmp_path, result(tp="4", gpu="mi355x", precision="mxfp4"), facts="framework: vllm\n").rows
    assert row.tensor_parallel_size == 4
    with pytest.raises(InputError, match="tp: 2 beside the result, but 4 in it; correct one of them"):
        imported(tmp_path, result(tp="4"))


def test_the_nearest_file_beside_a_result_wins(tmp_path: Path) -> None:
    inner = tmp_path / "runs" / "tp4"
    inner.mkdir(parents=True)
    (tmp_path / "run.yaml").write_text("gpu: h100\n")  # outside the folder that is given
    (tmp_path / "runs" / "run.yaml").write_text(FACTS)
    (inner / "run.yaml").write_text("tp: 4\n")
    (inner / "a.flags.yaml").write_text("tp: 8\nmax_num_seqs: 32\n")
    for name in ("a", "b"):
        (inner / f"{name}.json").write_text(json.dumps(result(median_tpot_ms=9.8 if name == "a" else 9.9)))
    first, second = read_inputs([tmp_path / "runs"]).rows
    assert (first.gpu, first.tensor_parallel_size, first.max_num_seqs) == ("mi355x", 8, 32)
    assert (second.gpu, second.tensor_parallel_size, second.max_num_seqs) == ("mi355x", 4, 1024)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ("", "does not say gpu, precision, framework, tp; write it into run.yaml or NAME.flags.yaml beside the result"),
        (FACTS.replace("tp: 2\n", ""), "does not say tp; write it into run.yaml or NAME.flags.yaml beside the result"),
        (FACTS.replace("tp: 2\n", ""), "(`tp: …`), or give --tp"),
        (FACTS + "tps: 4\n", "tps: is no fact of a run; did you mean tp?"),
        (FACTS + "max_num_seqs: [1, 2]\n", "max_num_seqs: must be a single value"),
        (FACTS + "random_range_ratio: 1.5\n", "random_range_ratio: 1.5 is not allowed"),
        (FACTS + "isl: 4096\n", "a mean of 4096 tokens is stated, but the run had 1,000; correct isl or its range"),
        (FACTS.replace("tp: 2", "tp: 2.5"), "tp: '2.5' is not allowed"),
        (FACTS.replace("tp: 2", "tp: 0"), "tp: '0' is not allowed"),
        (FACTS + "max_num_seqs: -4\n", "max_num_seqs: '-4' is not allowed"),
    ],
)
def test_a_missing_or_wrong_fact_is_one_message_with_its_place_and_cure(tmp_path: Path, facts: str, words: str) -> None:
    with pytest.raises(InputError) as raised:
        imported(tmp_path, result(), facts=facts)
    assert words in str(raised.value)
    assert "run" in str(raised.value.file)


def test_a_stated_range_ratio_gives_the_range_of_lengths(tmp_path: Path) -> None:
    (row,) = imported(tmp_path, result(), facts=FACTS + "random_range_ratio: 0.2\n").rows
    assert (row.length_low, row.length_high) == pytest.approx((0.8, 1.2))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"completed": 0, "failed": 80, "total_input_tokens": 0}, "failed run: no request succeeded"),
        ({"completed": 60, "failed": 20}, "failed run: less than 95% of the requests succeeded"),
        ({"completed": 60, "failed": ...}, "failed run: less than 95% of the requests succeeded"),
        ({"ramp_up_strategy": "linear"}, "the request rate ramps up"),
        ({"request_rate": 4.0, "burstiness": 0.5}, "arrivals are not Poisson (burstiness)"),
        ({"mean_ttft_ms": 0.0, "median_ttft_ms": 0.0}, "the endpoint did not stream: no TTFT"),
        ({"mean_tpot_ms": 0.0, "median_tpot_ms": 0.0}, "answers of one token have no TPOT"),
        ({"input_lens": [100] * 70 + [7300] * 10}, "prompt or answer lengths are not uniform"),
    ],
)
def test_a_run_that_no_row_can_describe_is_left_out_with_its_reason(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    assert reason(tmp_path, result(**changes)) == why


def test_an_open_loop_keeps_its_rate_and_all_at_once_is_a_closed_loop_of_all(tmp_path: Path) -> None:
    (open_loop,) = imported(tmp_path, result(request_rate=4.0, max_concurrency=None)).rows
    assert (open_loop.request_rate_rps, open_loop.concurrency, open_loop.tokens_per_s) == (4.0, None, None)
    (burst,) = imported(tmp_path, result(max_concurrency=None, mean_ttft_ms=5e3, median_ttft_ms=5e3)).rows
    assert (burst.request_rate_rps, burst.concurrency, burst.requests) == (None, 80, 80)
    (capped,) = imported(tmp_path, result(request_rate=4.0)).rows
    assert capped.special == "open loop under a concurrency cap"


def test_speculative_decoding_is_a_variant(tmp_path: Path) -> None:
    (row,) = imported(tmp_path, result(spec_decode_acceptance_rate=62.0), facts=FACTS + "spec_decode: mtp\n").rows
    assert row.variant == "mtp"
    (row,) = imported(tmp_path, result(spec_decode_acceptance_rate=62.0), facts=FACTS).rows
    assert row.variant == "spec"


def test_a_path_ends_in_the_models_name_and_a_file_beside_may_say_it(tmp_path: Path) -> None:
    (row,) = imported(tmp_path, result(model_id="/models/gpt-oss-120b/")).rows
    assert row.model == "gpt-oss-120b"
    (row,) = imported(tmp_path, result(model_id="/models/latest"), facts=FACTS + "model: gpt-oss-120b\n").rows
    assert row.model == "gpt-oss-120b"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("{", "is no JSON"),
        ("[1, 2]", "holds no result"),
        ('{"a": 1}', "is no result known here (vllm bench serve --save-result, or an InferenceX result)"),
        (json.dumps(result(mean_tpot_ms=float("nan"))), "NaN is no number; the run measured nothing there"),
        (json.dumps(result(mean_tpot_ms=float("inf"))), "Infinity is no number"),
        (json.dumps(result(median_tpot_ms=-9.9)), "median_tpot_ms: -9.9 is not allowed"),
        (json.dumps(result(median_tpot_ms="fast")), "median_tpot_ms: 'fast' is no number"),
        (json.dumps(result(median_tpot_ms=[1])), "median_tpot_ms: is a list or object"),
        (json.dumps(result()).replace("80000", "8" * 5000), "a number of 5000 digits is too long"),
        (json.dumps(result()).replace("80000", "8" * 40), "total_input_tokens: 8888"),
        ('{"completed": 1, "completed": 2}', "the key 'completed' stands twice"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_broken_file_is_one_message(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError) as raised:
        imported(tmp_path, text)
    assert words in str(raised.value)
    assert "run-1.json" in str(raised.value)


def test_a_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(json.dumps(result(label="für"), ensure_ascii=False).encode("latin-1"))
    with pytest.raises(InputError, match="is not UTF-8; save the file as UTF-8"):
        read_inputs([path])
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(result()).encode())
    (tmp_path / "run.yaml").write_text(FACTS)
    assert len(read_inputs([path]).rows) == 1


def test_results_one_after_another_in_a_file_are_all_read(tmp_path: Path) -> None:
    text = "\n".join(json.dumps(result(max_concurrency=c)) for c in (8, 16))
    found = imported(tmp_path, text)
    assert found.read == 2
    assert [row.concurrency for row in found.rows] == [8, 16]
