"""Replays the protocol of a closed-loop benchmark: what would this row have measured, had these step times held?

The protocol (InferenceX, `vllm bench serve` with `--max-concurrency`): `concurrency` requests are in flight, all sent
at once; the next leaves when one ends. Lengths are uniform in 0.8-1.0 of the nominal ones, 10 x concurrency requests
in all, prefix caching off, asynchronous scheduling on (vLLM's default on GPUs). TPOT is the median over requests;
tokens per second count input and output over the whole run, ramps included. Between a request's last token and the next
one's arrival in the engine lie the client's gap and the front end's delay.
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
from simulator.benchmark_rows import BenchmarkRow
from simulator.kernel import run_kernel
from simulator.steptime import StepTimeModel, step_time_model
from simulator.tables import ERROR, FINISH, FIRST_TOKEN, RELEASE_DELAY_S, engine_settings, make_world

__all__ = ["ModelKey", "model_key", "predict", "predict_rows", "row_blocks"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ModelKey = tuple[int, str]
"""Tensor-parallel degree and KV cache type: rows with the same key share one `StepTimeModel`."""

SHORTEST = 0.8
"""Shortest length as a share of the nominal one (`--random-range-ratio`)."""
WAVES = 10
"""Requests of a run per request in flight."""
STREAMS = 3
"""Runs, each with its own fixed lengths, that a prediction averages."""


def model_key(row: BenchmarkRow) -> ModelKey:
    """Which step times the row runs on."""
    return row.tensor_parallel_size, row.kv_cache_dtype


def row_blocks(row: BenchmarkRow, *, node: Node, card: ModelCard, precision: str) -> int:
    """KV blocks of the row's server, by the memory formula with the row's flags."""
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


@lru_cache(maxsize=4096)
def _lengths(seed: int, stream: int, isl: int, osl: int, requests: int) -> tuple[Ints, Ints]:
    """The same lengths whatever the step times, so that a fit sees no noise."""
    generator = np.random.default_rng([seed, stream, isl, osl, requests])
    prompt = generator.integers(int(SHORTEST * isl), isl + 1, requests)
    output = generator.integers(max(2, int(SHORTEST * osl)), osl + 1, requests)
    return prompt, output


def _run(
    row: BenchmarkRow, model: StepTimeModel, blocks: int, *, gap_s: float, seed: int, stream: int
) -> tuple[float, float]:
    """(median TPOT in seconds, tokens/s) of one run."""
    prompt, output = _lengths(seed, stream, row.isl, row.osl, WAVES * row.concurrency)
    requests = len(prompt)
    arrival_s = np.full(requests, np.nan)
    arrival_s[: row.concurrency] = 0.0
    coefficients = model.coefficients()
    coefficients[RELEASE_DELAY_S] += gap_s
    world = make_world(
        engine=engine_settings(
            max_num_seqs=row.max_num_seqs,
            max_num_batched_tokens=row.max_num_batched_tokens,
            block_size=row.block_size,
            num_blocks=blocks,
            window_tokens=model.window_tokens,
            least_outstanding=True,
            closed_loop=True,
            two_in_flight=True,
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
        released=row.concurrency,
    )
    run_kernel(world, np.inf)
    finish_s = world.rf[:, FINISH]
    if world.totals[ERROR] or bool(np.isnan(finish_s).any()):
        raise ValueError(f"{row.isl}/{row.osl} tokens at {row.concurrency} in flight do not fit {blocks} KV blocks")
    tpot_s = float(np.median((finish_s - world.rf[:, FIRST_TOKEN]) / (output - 1)))
    return tpot_s, float(prompt.sum() + output.sum()) / float(finish_s.max())


def predict(
    rows: Sequence[BenchmarkRow],
    models: Mapping[ModelKey, StepTimeModel],
    blocks: Sequence[int],
    *,
    gap_s: float,
    seed: int,
    streams: int = STREAMS,
) -> Floats:
    """(rows, 2) median TPOT in seconds and tokens/s of the replica, each the mean of `streams` runs."""
    metrics = np.empty((len(rows), 2))
    for i, row in enumerate(rows):
        model = models[model_key(row)]
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
    """(rows, 2) median TPOT in seconds and tokens/s of the replica that a profile predicts for measured rows.

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
