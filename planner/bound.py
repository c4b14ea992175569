"""An optimistic capacity by arithmetic: what a configuration could carry if its steps were always perfectly full.

Time on the GPU is at least: tokens x the cheapest time per token of any step within the token budget; or, for the
answer tokens alone, the cheapest time per sequence of any decode batch within `max_num_seqs`; plus attention and
cache reads, which no batching shares. No schedule can beat it, so a configuration whose bound is below a capacity
that another one has shown can be dropped unseen.
"""

from __future__ import annotations

import numpy as np

from planner.feasibility import Configuration
from simulator.mix import Mix
from simulator.steptime import StepTimeModel

__all__ = ["load_bound"]


def load_bound(configuration: Configuration, model: StepTimeModel, mix: Mix) -> float:
    """Largest multiplier of the mix that one server could carry by this arithmetic; an upper bound."""
    budget = configuration.engine.max_num_batched_tokens
    seqs = min(configuration.engine.max_num_seqs, budget)
    sizes = np.arange(1, budget + 1)
    cheapest = np.minimum(model.decode_s[1 : budget + 1], model.mixed_s[1 : budget + 1])
    token_s = float((cheapest / sizes).min())
    decode_s = float((model.decode_s[1 : seqs + 1] / sizes[:seqs]).min())
    window = model.window_tokens
    all_s = decodes_s = shared_s = 0.0
    for name, rate_rps in mix.rates_rps.items():
        prompt, output = mix.mean_tokens(name)
        prompt = min(prompt, configuration.engine.max_model_len - 1)
        output = min(output, configuration.engine.max_model_len - prompt)
        decodes = output - 1
        all_s += rate_rps * (prompt + decodes) * token_s
        decodes_s += rate_rps * decodes * decode_s
        seen = prompt + 0.5 * decodes
        shared_s += rate_rps * (
            model.sequence_s * output
            + model.kv_s * decodes * seen
            + model.window_kv_s * decodes * min(seen, window)
            + model.attention_s * 0.5 * prompt * prompt
        )
    busy_s = max(all_s, decodes_s) + shared_s
    return configuration.replicas_per_server / busy_s if busy_s > 0 else float("inf")
