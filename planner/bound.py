"""An optimistic capacity by arithmetic: what a configuration could carry if its steps were always perfectly full.

Time on the GPU is at least: tokens x the cheapest time per token of any step within the token budget; or, for the
answer tokens alone, the cheapest time per sequence of any decode batch within `max_num_seqs`; plus attention and
cache reads, which no batching shares. With prefix caching every prompt finds its whole document, or whatever any
prompt of its recording had before it; where a server may answer 503, it serves only the share of requests that the
targets ask for. No schedule can beat it, so a configuration whose bound is below a capacity that another one has shown
can be dropped unseen.
"""

from __future__ import annotations

import numpy as np

from planner.feasibility import Configuration
from simulator.engine import EngineConfig
from simulator.mix import Mix
from simulator.recorded_blocks import tokens_found_again
from simulator.steptime import StepTimeModel

__all__ = ["load_bound"]


def load_bound(configuration: Configuration, model: StepTimeModel, mix: Mix) -> float:
    """Largest multiplier of the mix that one server could carry by this arithmetic; an upper bound."""
    engine = configuration.engine
    budget = engine.max_num_batched_tokens
    seqs = min(engine.max_num_active_seqs or engine.max_num_seqs, budget)
    limited = engine.max_num_queued_reqs is not None or engine.max_num_queued_tokens is not None
    sizes = np.arange(1, budget + 1)
    cheapest = np.minimum(model.decode_s[1 : budget + 1], model.mixed_s[1 : budget + 1])
    token_s = float((cheapest / sizes).min())
    decode_s = float((model.decode_s[1 : seqs + 1] / sizes[:seqs]).min())
    window = model.window_tokens
    all_s = decodes_s = shared_s = 0.0
    for name, rate_rps in mix.rates_rps.items():
        prompt, output = mix.mean_tokens(name)
        prompt = min(prompt, engine.max_model_len - 1)
        output = min(output, engine.max_model_len - prompt)
        decodes = output - 1
        cached, cached_squared = _most_cached(engine, mix, name, prompt)
        if limited:
            rate_rps *= mix.targets[name].attainment
        all_s += rate_rps * (prompt - cached + decodes) * token_s
        decodes_s += rate_rps * decodes * decode_s
        seen = prompt + 0.5 * decodes
        shared_s += rate_rps * (
            model.sequence_s * output
            + model.kv_s * decodes * seen
            + model.window_kv_s * decodes * min(seen, window)
            + model.attention_s * 0.5 * max(0.0, prompt * prompt - cached_squared)
        )
    busy_s = max(all_s, decodes_s) + shared_s
    return configuration.replicas_per_server / busy_s if busy_s > 0 else float("inf")


def _most_cached(engine: EngineConfig, mix: Mix, name: str, mean_prompt_tokens: float) -> tuple[float, float]:
    """Prompt tokens per request that can come from the prefix cache at most, on average, and the same squared.

    The mean of min(document, prompt) is at most the minimum of the means, as of every concave function. A recording
    played whole and never forgotten finds at least what any part of it finds, or copies that share nothing.
    """
    prefix, trace = mix.workloads[name].prefix, mix.traces.get(name)
    if not engine.enable_prefix_caching:
        return 0.0, 0.0
    if trace is not None and trace.prefix_ids is not None and trace.prefix_block_tokens is not None:
        found = tokens_found_again(
            prompt_tokens=trace.prompt_tokens,
            prefix_ids=trace.prefix_ids,
            prefix_block_tokens=trace.prefix_block_tokens,
            block_size=engine.block_size,
        )
        return min(float(found.mean()), mean_prompt_tokens - 1), float((found * found).mean())
    most = min(float(prefix.tokens), mean_prompt_tokens - 1) if prefix is not None else 0.0
    return most, most * most
