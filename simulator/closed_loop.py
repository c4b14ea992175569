"""Replays the protocol of a benchmark: what would this row have measured, had these step times held?

Closed loop (InferenceX, `vllm bench serve --max-concurrency`): so many requests are in flight, all sent at once; the
next leaves when one ends. Between a request's last token and the next one's arrival in the engine lie the client's gap
and the front end's delay. Open loop (`--request-rate`): Poisson arrivals. Lengths are uniform between the row's shares
of the nominal ones, prefix caching is off. TPOT and TTFT are the row's own statistic over requests, TTFT with the front
end's delay; tokens per second count input and output over the whole run, ramps included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hardware_profiles.memory import kv_ledger
from hardware_profiles.model import ModelCard
from hardware_profiles.node import Node
from hardware_profiles.profile import HardwareProfile
from simulator.benchmark_rows import METRICS, BenchmarkRow
from simulator.kernel import run_kernel
from simulator.preempting_row import play_with_preemption
from simulator.steptime import StepTimeModel, step_time_model
from simulator.tables import ARRIVAL, ERROR, FINISH, FIRST_TOKEN, RELEASE_DELAY_S, engine_settings, make_world

__all__ = ["KvCacheTooSmall", "ModelKey", "model_key", "predict", "predict_rows", "requests_of", "row_blocks"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ModelKey = tuple[int, str]
"""Tensor-parallel degree and KV cache type: rows with the same key share one `StepTimeModel`."""

WAVES = 10
"""Requests of a closed-loop run per request in flight, where the row does not say."""
OPEN_REQUESTS = 1000
"""Requests of an open-loop run, where the row does not say."""
STREAMS = 3
"""Runs, each with its own fixed lengths, that a prediction averages."""


class KvCacheTooSmall(ValueError):
    """A request of a row never fits the KV blocks of its server."""


def model_key(row: BenchmarkRow) -> ModelKey:
    """Which step times the row runs on."""
    return row.tensor_parallel_size, row.kv_cache_dtype


def row_blocks(row: BenchmarkRow, *, node: Node, card: ModelCard, precision: str) -> int:
    """KV blocks of the row's server: as it printed them, else by the memory formula with the row's flags."""
    if row.kv_cache_tokens is not None:
        return row.kv_cache_tokens // row.block_size
    ledger = kv_ledger(
        node,
        card,
        precision,
        tensor_parallel_size=row.tensor_parallel_size,
        gpu_memory_utilization=row.gpu_memory_utilization,
        max_num_batched_tokens=row.max_num_batched_tokens,
        max_num_seqs=row.max_num_seqs,
        kv_cache_dtype=row.kv_cache_dtype,
        block_size=row.block_size,
    )
    return ledger.kv_tokens // row.block_size


def requests_of(row: BenchmarkRow) -> int:
    """Requests of the row's run."""
    if row.requests is not None:
        return row.requests
    return OPEN_REQUESTS if row.concurrency is None else WAVES * row.concurrency


@lru_cache(maxsize=4096)
def _lengths(seed: int, stream: int, isl: int, osl: int, requests: int, low: float, high: float) -> tuple[Ints, Ints]:
    """The same lengths whatever the step times, so that a fit sees no noise."""
    generator = np.random.default_rng([seed, stream, isl, osl, requests])
    prompt = generator.integers(max(1, int(low * isl)), max(1, int(high * isl)) + 1, requests)
    output = generator.integers(max(2, int(low * osl)), max(2, int(high * osl)) + 1, requests)
    return prompt, output


@lru_cache(maxsize=4096)
def _gaps(seed: int, stream: int, requests: int) -> Floats:
    """Gaps of a Poisson stream of one request per second."""
    return np.random.default_rng([seed, stream, requests, 1]).standard_exponential(requests)


