"""InferenceX rows: seconds by the key's name only, one row per plain run, and a reason for every other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hardware_profiles.errors import InputError
from simulator.benchmark_inputs import Imported, read_inputs

MISSING = object()


def fixed(**changes: Any) -> dict[str, Any]:
    """A row of `agg_bmk.json`, keys and shape as `utils/process_result.py` writes them; numbers of a published run."""
    made: dict[str, Any] = {
        "hw": "mi355x",
        "conc": 8,
        "image": "vllm/vllm-openai-rocm:v0.22.0",
        "model": "openai/gpt-oss-120b",
        "infmax_model_prefix": "gptoss",
        "framework": "vllm",
        "precision": "fp4",
        "spec_decoding": "none",
        "disagg": False,
        "isl": 1024,
        "osl": 1024,
        "is_multinode": False,
        "tp": 2,
        "pp": 1,
        "dcp_size": 1,
        "pcp_size": 1,
        "ep": 1,
        "dp_attention": "false",
        "tput_per_gpu": 1549.329304,
        "output_tput_per_gpu": 775.1,
        "mean_ttft": 0.061,
        "median_ttft": 0.060,
        "mean_tpot": 0.00495,
        "mean_intvty": 1 / 0.00495,
        "median_tpot": 0.00492827,
        "median_intvty": 1 / 0.00492827,
    }
    return {key: value for key, value in (made | changes).items() if value is not MISSING}


def published(metrics: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A row of the site's API."""
    made: dict[str, Any] = {
        "hardware": "mi355x",
        "framework": "vllm",
        "model": "gptoss120b",
        "precision": "fp4",
        "spec_method": "none",
        "disagg": False,
        "is_multinode": False,
        "prefill_tp": 2,
        "decode_tp": 2,
        "decode_ep": 1,
        "decode_dp_attention": False,
        "num_decode_gpu": 2,
        "isl": 1024,
        "osl": 1024,
        "conc": 8,
        "image": None,
        "date": "2026-07-18",
        "metrics": {"tput_per_gpu": 1549.3, "median_tpot": 0.00492827, "median_ttft": 0.06} | (metrics or {}),
    }
    return made | changes


def imported(folder: Path, data: object) -> Imported:
    path = folder / "agg_bmk.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return read_inputs([path])


def test_a_fixed_sequence_row_is_read_in_seconds_and_per_replica(tmp_path: Path) -> None:
    (row,) = imported(tmp_path, fixed()).rows
    assert (row.gpu, row.model, row.precision, row.framework) == ("mi355x", "gpt-oss-120b", "fp4", "vllm")
    assert (row.tensor_parallel_size, row.isl, row.osl, row.concurrency) == (2, 1024, 1024, 8)
    assert (row.tpot_s, row.ttft_s) == pytest.approx((0.00492827, 0.060))
    assert (row.tpot_statistic, row.ttft_statistic) == ("median", "median")
    assert row.tokens_per_s == pytest.approx(2 * 1549.329304)
    assert (row.length_low, row.length_high) == (0.8, 1.0)
    assert (row.special, row.variant, row.weight) == ("", "", 1.0)
    assert row.file.source == ("SemiAnalysis InferenceX result rows",)


def test_a_row_of_the_site_or_its_database_is_the_same(tmp_path: Path) -> None:
    (row,) = imported(tmp_path, [published()]).rows
    assert (row.tensor_parallel_size, row.concurrency, row.date) == (2, 8, "2026-07-18")
    assert (row.tpot_s, row.ttft_s) == pytest.approx((0.00492827, 0.060))
    assert row.tokens_per_s == pytest.approx(2 * 1549.3)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (fixed(disagg=True), "disaggregated"),
        (fixed(is_multinode=True), "several nodes"),
        (fixed(pp=2), "pipeline or context parallel"),
        (fixed(pcp_size=2), "pipeline or context parallel"),
        (fixed(isl=MISSING, osl=MISSING), "the row does not say isl, osl"),
        (fixed(framework="", precision=""), "the row does not say precision, framework"),
        (fixed(median_tpot=MISSING, mean_tpot=MISSING), "failed run: no latencies"),
        (
            fixed(median_tpot=MISSING, mean_tpot=MISSING, median_tpot_ms=4.9),
            "mixed units: latencies in ms in a row of seconds",
        ),
        (fixed(median_tpot=4.92827), "mixed units: TPOT in s and its reciprocal disagree"),
        (
            fixed(median_tpot_ms=49.0, median_intvty=MISSING, mean_intvty=MISSING),
            "mixed units: TPOT in s and in ms disagree",
        ),
        (fixed(tput_per_gpu=MISSING), "no throughput"),
        (fixed(conc=MISSING), "no concurrency"),
        (fixed(num_requests_total=0, num_requests_successful=0), "failed run: no request succeeded"),
        (fixed(scenario_type="agentic-coding"), "agentic trace replay: no nominal ISL and OSL"),
        (published(error="server died"), "failed run"),
        (published(num_decode_gpu=8), "data parallel: more GPUs than TP"),
        (published(benchmark_type="agentic_traces"), "agentic trace replay: no nominal ISL and OSL"),
        (published(offload_mode="on"), "KV cache offloaded"),
        (published({"tput_per_gpu": 0}), "no throughput"),
    ],
)
def test_a_row_that_no_closed_loop_describes_is_left_out_with_its_reason(
    tmp_path: Path, row: dict[str, Any], why: str
) -> None:
    found = imported(tmp_path, [fixed(), row])
    assert found.read == 2
    assert len(found.rows) == 1
    assert found.left_out == ((why, 1),)


