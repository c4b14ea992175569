"""Where an answer leaves what was measured, one sentence each.

The step times of a profile are fitted to measured rows; what lies outside them is still simulated, and said.
"""

from __future__ import annotations

import numpy as np

from planner.confirm import Confirmed
from planner.feasibility import Configuration
from planner.platforms import VLLM_ENGINES
from planner.question import Question
from simulator.mix import Mix
from simulator.workload import make_stream

__all__ = ["extrapolations", "host_time_missing", "long_requests", "other_engine"]

LENGTHS = 10_000
"""Requests of each workload that are looked at: the smallest share that is told, `FEW`, is a hundred of them."""
FEW = 0.01
"""Long requests are told of from this share of a workload's requests, or of all prompt tokens, on. A decode step at
seven times the measured length takes twice what is predicted (docs/methods/accuracy.md), so where 1 % of the tokens are
so long, steps are about 1 % too short: no more than the smallest error of a shipped profile, which the probability
draws anyway. And 1 % of its requests is what a workload with an attainment of 0.99 may miss."""


def extrapolations(question: Question, best: Confirmed) -> list[str]:
    """What of this answer lies outside the rows of its profile."""
    profile = best.option.configuration.platform.profile
    measured = profile.measured
    notes: list[str] = list(filter(None, [other_engine(best.option.configuration)]))
    kv_type, kv_measured = best.option.configuration.engine.kv_cache_dtype, profile.assumed_flags.get("kv_cache_dtype")
    if kv_measured is not None and kv_type != kv_measured:
        notes.append(
            f"Extrapolated: kv_cache_dtype {kv_type}; the profile was measured with {kv_measured}, so its speed is "
            "taken from its bytes."
        )
    if without_asynchronous := host_time_missing(best.option.configuration):
        notes.append(without_asynchronous)
    long = long_requests(question.mix, measured.context[1], load=question.load, seed=question.replications[0])
    if long is not None:
        notes.append(long)
    replicas = best.option.servers * best.option.configuration.replicas_per_server
    running = max(s.in_flight_mean for s in best.at.scores) / replicas
    if running > measured.concurrency[1]:
        notes.append(
            f"Extrapolated: {running:,.0f} requests in flight per replica, measured up to {measured.concurrency[1]}."
        )
    chunk = best.option.configuration.engine.max_num_batched_tokens
    curve = profile.all_reduce.get(best.option.configuration.engine.tensor_parallel_size)
    if curve is not None and chunk * question.card.hidden * 2 > curve.to_bytes:
        notes.append(
            f"Extrapolated all-reduce: a full step of {chunk:,} tokens exchanges "
            f"{chunk * question.card.hidden * 2 / 1e6:,.0f} MB, measured up to {curve.to_bytes / 1e6:,.0f} MB."
        )
    return notes


def other_engine(configuration: Configuration) -> str | None:
    """A profile of another build or engine answers for that one, and so does the plan."""
    profile = configuration.platform.profile
    if profile.engine == "vllm":
        return None
    if profile.engine in VLLM_ENGINES:
        return f"Profile {profile.name} was measured on {profile.engine}, a build of its own: upstream vLLM is slower."
    return (
        f"Profile {profile.name} was measured on {profile.engine}; the simulated scheduler is vLLM's, so TTFT and "
        f"stalls are not those of {profile.engine}."
    )


def host_time_missing(configuration: Configuration) -> str | None:
    """A profile measured with asynchronous scheduling cannot tell what the host's work costs where nothing hides it."""
    shared = configuration.platform.profile.shared
    if configuration.engine.async_scheduling or shared.host_s > 0:
        return None
    return (
        "Extrapolated: async_scheduling false; the profile was measured with it on and knows no host time, which would "
        "come on top of every step. Only the order of steps is simulated, so this configuration looks too good."
    )


def long_requests(mix: Mix, measured_tokens: int, *, load: float, seed: np.random.SeedSequence) -> str | None:
    """How many requests are longer, prompt and answer together, than the longest measured; None when next to none are.

    Counted in the requests with which the stream of this seed begins, as they are drawn and cut; a mean says nothing of
    a tail. Each workload weighs what it sends.
    """
    stream = make_stream(
        mix.workloads,
        multiplier=load,
        seed=seed,
        max_model_len=mix.max_model_len,
        requests=dict.fromkeys(mix.workloads, LENGTHS),
        traces=mix.traces,
    )
    beyond = stream.prompt_tokens + stream.output_tokens > measured_tokens
    rate_rps = np.array([mix.rates_rps[name] for name in stream.workload_names])[stream.workload]
    prompt_tokens = rate_rps * stream.prompt_tokens
    of_requests = float(rate_rps[beyond].sum() / rate_rps.sum())
    of_tokens = float(prompt_tokens[beyond].sum() / prompt_tokens.sum())
    by_workload = {name: float(beyond[stream.workload == i].mean()) for i, name in enumerate(stream.workload_names)}
    if max(of_tokens, *by_workload.values()) < FEW:
        return None
    named = [f"{_percent(share)} of {name}" for name, share in by_workload.items() if share >= FEW]
    among = f" ({', '.join(named)})" if named and len(by_workload) > 1 else ""
    return (
        f"Extrapolated: {_percent(of_requests)} of the requests{among}, with {_percent(of_tokens)} of the prompt "
        f"tokens, are longer than the {measured_tokens:,} tokens, prompt and answer, up to which the profile was "
        "measured; long contexts come out too fast (docs/methods/accuracy.md)."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
