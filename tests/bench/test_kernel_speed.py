"""Speed of both kernels on one core, and of the plain reference beside them. Prints; asserts nothing about time.

CPU seconds of this process (`time.process_time`), best and median of several runs; compiling and loading are timed
apart. Run with `make bench`, or `pytest tests/bench -m bench -s`.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from hardware_profiles.model import load_model_card
from hardware_profiles.node import load_node
from hardware_profiles.profile import list_profiles, load_profile
from simulator.engine import EngineConfig
from simulator.kernel import run_kernel
from simulator.log import RequestLog
from simulator.run import Backend, simulate
from simulator.steptime import StepTimeModel, step_time_model
from simulator.tables import ERROR, FINISHED, STATE, STEP_COUNT, World, engine_settings, make_world
from simulator.workload import RequestStream
from tests.step_times import NO_TIME

pytestmark = pytest.mark.bench

PROFILE = "mi355x/gpt-oss-120b-mxfp4-vllm"
RUNS = 7
SEATS, BUDGET, NUM_BLOCKS = 256, 8192, 300_000
SMALL_CACHE_BLOCKS = 1_000
DOCUMENTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is simulated: Poisson arrivals of equal requests."""

    osl: int
    rate_rps: float
    """Per replica."""
    replicas: int = 1
    requests: int = 10_000
    isl: int = 1024

    def __str__(self) -> str:
        replicas = f"{self.replicas} replicas, least outstanding" if self.replicas > 1 else "1 replica"
        return f"ISL {self.isl}, OSL {self.osl}, {self.rate_rps:g} requests/s per replica, {replicas}"


LOADS = (
    Load(osl=128, rate_rps=8.0),
    Load(osl=512, rate_rps=10.0),
    Load(osl=128, rate_rps=8.0, replicas=8, requests=40_000),
    Load(osl=512, rate_rps=10.0, replicas=8, requests=40_000),
)


def shipped_model() -> tuple[str, StepTimeModel]:
    """The shipped profile at TP 1; without it, the order of magnitude of a 120B model on one GPU."""
    if PROFILE in list_profiles():
        profile = load_profile(PROFILE)
        node, card = load_node(profile.node), load_model_card(profile.model)
        model = step_time_model(profile, node=node, card=card, tensor_parallel_size=1, max_tokens=BUDGET)
        return f"profile {PROFILE}, TP 1", model
    model = replace(
        NO_TIME,
        decode_s=4e-3 + 5e-5 * np.arange(SEATS + 1, dtype=np.float64),
        mixed_s=4e-3 + 2e-5 * np.arange(BUDGET + 1, dtype=np.float64),
        sequence_s=1e-5,
        kv_s=1e-8,
        attention_s=1e-10,
        sync_s=1e-4,
    )
    return "no profile shipped: steps of 4 ms + 50 us per sequence, 20 us per prompt token", model


def arrivals_s(load: Load) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    rng = np.random.default_rng(1)
    return np.cumsum(rng.exponential(1 / (load.rate_rps * load.replicas), load.requests))


def world_of(load: Load, model: StepTimeModel, *, two_in_flight: bool) -> World:
    count = load.requests
    return make_world(
        engine=engine_settings(
            max_num_seqs=SEATS,
            max_num_batched_tokens=BUDGET,
            block_size=16,
            num_blocks=NUM_BLOCKS,
            window_tokens=model.window_tokens,
            least_outstanding=True,
            closed_loop=False,
            two_in_flight=two_in_flight,
        ),
        coefficients=model.coefficients(),
        decode_s=model.decode_s,
        mixed_s=model.mixed_s,
        arrival_s=arrivals_s(load),
        prompt_tokens=np.full(count, load.isl),
        output_tokens=np.full(count, load.osl),
        workload=np.zeros(count, dtype=np.int64),
        phase=np.ones(count, dtype=np.int64),
        workloads=1,
        replicas=load.replicas,
        released=count,
    )


def play(
    load: Load, model: StepTimeModel, backend: Backend, *, num_blocks: int = NUM_BLOCKS, shared: int = 0, **flags: bool
) -> RequestLog:
    """One run. `shared`: tokens that every prompt has in common with a twentieth of the others."""
    stream = RequestStream(
        arrival_s=arrivals_s(load),
        prompt_tokens=np.full(load.requests, load.isl),
        output_tokens=np.full(load.requests, load.osl),
        workload=np.zeros(load.requests, dtype=np.int32),
        workload_names=("chat",),
        span_s=load.requests / (load.rate_rps * load.replicas),
        clipped_fraction=(0.0,),
        document=np.random.default_rng(2).integers(0, DOCUMENTS, load.requests) if shared else None,
        document_tokens=np.full(load.requests, shared) if shared else None,
    )
    engine = EngineConfig(
        tensor_parallel_size=1,
        max_num_seqs=SEATS,
        max_num_batched_tokens=BUDGET,
        max_model_len=131_072,
        **flags,  # type: ignore[arg-type]
    )
    return simulate(stream, engine=engine, model=model, num_blocks=num_blocks, replicas=load.replicas, backend=backend)


