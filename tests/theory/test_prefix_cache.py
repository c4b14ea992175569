"""What a prefix cache finds, against what it must find: whole blocks of a document that was computed before."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from simulator.engine import EngineConfig
from simulator.lengths import Lengths, UniformLengths
from simulator.log import RequestLog
from simulator.run import Backend, simulate
from simulator.shared_prefix import Prefix
from simulator.slo import Slo
from simulator.traffic import ClosedTraffic, RateTraffic, Workload
from simulator.workload import RequestStream, make_stream
from tests.step_times import NO_TIME

STEP_S = 0.01
ENGINE = EngineConfig(
    tensor_parallel_size=1,
    max_num_seqs=8,
    max_num_batched_tokens=256,
    max_model_len=2048,
    block_size=16,
    enable_prefix_caching=True,
)
MODEL = replace(NO_TIME, decode_s=np.full(257, STEP_S), mixed_s=np.full(257, STEP_S))
PLENTY = 1_000_000


def in_a_row(document: list[int], *, document_tokens: int, prompt_tokens: int, output_tokens: int = 4) -> RequestStream:
    """Requests so far apart that each ends before the next comes."""
    count = len(document)
    return RequestStream(
        arrival_s=np.arange(0.0, 10.0 * count, 10.0),
        prompt_tokens=np.full(count, prompt_tokens),
        output_tokens=np.full(count, output_tokens),
        workload=np.zeros(count, dtype=np.int32),
        workload_names=("rag",),
        span_s=10.0 * count,
        clipped_fraction=(0.0,),
        document=np.array(document),
        document_tokens=np.full(count, document_tokens),
    )


def rag(
    prefix: Prefix | None, *, isl: Lengths = 100, rate_rps: float = 5.0, traffic: ClosedTraffic | None = None
) -> Workload:
    return Workload(traffic=traffic or RateTraffic(rate_rps=rate_rps), isl=isl, osl=4, prefix=prefix, slo=Slo(e2e_ms=9))


def play(
    stream: RequestStream,
    *,
    engine: EngineConfig = ENGINE,
    num_blocks: int = PLENTY,
    replicas: int = 1,
    routing: Literal["round_robin", "least_outstanding"] = "round_robin",
    backend: Backend = "kernel",
) -> RequestLog:
    return simulate(
        stream,
        engine=engine,
        model=MODEL,
        num_blocks=num_blocks,
        replicas=replicas,
        routing=routing,
        backend=backend,
    )


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("popularity", ["zipf", "uniform"])
def test_a_cache_that_holds_everything_computes_each_document_once_per_replica(
    replicas: int, popularity: Literal["zipf", "uniform"]
) -> None:
    prefix = Prefix(documents=20, tokens=70, popularity=popularity)
    isl = UniformLengths(uniform=(20, 120))
    workloads = {"rag": rag(prefix, isl=isl, rate_rps=1.0)}
    stream = make_stream(workloads, multiplier=1, requests={"rag": 600}, seed=3, max_model_len=2048)
    stream = replace(stream, arrival_s=np.arange(0.0, 6000.0, 10.0), span_s=6000.0)
    log = play(stream, replicas=replicas)
    assert stream.document is not None and stream.document_tokens is not None
    known: dict[tuple[int, int], int] = {}
    expected: list[int] = []
    for i in range(600):
        place = (int(log.replica[i]), int(stream.document[i]))
        whole_blocks = min(known.get(place, 0), int(stream.document_tokens[i]) // 16 * 16)
        expected.append(min(whole_blocks, (int(stream.prompt_tokens[i]) - 1) // 16 * 16))
        known[place] = max(known.get(place, 0), int(stream.document_tokens[i]) // 16 * 16)
    assert log.cached_tokens.tolist() == expected
    assert len({place[0] for place in known}) == replicas and sum(expected) > 0


def test_documents_asked_for_in_turn_are_all_found_or_none() -> None:
    """The least recently used goes first, so a cache of half the round has always just thrown out what is wanted."""
    documents = list(range(12)) * 5
    stream = in_a_row(documents, document_tokens=64, prompt_tokens=80)
    blocks_of_one = -(-(80 + 4) // 16)
    all_of_them = play(stream, num_blocks=12 * blocks_of_one).cached_tokens
    assert all_of_them[:12].tolist() == [0] * 12
    assert all_of_them[12:].tolist() == [64] * 48
    assert play(stream, num_blocks=6 * blocks_of_one).cached_tokens.tolist() == [0] * 60


def test_a_larger_cache_finds_more_of_what_zipf_asks_for() -> None:
    prefix = Prefix(documents=200, tokens=64)
    stream = make_stream({"rag": rag(prefix)}, multiplier=1, requests={"rag": 3_000}, seed=1, max_model_len=2048)
    stream = replace(stream, arrival_s=np.arange(0.0, 30_000.0, 10.0), span_s=30_000.0)
    found = [int(play(stream, num_blocks=blocks).cached_tokens.sum()) for blocks in (60, 200, 600, 2_000, 100_000)]
    assert stream.document is not None
    assert found == sorted(found) and found[0] < 0.6 * found[-1]
    assert found[-1] == 64 * (3_000 - len(np.unique(stream.document)))


@pytest.mark.parametrize(("block_size", "found"), [(1, 511), (16, 496), (64, 448), (512, 0)])
def test_a_prompt_that_is_its_document_never_finds_the_block_of_its_last_token(block_size: int, found: int) -> None:
    """Case R01 (https://github.com/vllm-project/vllm/pull/39795): of a prompt of one 512-token block nothing is found,
    an engine with 16-token blocks finds 496."""
    log = play(
        in_a_row([0, 0, 0], document_tokens=512, prompt_tokens=512), engine=replace(ENGINE, block_size=block_size)
    )
    assert log.cached_tokens.tolist() == [0, found, found]


@pytest.mark.parametrize(("block_size", "found"), [(8, 96), (16, 96), (32, 96), (64, 64), (128, 0)])
def test_only_whole_blocks_of_a_document_are_found(block_size: int, found: int) -> None:
    log = play(in_a_row([0, 0], document_tokens=100, prompt_tokens=300), engine=replace(ENGINE, block_size=block_size))
    assert log.cached_tokens.tolist() == [0, found]


def test_a_prompt_shorter_than_its_document_holds_only_the_beginning() -> None:
    stream = in_a_row([0, 0, 0], document_tokens=100, prompt_tokens=300)
    stream = replace(stream, prompt_tokens=np.array([40, 300, 300]), document_tokens=np.array([40, 100, 100]))
    assert play(stream).cached_tokens.tolist() == [0, 32, 96]


def test_without_prefix_caching_nothing_is_found_and_a_prefix_changes_nothing() -> None:
    off = replace(ENGINE, enable_prefix_caching=False)
    logs = []
    for prefix in (None, Prefix(documents=3, tokens=64)):
        stream = make_stream({"rag": rag(prefix)}, multiplier=1, requests={"rag": 300}, seed=1, max_model_len=2048)
        logs.append(play(stream, engine=off))
    assert logs[1].cached_tokens.tolist() == [0] * 300
    assert logs[0].frame().equals(logs[1].frame())


@pytest.mark.parametrize("closed", [True, False])
def test_equal_seeds_give_equal_bytes_in_kernel_and_reference(closed: bool) -> None:
    workload = rag(
        Prefix(documents=9, tokens=64),
        isl=UniformLengths(uniform=(30, 150)),
        rate_rps=30.0,
        traffic=ClosedTraffic(concurrency=6) if closed else None,
    )
    logs = []
    backends: tuple[Backend, ...] = ("kernel", "kernel", "reference")
    for backend in backends:
        stream = make_stream({"rag": workload}, multiplier=1, requests={"rag": 200}, seed=5, max_model_len=2048)
        logs.append(play(stream, num_blocks=40, replicas=2, backend=backend))
    assert logs[0].cached_tokens.sum() > 0
    for other in logs[1:]:
        assert logs[0].frame().equals(other.frame())


def test_under_the_priority_policy_the_lower_number_goes_first() -> None:
    """All wait at once for one seat: the urgent ones are served before the rest, within each in order of arrival."""
    engine = replace(ENGINE, max_num_seqs=1, scheduling_policy="priority", enable_prefix_caching=False)
    workloads = {
        name: Workload(traffic=RateTraffic(rate_rps=1), isl=9, osl=2, priority=priority, slo=Slo(e2e_ms=9))
        for name, priority in (("rest", 5), ("urgent", -5))
    }
    stream = make_stream(workloads, multiplier=1e9, requests={"rest": 20, "urgent": 20}, seed=1, max_model_len=99)
    assert stream.priority is not None
    log = play(stream, engine=engine)
    order = np.argsort(log.finish_s)[1:]  # whoever came first runs alone already
    of_urgent = log.workload[order] == 1
    assert of_urgent[: of_urgent.sum()].all()
    for workload in (0, 1):
        served = order[log.workload[order] == workload]
        assert served.tolist() == sorted(served.tolist())
    fcfs = play(stream, engine=replace(engine, scheduling_policy="fcfs"))
    assert np.argsort(fcfs.finish_s).tolist() == list(range(40))