@pytest.mark.parametrize(
    ("changes", "variant"),
    [
        ({"spec_decoding": "mtp"}, "mtp"),
        ({"ep": 2}, "ep2"),
        ({"dp_attention": "true"}, "dpa"),
        ({"spec_decoding": "mtp", "ep": 2, "dp_attention": "true"}, "mtp-ep2-dpa"),
        ({"spec_decoding": MISSING, "mtp": "mtp"}, "mtp"),
        ({"dp_attention": None}, ""),
    ],
)
def test_speculative_expert_parallel_and_dp_attention_runs_are_variants(
    tmp_path: Path, changes: dict[str, Any], variant: str
) -> None:
    (row,) = imported(tmp_path, fixed(**changes)).rows
    assert (row.variant, row.special) == (variant, "")


def test_a_cluster_in_the_gpus_name_and_a_path_for_a_model_are_understood(tmp_path: Path) -> None:
    (row,) = imported(tmp_path, fixed(hw="b200-dgxc", model="/lustre/models/gpt-oss-120b", infmax_model_prefix="")).rows
    assert (row.gpu, row.model) == ("b200", "gpt-oss-120b")


def test_a_file_beside_the_rows_says_what_they_leave_out(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("isl: 1024\nosl: 1024\nmax_num_seqs: 128\nmax_num_batched_tokens: 8192\n")
    (row,) = imported(tmp_path, [fixed(isl=MISSING, osl=MISSING)]).rows
    assert (row.isl, row.max_num_seqs) == (1024, 128)
    with pytest.raises(InputError, match="isl: 1024 beside the result, but 8192 in it"):
        imported(tmp_path, [fixed(isl=8192)])


def test_of_the_runs_of_a_published_point_the_newest_counts_even_if_later_ones_failed(tmp_path: Path) -> None:
    old = published({"median_tpot": 0.0051}, date="2026-06-01")
    new = published(date="2026-07-18")
    failed = published({}, date="2026-07-19", error="server died")
    elsewhere = published({"median_tpot": 0.0061}, date="2026-06-01", conc=16)
    found = imported(tmp_path, [new, failed, old, elsewhere])
    assert sorted((row.date, row.concurrency) for row in found.rows) == [("2026-06-01", 16), ("2026-07-18", 8)]
    assert found.left_out == (("an older run of the same point", 1), ("failed run", 1))


def test_several_runs_in_a_collected_file_are_kept_and_exact_copies_are_not(tmp_path: Path) -> None:
    found = imported(tmp_path, [fixed(), fixed(median_tpot=0.005, median_intvty=200), fixed()])
    assert len(found.rows) == 2
    assert found.left_out == (("the same run again", 1),)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"median_tpot": -0.005}, "result 2: median_tpot: -0.005 is not allowed"),
        ({"conc": "many"}, "result 2: conc: 'many' is no number"),
        ({"tp": 2.5}, "result 2: tp: '2.5' is not allowed; it must be a whole number from 1"),
        ({"isl": 10**13}, "result 2: isl"),
        ({"tput_per_gpu": {"total": 1}}, "result 2: tput_per_gpu: is a list or object"),
    ],
)
def test_a_value_that_cannot_be_is_told_with_its_place(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as raised:
        imported(tmp_path, [fixed(), fixed(**changes)])
    assert words in str(raised.value)


def test_runs_of_an_input_are_described_together(tmp_path: Path) -> None:
    rows = imported(tmp_path, [published(image="vllm:v0.22.0"), published(conc=16, date="2026-07-20", image="v0.23.0")])
    (about,) = {row.file for row in rows.rows}
    assert about.as_of == "2026-07-20"
    assert about.tier == "dated single runs"
    assert "v0.23.0" in about.engine_version and "vllm:v0.22.0" in about.engine_version
    assert any("vLLM's defaults are assumed" in caveat for caveat in about.caveat)
