"""Traces of JSON lines, and what their prompts share in an engine."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest

from hardware_profiles.errors import InputError
from simulator.arrivals import WorkloadSource
from simulator.engine import EngineConfig
from simulator.mooncake_writer import mooncake_lines
from simulator.recorded_blocks import RecordedBlocks
from simulator.replay import TraceReplay
from simulator.rows import Rows
from simulator.run import Backend, simulate
from simulator.slo import Slo
from simulator.traces import Trace, read_trace
from simulator.traffic import TraceTraffic, Workload
from simulator.workload import RequestStream
from tests.step_times import NO_TIME

# Case R01, https://github.com/vllm-project/vllm/pull/39795: made up in Mooncake's shape.
R01 = """\
{"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [0,1,2,3,4,5,6,7,8,9,10,11,12,13]}
{"timestamp": 3000, "input_length": 1024, "output_length": 20, "hash_ids": [0,14]}
{"timestamp": 3000, "input_length": 1025, "output_length": 7, "hash_ids": [0,14,15]}
{"timestamp": 9000, "input_length": 512, "output_length": 1, "hash_ids": [0]}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "calls.jsonl"
    path.write_text(text)
    return path


def reusable(trace: Trace, block_size: int) -> list[int]:
    """Tokens that an unlimited cache finds: of what an earlier prompt began with, whole blocks."""
    assert trace.prefix_ids is not None and trace.prefix_block_tokens is not None
    prompts = trace.prefix_ids.lists()
    found = []
    for i, ids in enumerate(prompts):
        common = [
            sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ids, old, strict=False)))
            for old in prompts[:i]
        ]
        most = min(max(common, default=0) * trace.prefix_block_tokens, int(trace.prompt_tokens[i]) - 1)
        found.append(most // block_size * block_size)
    return found


def test_r01_read_as_mooncake_is_nine_seconds_and_reuses_whole_blocks(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, R01), format="mooncake")
    assert (len(trace.arrival_s), trace.arrival_s[-1], trace.prompt_tokens.mean()) == (4, 9.0, 2329)
    assert reusable(trace, 512) == [0, 512, 1024, 0]
    assert reusable(trace, 16)[3] == 496


def test_r01_read_with_16_token_blocks_is_refused_at_line_1(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="14 ids for 6755 tokens, which are 423 blocks of 16") as caught:
        read_trace(written(tmp_path, R01), format="mooncake", block_tokens=16)
    assert caught.value.line == 1


def test_r01_read_in_seconds_is_a_thousand_times_slower(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, R01), format="vllm_timed", time_unit="s", block_tokens=512)
    assert trace.arrival_s[-1] == 9000
    assert trace.rate_rps == pytest.approx(1 / 3000)


@pytest.mark.parametrize(
    ("facts", "named"), [({"time_unit": "s"}, "block_tokens"), ({"block_tokens": 512}, "time_unit"), ({}, "time_unit")]
)
def test_a_unit_that_nobody_states_is_refused(tmp_path: Path, facts: dict[str, object], named: str) -> None:
    path = written(tmp_path, R01)
    with pytest.raises(InputError, match=named):
        read_trace(path, format="vllm_timed", **facts)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="state the format"):
        read_trace(path)


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("timestamp", float("nan"), "not a time"),
        ("timestamp", -1, "not a time"),
        ("timestamp", "3", "not a time"),
        ("input_length", 12.5, "number of tokens"),
        ("input_length", True, "number of tokens"),
        ("output_length", 10**12, "number of tokens"),
        ("hash_ids", [0, -1], "whole numbers"),
        ("hash_ids", [0], "1 ids for 1024 tokens"),
        ("hash_ids", None, "some have none"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, field: str, value: object, named: str) -> None:
    row = {"timestamp": 3, "input_length": 1024, "output_length": 2, "hash_ids": [0, 1]}
    with pytest.raises(InputError, match=named) as caught:
        text = json.dumps(row) + "\n\n" + json.dumps(row | {field: value}) + "\n"
        read_trace(written(tmp_path, text), format="mooncake")
    assert caught.value.line == 3


