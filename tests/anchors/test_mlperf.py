"""MLPerf Inference v6.0 on MI355X, predicted by a profile that never saw it: gpt-oss-120b, one node of 8 x TP 1.

The profile was fitted to closed loops of at most 128 requests in flight on upstream vLLM; here about 700 are in flight
on a replica of a tuned build with an 8-bit KV cache. Every figure is an extrapolation, and the prompts' length is
assumed (see the data file), so the band is wide and nothing is fitted: the test shows how far the model form carries.
Predictions made here are not verified by MLCommons. MLPerf is a trademark of MLCommons.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from hardware_profiles.memory import kv_ledger
from hardware_profiles.model import load_model_card
from hardware_profiles.node import load_node
from hardware_profiles.profile import load_profile
from simulator.engine import EngineConfig
from simulator.log import RequestLog
from simulator.run import simulate
from simulator.steptime import step_time_model
from simulator.workload import RequestStream

PROFILE = "mi355x/gpt-oss-120b-mxfp4-vllm"
DATA = Path(__file__).parent / "data" / "mlperf-v6.0-gpt-oss-120b-mi355x.csv"
REPLICAS = 8
BAND = 1.5
"""Predicted over measured lies between 1 / BAND and BAND."""

PROMPT_TOKENS = 4000
PROMPT_CV = 0.5
ANSWER_CV = 0.21
ENGINE = EngineConfig(
    tensor_parallel_size=1,
    max_num_seqs=1120,
    max_num_batched_tokens=32768,
    max_model_len=32768,
    gpu_memory_utilization=0.95,
    kv_cache_dtype="fp8",
)

WARM_UP_S, WINDOW_S, RUN_OUT_S = 300.0, 150.0, 250.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One submitter's result on one node."""

    submitter: str
    output_tokens_per_s: float
    requests_per_s: float
    """Scheduled in Server, completed in Offline."""
    answer_tokens: float
    """Mean per request."""
    measured_ms: dict[str, float]