def _run(
    row: BenchmarkRow, model: StepTimeModel, blocks: int, *, gap_s: float, seed: int, stream: int
) -> tuple[float, float, float]:
    """(TPOT in seconds, tokens/s, TTFT in seconds) of one run."""
    requests = requests_of(row)
    prompt, output = _lengths(seed, stream, row.isl, row.osl, requests, row.length_low, row.length_high)
    coefficients = model.coefficients()
    front_end_s = model.request_overhead_s
    if row.concurrency is not None:
        released = min(row.concurrency, requests)
        arrival_s = np.full(requests, np.nan)
        arrival_s[:released] = 0.0
        coefficients[RELEASE_DELAY_S] += gap_s
    else:
        released = requests
        arrival_s = np.cumsum(_gaps(seed, stream, requests)) / (row.request_rate_rps or 1.0)
    world = make_world(
        engine=engine_settings(
            max_num_seqs=row.max_num_seqs,
            max_num_batched_tokens=row.max_num_batched_tokens,
            block_size=row.block_size,
            num_blocks=blocks,
            window_tokens=model.window_tokens,
            least_outstanding=True,
            closed_loop=row.concurrency is not None,
            two_in_flight=row.async_scheduling,
        ),
        coefficients=coefficients,
        decode_s=model.decode_s,
        mixed_s=model.mixed_s,
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        workload=np.zeros(requests, dtype=np.int64),
        phase=np.zeros(requests, dtype=np.int64),
        workloads=1,
        replicas=1,
        released=released,
    )
    run_kernel(world, np.inf)
    times_s: Floats | None = world.rf[:, [ARRIVAL, FIRST_TOKEN, FINISH]].T
    if world.totals[ERROR]:
        times_s = play_with_preemption(
            row,
            model,
            blocks,
            coefficients=coefficients,
            arrival_s=arrival_s,
            prompt_tokens=prompt,
            output_tokens=output,
            released=released,
        )
    if times_s is None or bool(np.isnan(times_s).any()):
        raise KvCacheTooSmall(f"{row.isl}/{row.osl} tokens at {row.load} in flight do not fit {blocks} KV blocks")
    engine_arrival_s, first_s, finish_s = times_s
    tpot_s = _statistic(row.tpot_statistic, (finish_s - first_s) / (output - 1))
    ttft_s = _statistic(row.ttft_statistic, first_s - engine_arrival_s + front_end_s)
    length_s = float(finish_s.max()) + (0.0 if row.concurrency is not None else front_end_s) - float(arrival_s[0])
    return tpot_s, float(prompt.sum() + output.sum()) / length_s, ttft_s


def _statistic(name: str, values: Floats) -> float:
    return float(np.median(values) if name == "median" else np.mean(values))


def predict(
    rows: Sequence[BenchmarkRow],
    models: Mapping[ModelKey, StepTimeModel],
    blocks: Sequence[int],
    *,
    gap_s: float,
    seed: int,
    streams: int = STREAMS,
) -> Floats:
    """(rows, 3) TPOT in seconds, tokens/s of the replica and TTFT in seconds, each the mean of `streams` runs."""
    metrics = np.empty((len(rows), len(METRICS)))
    for i, row in enumerate(rows):
        model = models[model_key(row)]
        if not row.async_scheduling:
            model = model.not_overlapped()
        runs = [_run(row, model, blocks[i], gap_s=gap_s, seed=seed, stream=k) for k in range(streams)]
        metrics[i] = np.mean(runs, axis=0)
    return metrics


def predict_rows(
    profile: HardwareProfile,
    rows: Sequence[BenchmarkRow],
    *,
    node: Node,
    card: ModelCard,
    seed: int = 1,
    blocks: Sequence[int] | None = None,
) -> Floats:
    """(rows, 3) TPOT in seconds, tokens/s of the replica and TTFT in seconds that a profile predicts for measured rows.

    `blocks` replaces the KV blocks that the memory formula gives for the rows' flags.
    """
    models: dict[ModelKey, StepTimeModel] = {}
    for row in rows:
        models[model_key(row)] = step_time_model(
            profile,
            node=node,
            card=card,
            tensor_parallel_size=row.tensor_parallel_size,
            max_tokens=max(r.max_num_batched_tokens for r in rows),
            kv_cache_dtype=row.kv_cache_dtype,
        )
    if blocks is None:
        blocks = [row_blocks(row, node=node, card=card, precision=profile.precision) for row in rows]
    return predict(rows, models, blocks, gap_s=profile.shared.client_gap_s, seed=seed)