@pytest.mark.parametrize("line", ["{", "[]", "3", '{"timestamp": 0, "timestamp": 1}'])
def test_a_line_that_is_no_request_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(InputError) as caught:
        read_trace(written(tmp_path, R01 + line + "\n"), format="mooncake")
    assert caught.value.line == 5


def test_byte_order_mark_and_crlf_are_harmless_and_rows_without_an_answer_are_counted(tmp_path: Path) -> None:
    text = "\ufeff" + R01.replace('"output_length": 20', '"output_length": 0').replace("\n", "\r\n")
    trace = read_trace(written(tmp_path, text), format="mooncake")
    assert (trace.rows_read, len(trace.arrival_s), dict(trace.dropped)) == (4, 3, {"output_length is 0": 1})
    assert trace.prefix_ids is not None and trace.prefix_ids[1] == (0, 14, 15)


def bailian(chat: int, parent: int, at_s: float) -> str:
    row = {"chat_id": chat, "parent_chat_id": parent, "timestamp": at_s, "input_length": 17, "output_length": 3}
    return json.dumps(row | {"type": "text", "turn": 1, "hash_ids": [1, chat]}) + "\n"


def test_bailian_turns_belong_to_the_session_of_their_parent(tmp_path: Path) -> None:
    text = bailian(7, -1, 0) + bailian(8, -1, 1.5) + bailian(9, 7, 2) + bailian(10, 9, 3) + bailian(11, 4, 4)
    trace = read_trace(written(tmp_path, text), format="bailian")
    assert trace.session is not None
    assert trace.session.tolist() == [0, 1, 0, 0, 2]
    assert (trace.prefix_block_tokens, trace.arrival_s[1]) == (16, 1.5)


def test_burstgpt_is_read_by_column_name_and_failed_requests_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    path.write_text(header + "5,ChatGPT,472,18,490,x\n45,ChatGPT,1087,0,1087,x\n118,GPT-4,417,276,693,x\n")
    trace = read_trace(path)
    assert (trace.format, trace.rows_read, dict(trace.dropped)) == ("burstgpt", 3, {"Response tokens is 0": 1})
    assert trace.arrival_s.tolist() == [0, 113]


def test_thinning_keeps_sessions_whole_and_copies_are_other_users(tmp_path: Path) -> None:
    text = "".join(bailian(i, i - 3 if i % 9 >= 3 else -1, float(i)) for i in range(900))
    trace = read_trace(written(tmp_path, text), format="bailian")
    assert trace.session is not None
    replay = TraceReplay(trace, np.random.SeedSequence(3))
    _, rows, playing = replay.window(load=0.4, span_s=0.9 * trace.period_s)
    kept, sizes = np.unique(playing * 1000 + trace.session[rows], return_counts=True)
    # All turns of a session, but for the two ends of the window, which may cut one each.
    assert 30 < len(kept) < 200 and (sizes == 3).mean() > 0.9
    _, _, playing = replay.window(load=2.0, span_s=0.5 * trace.period_s)
    assert len(np.unique(playing)) >= 2


def test_a_document_of_another_workload_keeps_its_blocks_beside_recorded_ones() -> None:
    blocks = RecordedBlocks.of(
        prompt_tokens=np.array([100, 64, 70]),
        prefix_ids=Rows.of([(), (5, 6), ()]),
        prefix_block_tokens=32,
        block_size=16,
        document=np.array([0, -1, 0]),
        document_tokens=np.array([40, 0, 40]),
    )
    first, second, third = blocks.names.lists()
    assert first == third and len(first) == 2 and len(set(first + second)) == 6


