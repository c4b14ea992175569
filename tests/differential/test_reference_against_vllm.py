"""reference = vLLM, and both kernels = vLLM: every step of random workloads is what vLLM's own scheduler made of it.

The traces in `golden/` are replayed everywhere. With a vLLM environment (`tests/vllm`), `make test-vllm` draws fresh
workloads and asks vLLM itself; GOODFLEET_VLLM_WORKLOADS and GOODFLEET_VLLM_SEED set how many and which, and
GOODFLEET_VLLM_REQUIRED makes a missing environment a failure.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from itertools import islice

import numpy as np
import pytest

from simulator.schedule_trace import ENGINES, ScheduledStep, kernel_steps, reference_steps
from simulator.schedule_workload import ScheduleWorkload
from tests.differential.random_workloads import ENDLESS_WORKLOADS, NAMED_WORKLOADS
from tests.differential.vllm_traces import MOST_STEPS, Trace, cases, read_golden, vllm_python, vllm_traces

ORIGIN, GOLDEN = read_golden()
RANDOM = [trace for trace in GOLDEN if trace.name.startswith("seed ")]
BY_NAME = {trace.name: trace for trace in GOLDEN}
LIVE_WORKLOADS = 2000

FEATURES: dict[str, Callable[[ScheduleWorkload], bool]] = {
    "prefix caching": lambda w: w.flags.enable_prefix_caching,
    "async scheduling": lambda w: w.flags.async_scheduling,
    "n-gram drafts": lambda w: uses_drafter(w, "ngram"),
    "EAGLE drafts": lambda w: uses_drafter(w, "eagle"),
    "sliding window": lambda w: any(window is not None for window in w.sliding_windows),
    "several cache groups": lambda w: len(w.sliding_windows) > 1,
    "priority": lambda w: w.flags.scheduling_policy == "priority",
    "stop token": lambda w: any(request.eos_after is not None for request in w.requests),
    "long prefill threshold": lambda w: w.flags.long_prefill_token_threshold > 0,
    "adaptive threshold": lambda w: w.flags.long_prefill_token_threshold_adaptive,
    "chunked prefill off": lambda w: not w.flags.enable_chunked_prefill,
    "watermark": lambda w: w.flags.watermark > 0,
    "max_num_active_seqs": lambda w: w.flags.max_num_active_seqs is not None,
    "admission by the first chunk": lambda w: not w.flags.scheduler_reserve_full_isl,
}
"""What a workload uses, by name."""
PAIRS = {
    "async and prefix caching": ("async scheduling", "prefix caching"),
    "async and n-gram drafts": ("async scheduling", "n-gram drafts"),
    "async and EAGLE drafts": ("async scheduling", "EAGLE drafts"),
    "async and sliding window": ("async scheduling", "sliding window"),
    "async and priority": ("async scheduling", "priority"),
    "prefix caching and EAGLE drafts": ("prefix caching", "EAGLE drafts"),
    "prefix caching and several cache groups": ("prefix caching", "several cache groups"),
    "prefix caching and priority": ("prefix caching", "priority"),
}
"""Features that change what the other one does."""


def uses_drafter(workload: ScheduleWorkload, method: str) -> bool:
    config = workload.flags.speculative_config
    return config is not None and config.method == method


def features_of(traces: Iterable[Trace]) -> dict[str, int]:
    """Workloads by what they use; `plain` ones use nothing of it."""
    total = dict.fromkeys(("plain", *FEATURES, *PAIRS), 0)
    for trace in traces:
        used = {name for name, uses in FEATURES.items() if uses(trace.workload)}
        total["plain"] += not used
        for name in used:
            total[name] += 1
        for name, both in PAIRS.items():
            total[name] += used.issuperset(both)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How much a set of traces reaches."""

    workloads: int
    steps: int
    scheduled: int
    """(request, tokens) pairs."""
    hits: int
    """Admissions that found tokens in the prefix cache."""
    hit_tokens: int
    own_hits: int
    """Of these, admissions of a request that had been preempted."""
    preempted: int
    preempting_workloads: int
    half_prefilled: int
    """Preemptions of a request whose prompt was not complete."""
    preempted_again: int
    """Preemptions of a request that had been preempted before."""
    several: int
    """Steps that preempted more than one request."""
    chunked: int
    """Steps that scheduled a part of a prompt only."""
    empty: int
    """Steps that scheduled nothing."""