def results(scenario: str) -> list[Result]:
    lines = [line for line in DATA.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    rows = [row for row in csv.DictReader(lines) if row["scenario"] == scenario and row["nodes"] == "1"]
    return [
        Result(
            submitter=row["submitter"],
            output_tokens_per_s=float(row["output_tokens_per_s"]),
            requests_per_s=float(row["scheduled_samples_per_s"] or row["completed_samples_per_s"]),
            answer_tokens=float(row["output_tokens_per_s"]) / float(row["completed_samples_per_s"]),
            measured_ms={name: float(value) for name, value in row.items() if name.endswith("_ms") and value},
        )
        for row in rows
    ]


def lengths(generator: np.random.Generator, mean: float, cv: float, count: int) -> npt.NDArray[np.int64]:
    sigma = math.sqrt(math.log1p(cv**2))
    drawn = generator.lognormal(math.log(mean) - sigma**2 / 2, sigma, count)
    return np.clip(np.rint(drawn), 2, ENGINE.max_model_len // 2).astype(np.int64)


def play(arrival_s: npt.NDArray[np.float64], *, prompt_tokens: int, answer_tokens: float, replicas: int) -> RequestLog:
    node, card, profile = load_node("mi355x"), load_model_card("gpt-oss-120b"), load_profile(PROFILE)
    generator, count = np.random.default_rng(1), len(arrival_s)
    stream = RequestStream(
        arrival_s=arrival_s,
        prompt_tokens=lengths(generator, prompt_tokens, PROMPT_CV, count),
        output_tokens=lengths(generator, answer_tokens, ANSWER_CV, count),
        workload=np.zeros(count, dtype=np.int32),
        workload_names=("mlperf",),
        span_s=float(arrival_s[-1]) or 1.0,
        clipped_fraction=(0.0,),
    )
    model = step_time_model(
        profile,
        node=node,
        card=card,
        tensor_parallel_size=ENGINE.tensor_parallel_size,
        max_tokens=ENGINE.max_num_batched_tokens,
        kv_cache_dtype=ENGINE.kv_cache_dtype,
    )
    ledger = kv_ledger(
        node,
        card,
        profile.precision,
        tensor_parallel_size=ENGINE.tensor_parallel_size,
        gpu_memory_utilization=ENGINE.gpu_memory_utilization,
        max_num_batched_tokens=ENGINE.max_num_batched_tokens,
        max_num_seqs=ENGINE.max_num_seqs,
        kv_cache_dtype=ENGINE.kv_cache_dtype,
        block_size=ENGINE.block_size,
    )
    blocks = ledger.kv_tokens // ENGINE.block_size
    return simulate(stream, engine=ENGINE, model=model, num_blocks=blocks, replicas=replicas)


def offline_tokens_per_s(result: Result, *, prompt_tokens: int) -> float:
    """Of the node: every request there at the start; one replica plays its eighth of 16,000 requests."""
    log = play(np.zeros(2000), prompt_tokens=prompt_tokens, answer_tokens=result.answer_tokens, replicas=1)
    return REPLICAS * float(log.output_tokens.sum() / log.finish_s.max())


@pytest.mark.parametrize("result", results("Server"), ids=lambda result: result.submitter)
def test_a_server_result_is_predicted_within_a_wide_band(result: Result) -> None:
    """Poisson arrivals at the published rate; requests that arrive after the warm-up are judged."""
    count = int(result.requests_per_s * (WARM_UP_S + WINDOW_S + RUN_OUT_S))
    gaps_s = np.random.default_rng(2).standard_exponential(count) / result.requests_per_s
    log = play(np.cumsum(gaps_s), prompt_tokens=PROMPT_TOKENS, answer_tokens=result.answer_tokens, replicas=REPLICAS)
    judged = (log.arrival_s >= WARM_UP_S) & (log.arrival_s < WARM_UP_S + WINDOW_S)
    ended = (log.finish_s >= WARM_UP_S) & (log.finish_s < WARM_UP_S + WINDOW_S)
    ttft_ms = 1e3 * (log.first_token_s - log.arrival_s)[judged]
    tpot_ms = 1e3 * ((log.finish_s - log.first_token_s) / (log.output_tokens - 1))[judged]
    predicted = {
        "ttft_p50_ms": float(np.percentile(ttft_ms, 50)),
        "ttft_p99_ms": float(np.percentile(ttft_ms, 99)),
        "tpot_mean_ms": float(tpot_ms.mean()),
        "tpot_p99_ms": float(np.percentile(tpot_ms, 99)),
    }
    tokens_per_s = float(log.output_tokens[ended].sum()) / WINDOW_S
    print(f"{result.submitter}: {tokens_per_s:,.0f} tok/s, measured {result.output_tokens_per_s:,.0f}")
    for name, value in predicted.items():
        print(f"  {name} {value:.0f}, measured {result.measured_ms[name]:.0f}")
    assert all(math.isfinite(value) and value > 0 for value in predicted.values())
    assert 1 / BAND < tokens_per_s / result.output_tokens_per_s < BAND
    assert 1 / BAND < predicted["tpot_mean_ms"] / result.measured_ms["tpot_mean_ms"] < BAND


@pytest.mark.parametrize("result", results("Offline"), ids=lambda result: result.submitter)
def test_an_offline_result_is_predicted_within_a_wide_band(result: Result) -> None:
    tokens_per_s = offline_tokens_per_s(result, prompt_tokens=PROMPT_TOKENS)
    print(f"{result.submitter}: {tokens_per_s:,.0f} tok/s, measured {result.output_tokens_per_s:,.0f}")
    assert 1 / BAND < tokens_per_s / result.output_tokens_per_s < BAND


def test_the_prediction_hangs_on_the_assumed_length_of_prompts() -> None:
    """Longer prompts cost throughput, so what is read from these anchors is no better than the length assumed."""
    best = results("Offline")[0]
    found = [offline_tokens_per_s(best, prompt_tokens=tokens) for tokens in (3000, PROMPT_TOKENS, 8000)]
    print(f"{best.submitter} Offline, measured {best.output_tokens_per_s:,.0f} tok/s; predicted at mean prompts of")
    for tokens, value in zip((3000, PROMPT_TOKENS, 8000), found, strict=True):
        print(f"  {tokens} tokens: {value:,.0f} tok/s ({value / best.output_tokens_per_s - 1:+.0%})")
    assert found[0] > found[1] > found[2]


def test_the_profile_says_that_this_load_was_never_measured() -> None:
    """In flight on a replica, by Little's law: requests/s x end-to-end seconds / replicas."""
    for result in results("Server"):
        in_flight = result.requests_per_s * result.measured_ms["e2el_mean_ms"] / 1e3 / REPLICAS
        assert in_flight > load_profile(PROFILE).measured.concurrency[1]