def tree_of_prompts(seed: int, count: int) -> list[dict[str, object]]:
    """Prompts that go on from earlier ones, in Mooncake's shape."""
    generator = np.random.default_rng(seed)
    known: list[list[int]] = [[]]
    rows: list[dict[str, object]] = []
    last = 0
    for i in range(count):
        begun = known[int(generator.integers(len(known)))]
        begun = begun[: int(generator.integers(len(begun) + 1))]
        new = int(generator.integers(1, 4))
        ids = [*begun, *range(last, last + new)]
        last += new
        known.append(ids[:-1])  # the last block is partial
        length = 512 * (len(ids) - 1) + int(generator.integers(1, 513))
        rows.append({"timestamp": 60_000 * i, "input_length": length, "output_length": 3, "hash_ids": ids})
    return rows


@pytest.mark.parametrize("block_size", [16, 512])
def test_an_unlimited_cache_finds_what_an_independent_count_finds(tmp_path: Path, block_size: int) -> None:
    text = "".join(json.dumps(row) + "\n" for row in tree_of_prompts(4, 60))
    trace = read_trace(written(tmp_path, text), format="mooncake")
    stream = RequestStream(
        arrival_s=trace.arrival_s,
        prompt_tokens=trace.prompt_tokens,
        output_tokens=trace.output_tokens,
        workload=np.zeros(60, dtype=np.int32),
        workload_names=("chat",),
        span_s=3600.0,
        clipped_fraction=(0.0,),
        prefix_ids=trace.prefix_ids,
        prefix_block_tokens=512,
    )
    engine = EngineConfig(
        tensor_parallel_size=1,
        max_num_seqs=16,
        max_num_batched_tokens=2048,
        max_model_len=100_000,
        enable_prefix_caching=True,
    )
    model = replace(NO_TIME, decode_s=np.full(2049, 1e-3), mixed_s=np.full(2049, 1e-3))
    expected = reusable(trace, block_size)
    assert sum(expected) > 10_000
    backends: tuple[Backend, ...] = ("kernel", "full-kernel", "reference")
    for backend in backends:
        log = simulate(
            stream,
            engine=replace(engine, block_size=block_size),
            model=model,
            num_blocks=100_000,
            replicas=1,
            routing="round_robin",
            backend=backend,
        )
        assert log.cached_tokens.tolist() == expected


def test_what_is_written_as_mooncake_reads_as_the_same_trace(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, R01), format="mooncake")
    again = read_trace(written(tmp_path, "".join(mooncake_lines(trace))), format="mooncake")
    assert again.arrival_s.tolist() == trace.arrival_s.tolist()
    assert again.prefix_ids is not None and trace.prefix_ids is not None
    assert again.prefix_ids.lists() == trace.prefix_ids.lists()
    assert again.output_tokens.tolist() == trace.output_tokens.tolist()


def test_ids_of_blocks_that_mooncake_cannot_say_are_refused(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, bailian(1, -1, 0) + bailian(2, -1, 1)), format="bailian")
    with pytest.raises(InputError, match="blocks of 16 tokens"):
        list(mooncake_lines(trace))


def test_ids_as_large_as_hashes_stay_apart_in_further_playings(tmp_path: Path) -> None:
    """Four beginnings with ids near 2**48; 40 laps of the recording are 40 times four."""
    largest = (1 << 48) - 1
    lines = [
        {"timestamp": 1000 * i, "input_length": 512, "output_length": 1, "hash_ids": [largest - i % 4]}
        for i in range(8)
    ]
    path = written(tmp_path, "".join(json.dumps(line) + "\n" for line in lines))
    trace = read_trace(path, format="mooncake")
    source = WorkloadSource(
        "calls",
        Workload(traffic=TraceTraffic(trace="calls.jsonl", format="mooncake"), slo=Slo(ttft_ms=500)),
        trace,
        np.random.SeedSequence(1),
        2048,
    )
    part = source.until(40 * trace.period_s, 1.0)
    assert part.prefix_ids is not None and part.prefix_ids.values.min() >= 0
    assert 160 <= len(np.unique(part.prefix_ids.values)) <= 164 and part.prefix_ids.values.max() < 1000