def counts_of(traces: Iterable[Trace]) -> Counts:
    total: defaultdict[str, int] = defaultdict(int)
    for trace in traces:
        prompt_tokens = {request.id: request.prompt_length_tokens for request in trace.workload.requests}
        cached: defaultdict[str, int] = defaultdict(int)
        seen: set[str] = set()
        total["workloads"] += 1
        total["steps"] += len(trace.steps)
        total["preempting_workloads"] += any(step.preempted for step in trace.steps)
        for step, hits in zip(trace.steps, trace.hits, strict=True):
            total["empty"] += not step.scheduled
            total["several"] += len(step.preempted) > 1
            for name in step.preempted:
                total["preempted"] += 1
                total["half_prefilled"] += cached[name] < prompt_tokens[name]
                total["preempted_again"] += name in seen
                seen.add(name)
                cached[name] = 0
            total["scheduled"] += len(step.scheduled)
            total["hits"] += len(hits)
            for name, tokens in hits:
                total["hit_tokens"] += tokens
                total["own_hits"] += name in seen
                cached[name] += tokens
            for name, tokens in step.scheduled:
                cached[name] += tokens
            total["chunked"] += any(cached[name] < prompt_tokens[name] for name, _ in step.scheduled)
    return Counts(**{field.name: total[field.name] for field in fields(Counts)})


def difference(trace: Trace, engine: str) -> str | None:
    """The first step that differs from vLLM's, in words; None when all are equal."""
    steps = list(islice(ENGINES[engine](trace.workload), MOST_STEPS))
    for ours, vllm in zip(steps, trace.steps, strict=False):
        if ours != vllm:
            return f"{trace.name}: {engine} {ours.line()}, vLLM {vllm.line()}; {trace.workload.model_dump_json()}"
    if len(steps) != len(trace.steps):
        return f"{trace.name}: {engine} takes {len(steps)} steps, vLLM {len(trace.steps)}"
    return None


def differences(traces: Iterable[Trace]) -> list[str]:
    found = (difference(trace, engine) for trace in traces for engine in ENGINES)
    return [text for text in found if text is not None]


def test_every_step_of_the_stored_random_workloads_is_what_vllm_scheduled() -> None:
    assert differences(RANDOM) == []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", NAMED_WORKLOADS)
def test_every_step_of_a_case_people_ask_about_is_what_vllm_scheduled(name: str, engine: str) -> None:
    assert BY_NAME[name].workload == NAMED_WORKLOADS[name]
    assert difference(BY_NAME[name], engine) is None


@pytest.mark.parametrize("name", ENDLESS_WORKLOADS)
def test_what_vllm_never_ends_the_reference_never_ends_either_step_by_step(name: str) -> None:
    """The last thing that happens is an empty step; from then on the request waits and nobody overtakes it."""
    trace = BY_NAME[name]
    assert trace.workload == ENDLESS_WORKLOADS[name]
    assert tuple(islice(reference_steps(trace.workload), len(trace.steps))) == trace.steps
    assert not any(step.scheduled or step.preempted for step in trace.steps[-10:])
    assert len({step.free_blocks for step in trace.steps[-10:]}) == 1


def test_a_step_in_which_the_only_request_preempts_itself_is_empty() -> None:
    steps = BY_NAME["an answer that outgrows the cache"].steps
    assert [s for s in steps if s.preempted] == [ScheduledStep(step=5, scheduled=(), preempted=("a",), free_blocks=4)]


def test_a_synchronous_step_of_a_workload_that_ends_is_never_empty() -> None:
    """The oldest running request always gets its blocks: all others give way to it, and alone it fits.

    Not so by priority, where the first of the running list may have to give way to those behind it, and not so under
    async scheduling, where everybody may have to wait for an output.
    """
    for trace in GOLDEN:
        flags = trace.workload.flags
        if trace.name not in ENDLESS_WORKLOADS and not flags.async_scheduling and flags.scheduling_policy == "fcfs":
            assert all(step.scheduled for step in trace.steps), trace.name
    (step,) = [s for s in BY_NAME["priority: the first of the running list preempts itself"].steps if not s.scheduled]
    assert step.preempted == ("a",)


def test_vllm_ends_every_workload_that_is_not_refused() -> None:
    assert max(len(trace.steps) for trace in GOLDEN) < MOST_STEPS


def hits_of(name: str) -> list[tuple[str, int]]:
    return [hit for hits in BY_NAME[f"prefix caching: {name}"].hits for hit in hits]