def cpu_s(action: Callable[[], object]) -> float:
    start_s = time.process_time()
    action()
    return time.process_time() - start_s


def speed(times_s: list[float], requests: int, steps: int) -> str:
    best_s, median_s = min(times_s), statistics.median(times_s)
    return (
        f"{requests / best_s:,.0f} requests and {steps / best_s:,.0f} steps per CPU-second "
        f"(median {requests / median_s:,.0f} and {steps / median_s:,.0f}; {best_s / steps * 1e9:.0f} ns a step, "
        f"{steps / requests:.1f} steps a request, {len(times_s)} runs)"
    )


def test_the_kernel_alone() -> None:
    name, model = shipped_model()
    few = Load(osl=8, rate_rps=8.0, requests=10)
    loading_s = cpu_s(lambda: run_kernel(world_of(few, model, two_in_flight=False), np.inf))
    print(f"\n{name}\ncompiling, or loading what was compiled: {loading_s:.2f} CPU-seconds")
    for load in LOADS:
        print(load)
        for two_in_flight in (False, True):
            times_s = []
            for _ in range(RUNS):
                world = world_of(load, model, two_in_flight=two_in_flight)
                times_s.append(cpu_s(lambda world=world: run_kernel(world, np.inf)))  # type: ignore[misc]
                assert world.totals[ERROR] == 0 and (world.ri[:, STATE] == FINISHED).all()
            steps = int(world.ints[:, STEP_COUNT].sum())
            name = "two steps in flight" if two_in_flight else "one step in flight "
            print(f"    kernel, {name}: {speed(times_s, load.requests, steps)}")


def test_a_whole_run_with_its_log_and_checks() -> None:
    _, model = shipped_model()
    print()
    for load in LOADS:
        times_s = []
        for _ in range(RUNS):
            start_s = time.process_time()
            log = play(load, model, "kernel")
            times_s.append(time.process_time() - start_s)
        assert log.replica_times is not None
        print(f"{load}\n    simulate: {speed(times_s, load.requests, int(log.replica_times.steps.sum()))}")


def timed(label: str, load: Load, model: StepTimeModel, backend: Backend, **options: object) -> float:
    """Print the speed of `simulate` and return its best CPU seconds."""
    play(load, model, backend, **options)  # type: ignore[arg-type]
    times_s = []
    for _ in range(RUNS):
        start_s = time.process_time()
        log = play(load, model, backend, **options)  # type: ignore[arg-type]
        times_s.append(time.process_time() - start_s)
    assert log.replica_times is not None
    hits = (
        f"; {log.cached_tokens.sum() / log.prompt_tokens.sum():.0%} of the prompts found" if "shared" in options else ""
    )
    print(f"    {label}: {speed(times_s, load.requests, int(log.replica_times.steps.sum()))}{hits}")
    return min(times_s)


def test_the_full_kernel_beside_the_counting_one() -> None:
    """The same runs; the full kernel looks at every request in every step."""
    _, model = shipped_model()
    print()
    for load in LOADS[:2]:
        print(load)
        counting_s = timed("simulate, counting kernel", load, model, "kernel")
        full_s = timed("simulate, full kernel    ", load, model, "full-kernel")
        print(f"    ratio: {full_s / counting_s:.1f}")


def test_prefix_caching_on_a_cache_of_1000_blocks() -> None:
    """20 documents of 192 tokens before 64 own ones; the counting kernel plays the same requests without a cache."""
    _, model = shipped_model()
    load = Load(isl=256, osl=64, rate_rps=20.0)
    print(f"\n{load}, {SMALL_CACHE_BLOCKS} KV blocks")
    without_s = timed("without prefix caching", load, model, "kernel", num_blocks=SMALL_CACHE_BLOCKS)
    with_s = timed(
        "with prefix caching   ",
        load,
        model,
        "kernel",
        num_blocks=SMALL_CACHE_BLOCKS,
        shared=192,
        enable_prefix_caching=True,
    )
    print(f"    ratio: {with_s / without_s:.1f}")


def test_the_reference_beside_the_kernel() -> None:
    _, model = shipped_model()
    load = Load(osl=128, rate_rps=8.0, requests=1000)
    kernel_s = [cpu_s(lambda: play(load, model, "kernel")) for _ in range(RUNS)]
    reference_s = [cpu_s(lambda: play(load, model, "reference")) for _ in range(2)]
    log = play(load, model, "kernel")
    assert log.replica_times is not None
    steps = int(log.replica_times.steps.sum())
    print(f"\n{load}, {load.requests} requests")
    print(f"    simulate, kernel:    {speed(kernel_s, load.requests, steps)}")
    print(f"    simulate, reference: {speed(reference_s, load.requests, steps)}")
    print(f"    ratio: {min(reference_s) / min(kernel_s):,.0f}")
