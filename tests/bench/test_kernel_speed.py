"""Speed of the kernel on one core, and of the plain reference beside it. Prints; asserts nothing about time.

CPU seconds of this process (`time.process_time`), best and median of several runs; compiling and loading are timed
apart. Run with `make bench`, or `pytest tests/bench -m bench -s`.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pytest

from hardware_profiles.model import load_model_card
from hardware_profiles.node import load_node
from hardware_profiles.profile import list_profiles, load_profile
from simulator.engine import EngineConfig
from simulator.kernel import run_kernel
from simulator.log import RequestLog
from simulator.run import simulate
from simulator.steptime import StepTimeModel, step_time_model
from simulator.tables import ERROR, FINISHED, LEAST_OUTSTANDING, STATE, STEP_COUNT, World, make_world
from simulator.workload import RequestStream
from tests.step_times import NO_TIME

pytestmark = pytest.mark.bench

PROFILE = "mi355x/gpt-oss-120b-mxfp4-vllm"
RUNS = 7
SEATS, BUDGET, NUM_BLOCKS = 256, 8192, 300_000


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


def world_of(load: Load, model: StepTimeModel) -> World:
    count = load.requests
    return make_world(
        engine=np.array([SEATS, BUDGET, 16, NUM_BLOCKS, model.window_tokens, LEAST_OUTSTANDING, 0]),
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


def play(load: Load, model: StepTimeModel, backend: Literal["kernel", "reference"]) -> RequestLog:
    stream = RequestStream(
        arrival_s=arrivals_s(load),
        prompt_tokens=np.full(load.requests, load.isl),
        output_tokens=np.full(load.requests, load.osl),
        workload=np.zeros(load.requests, dtype=np.int32),
        workload_names=("chat",),
        span_s=load.requests / (load.rate_rps * load.replicas),
        clipped_fraction=(0.0,),
    )
    engine = EngineConfig(
        tensor_parallel_size=1, max_num_seqs=SEATS, max_num_batched_tokens=BUDGET, max_model_len=131_072
    )
    return simulate(stream, engine=engine, model=model, num_blocks=NUM_BLOCKS, replicas=load.replicas, backend=backend)


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
    loading_s = cpu_s(lambda: run_kernel(world_of(Load(osl=8, rate_rps=8.0, requests=10), model), np.inf))
    print(f"\n{name}\ncompiling, or loading what was compiled: {loading_s:.2f} CPU-seconds")
    for load in LOADS:
        times_s = []
        for _ in range(RUNS):
            world = world_of(load, model)
            times_s.append(cpu_s(lambda world=world: run_kernel(world, np.inf)))  # type: ignore[misc]
            assert world.totals[ERROR] == 0 and (world.ri[:, STATE] == FINISHED).all()
        steps = int(world.ints[:, STEP_COUNT].sum())
        print(f"{load}\n    kernel: {speed(times_s, load.requests, steps)}")


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