def test_a_hit_is_whole_blocks_and_never_the_last_token() -> None:
    assert hits_of("all requests share one prefix") == [("b", 32), ("c", 32), ("d", 32), ("e", 32)]
    assert hits_of("the last token of a prompt is never a hit") == [("b", 16), ("c", 32)]
    assert hits_of("a conversation goes on from its answer") == [("b", 32)]


def test_the_end_of_what_was_freed_first_is_evicted_first() -> None:
    assert hits_of("the end of what was freed first is evicted first") == [("d", 12), ("e", 8)]


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    assert "d" in dict(hits_of("a preempted half-prefilled request finds its own blocks again"))


def test_the_stored_workloads_reach_what_they_are_for() -> None:
    counts = counts_of(RANDOM)
    assert counts.workloads == 600
    assert counts.steps > 40_000
    assert counts.hits > 2_000
    assert counts.own_hits > 200
    assert counts.preempted > 1_400
    assert counts.preempting_workloads > 200
    assert counts.half_prefilled > 300
    assert counts.preempted_again > 400
    assert counts.several > 50
    assert counts.chunked > 8_000
    assert counts.empty > 1_000
    features = features_of(RANDOM)
    assert features.pop("plain") > 150
    assert min(features.values()) > 20, features
    flags = [trace.workload.flags for trace in RANDOM]
    assert {f.max_num_seqs for f in flags} >= {1, 2, 16}
    assert {f.block_size for f in flags} >= {1, 2, 16, 32}
    assert any(f.max_num_seqs == f.max_num_batched_tokens for f in flags)
    requests = [(trace.workload, r) for trace in RANDOM for r in trace.workload.requests]
    assert sum(r.max_tokens == 1 for _, r in requests) > 500
    assert sum(r.prompt_length_tokens > w.flags.max_num_batched_tokens for w, r in requests) > 500
    assert sum(r.prompt_length_tokens < w.flags.block_size for w, r in requests) > 500
    assert sum(w.output_tokens(r) < r.max_tokens for w, r in requests) > 50


def test_the_stored_traces_say_where_they_come_from() -> None:
    assert ORIGIN["vllm"] == "0.32.0"
    assert ORIGIN["command"] == "python -m tests.differential.vllm_traces --seed 1 --workloads 600"


def test_a_wrong_step_would_be_noticed() -> None:
    trace = BY_NAME["a half-prefilled request is preempted"]
    other = trace.workload.model_copy(update={"num_blocks": trace.workload.num_blocks + 1})
    assert tuple(kernel_steps(other)) != trace.steps


@pytest.mark.hardware
def test_every_step_of_fresh_random_workloads_is_what_vllm_schedules() -> None:
    """13 s per thousand workloads on two idle cores, once vLLM has started."""
    python = vllm_python()
    if python is None:
        how = "make .venv-vllm as tests/vllm/README.md says, or set GOODFLEET_VLLM_PYTHON"
        if "GOODFLEET_VLLM_REQUIRED" in os.environ:
            pytest.fail(f"no vLLM environment: {how}")
        pytest.skip(f"no vLLM environment: {how}")
    seed = int(os.environ.get("GOODFLEET_VLLM_SEED", np.random.SeedSequence().generate_state(1)[0]))
    count = int(os.environ.get("GOODFLEET_VLLM_WORKLOADS", LIVE_WORKLOADS))
    print(f"\nGOODFLEET_VLLM_SEED={seed}")
    traces = vllm_traces(python, cases(seed, count))
    counts = counts_of(traces)
    print(
        f"vLLM {traces[0].vllm}: {counts.workloads} workloads, {counts.steps} steps, "
        f"{counts.scheduled} (request, tokens) pairs, {counts.preempted} preemptions, {counts.hits} prefix hits; "
        f"compared with {' and '.join(ENGINES)}\n{counts}"
    )
    for name, workloads in features_of(traces).items():
        print(f"{workloads:7} workloads: {name}")
    ending = [trace for trace in traces if trace.name not in ENDLESS_WORKLOADS]
    found = differences(ending)
    for name in ENDLESS_WORKLOADS:
        (trace,) = [t for t in traces if t.name == name]
        if tuple(islice(reference_steps(trace.workload), len(trace.steps))) != trace.steps:
            found.append(name)
    assert not found, f"GOODFLEET_VLLM_SEED={seed}: {len(found)} differences, the first: {found[0]}"
    assert counts.preempting_workloads > count // 5
    assert max(len(trace.steps) for trace in traces) < MOST_STEPS, f"GOODFLEET_VLLM_SEED={seed}: vLLM never ends one"
