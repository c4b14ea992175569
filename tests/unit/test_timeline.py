"""The timeline of a run: a Chrome trace whose spans are the run's own seconds, whole or plainly cut."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.engine import EngineConfig
from simulator.log import RequestLog
from simulator.run import Window, simulate
from simulator.steptime import StepTimeModel
from simulator.timeline import Drawn, Timeline, write_timeline
from simulator.workload import RequestStream

US = 1e-6


def model(overhead_s: float = 0.02) -> StepTimeModel:
    tokens = np.arange(65, dtype=np.float64)
    return StepTimeModel(
        decode_s=0.01 + 0.001 * tokens,
        mixed_s=0.012 + 0.002 * tokens,
        sequence_s=1e-4,
        kv_s=1e-6,
        window_kv_s=0.0,
        attention_s=1e-6,
        window_attention_s=0.0,
        prefill_request_s=1e-3,
        host_s=0.0,
        host_sequence_s=0.0,
        sync_s=0.0,
        request_overhead_s=overhead_s,
        window_tokens=0,
    )


def stream(count: int = 60, rate_rps: float = 12.0, seed: int = 7) -> RequestStream:
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1 / rate_rps, count))
    return RequestStream(
        arrival_s=arrival_s,
        prompt_tokens=rng.integers(1, 120, count),
        output_tokens=rng.integers(1, 40, count),
        workload=rng.integers(0, 2, count).astype(np.int32),
        workload_names=("chat", "rag"),
        span_s=float(arrival_s[-1]),
        clipped_fraction=(0.0, 0.0),
    )


def draw(
    path: Path,
    *,
    requests: RequestStream | None = None,
    replicas: int = 2,
    num_blocks: int = 60,
    max_events: int = 200_000,
    window: Window | None = None,
    drain: bool = True,
    max_num_queued_reqs: int | None = None,
) -> tuple[dict[str, Any], Drawn, RequestLog]:
    """The file, what is said of it, and the kernel's log of the same run."""
    requests = requests if requests is not None else stream()
    arguments: dict[str, Any] = {
        "engine": EngineConfig(
            tensor_parallel_size=1,
            max_num_seqs=8,
            max_num_batched_tokens=48,
            max_model_len=256,
            block_size=4,
            max_num_queued_reqs=max_num_queued_reqs,
        ),
        "model": model(),
        "num_blocks": num_blocks,
        "replicas": replicas,
        "window": window,
        "drain": drain,
    }
    whole = simulate(requests, **arguments)
    timeline = Timeline(
        whole=whole,
        num_blocks=num_blocks,
        request_overhead_s=model().request_overhead_s,
        max_events=max_events,
    )
    simulate(requests, backend="reference", observer=timeline, **arguments)
    drawn = write_timeline(timeline, path, title="test")
    return json.loads(path.read_text(encoding="utf-8")), drawn, whole


def steps_of(trace: dict[str, Any]) -> dict[int, list[dict[str, Any]]]:
    steps = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["cat"] == "step":
            steps[event["pid"]].append(event)
    return steps


def spans_of(trace: dict[str, Any]) -> dict[int, list[dict[str, Any]]]:
    """Spans of each request in order of time, by its place in the stream."""
    spans = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["cat"] == "request":
            spans[event["tid"] - 1_000_000].append(event)
    return spans


def test_every_event_has_what_the_trace_event_format_asks_of_its_phase(tmp_path: Path) -> None:
    trace, _, _ = draw(tmp_path / "t.json")
    assert set(trace) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str)
        assert isinstance(event["args"], dict)
        assert event["pid"] > 0
        assert event["tid"] > 0
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
            continue
        assert isinstance(event["ts"], int)
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert isinstance(event["dur"], int)
            assert event["dur"] >= 0
        elif event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
        else:
            assert event["ph"] == "i"
            assert event["s"] in ("g", "p", "t")
    times = [event["ts"] for event in trace["traceEvents"] if event["ph"] != "M"]
    assert times == sorted(times)


def test_every_track_has_one_name(tmp_path: Path) -> None:
    trace, _, _ = draw(tmp_path / "t.json")
    events = trace["traceEvents"]
    processes = [e["pid"] for e in events if e["name"] == "process_name"]
    threads = [(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"]
    assert len(set(processes)) == len(processes)
    assert len(set(threads)) == len(threads)
    assert {tid for _, tid in threads} == {e["tid"] for e in events if e["ph"] == "X"}
    assert len({tid for _, tid in threads}) == len(threads)
    assert {e["pid"] for e in events} == set(processes)
    names = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert {"replica 0", "replica 1", "replica 0: requests", "replica 1: requests", "steps"} <= names


def test_steps_of_a_replica_do_not_overlap_and_add_up_to_its_busy_time(tmp_path: Path) -> None:
    trace, drawn, whole = draw(tmp_path / "t.json")
    assert whole.replica_times is not None
    assert drawn.complete
    assert whole.preemptions.sum() > 0
    assert trace["otherData"]["complete"] is True
    for pid, steps in steps_of(trace).items():
        for before, after in pairwise(steps):
            assert before["ts"] + before["dur"] <= after["ts"]
        busy_s = float(whole.replica_times.prefill_s[pid - 1] + whole.replica_times.decode_s[pid - 1])
        assert len(steps) == whole.replica_times.steps[pid - 1]
        assert sum(e["args"]["duration_ms"] for e in steps) / 1e3 == pytest.approx(busy_s, rel=1e-8)
        assert sum(e["dur"] for e in steps) * US == pytest.approx(busy_s, abs=1e-6 * len(steps))
        tokens = sum(e["args"]["scheduled_tokens"] for e in steps)
        assert tokens == whole.replica_times.scheduled_tokens[pid - 1]


def test_a_steps_name_says_its_composition(tmp_path: Path) -> None:
    trace, _, _ = draw(tmp_path / "t.json")
    mixed = 0
    for steps in steps_of(trace).values():
        for event in steps:
            args = event["args"]
            assert args["scheduled_tokens"] == args["decodes"] + args["prefill_tokens"] <= 48
            assert args["decodes"] + args["prefills"] <= 8
            assert 0 < args["kv_used_fraction"] <= 1
            parts = [f"{args['decodes']} decode"] if args["decodes"] else []
            if args["prefills"]:
                plural = "" if args["prefills"] == 1 else "s"
                parts.append(f"{args['prefills']} prefill chunk{plural} ({args['prefill_tokens']} tokens)")
            assert event["name"] == " + ".join(parts)
            mixed += len(parts) == 2
    assert mixed > 10


def test_the_spans_of_a_request_lead_from_its_arrival_to_its_finish_without_a_gap(tmp_path: Path) -> None:
    trace, _, whole = draw(tmp_path / "t.json")
    spans = spans_of(trace)
    assert set(spans) == set(range(len(whole)))
    names = set()
    for index, events in spans.items():
        assert events[0]["ts"] == round(whole.arrival_s[index] * 1e6)
        assert events[-1]["ts"] + events[-1]["dur"] == round(whole.finish_s[index] * 1e6)
        for before, after in pairwise(events):
            assert before["ts"] + before["dur"] == after["ts"]
        first = next(e for e in events if e["name"].startswith("prefill"))
        assert first["ts"] == round(whole.scheduled_s[index] * 1e6)
        assert sum(e["name"] == "preempted" for e in events) == whole.preemptions[index]
        decoded = sum(e["args"]["tokens"] for e in events if e["name"] == "decode")
        prompts_done = sum(
            e["name"].startswith("prefill") and e["args"]["after"] + int(e["name"].split()[-2]) == e["args"]["of"]
            for e in events
        )
        assert decoded + prompts_done == whole.output_tokens[index]
        if whole.preemptions[index] == 0 and whole.output_tokens[index] > 1:
            assert events[-1]["args"]["longest_gap_ms"] == pytest.approx(whole.itl_max_s[index] * 1e3, abs=1e-5)
        names |= {" ".join(word for word in e["name"].split() if not word.isdigit()) for e in events}
    assert names == {"front end", "queued", "prefill tokens", "prefill again tokens", "decode", "preempted"}


@dataclass
class Seen:
    index: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    workload: int = 0
    emitted_tokens: int = 0


@dataclass(slots=True)
class Chunk:
    sequence: Seen
    tokens: int
    before_tokens: int
    given: int = 0
    decode: bool = False
    last: bool = False


def test_a_prompt_that_gets_no_tokens_of_a_step_waits_for_the_next(tmp_path: Path) -> None:
    _, _, whole = draw(tmp_path / "t.json")
    timeline = Timeline(whole=whole, num_blocks=10, request_overhead_s=0.0)
    a, b = Seen(0, 0.0, 10, 1), Seen(1, 0.0, 10, 1)
    state: dict[str, Any] = {"replica": 0, "preempted": [], "waiting": 0, "running": 2, "free_blocks": 5}
    assert timeline.step(start_s=0.0, end_s=1.0, work=[Chunk(a, 5, 0), Chunk(b, 5, 0)], **state)
    a.emitted_tokens = b.emitted_tokens = 1
    assert timeline.step(start_s=1.0, end_s=2.0, work=[Chunk(a, 5, 5, given=1, last=True)], **state)
    assert timeline.step(start_s=2.0, end_s=3.0, work=[Chunk(b, 5, 5, given=1, last=True)], **state)
    spans = [(e["name"], e["ts"], e["dur"]) for e in timeline.events if e["ph"] == "X" and e["tid"] == 1_000_001]
    assert spans == [
        ("prefill 5 tokens", 0, 1_000_000),
        ("waits for tokens of a step", 1_000_000, 1_000_000),
        ("prefill 5 tokens", 2_000_000, 1_000_000),
    ]


def test_counters_follow_the_steps_and_fall_to_zero_when_a_replica_is_idle(tmp_path: Path) -> None:
    trace, _, _ = draw(tmp_path / "t.json", requests=stream(30, rate_rps=3.0))
    for pid, steps in steps_of(trace).items():
        for name, key in (("KV use", "fraction"), ("requests", "running")):
            samples = [(e["ts"], e["args"][key]) for e in trace["traceEvents"] if e["name"] == name and e["pid"] == pid]
            assert [at for at, _ in samples] == sorted(at for at, _ in samples)
            for step, after in zip(steps, [*steps[1:], None], strict=True):
                held = [value for at, value in samples if at <= step["ts"]][-1]
                if name == "KV use":
                    assert held == step["args"]["kv_used_fraction"]
                else:
                    assert held >= step["args"]["decodes"] + step["args"]["prefills"]
                end = step["ts"] + step["dur"]
                if after is None or after["ts"] > end:
                    assert [value for at, value in samples if at <= end][-1] == 0


@pytest.mark.parametrize("max_events", [100, 500, 1500])
def test_a_cut_file_keeps_to_its_limit_and_says_what_is_left_out(tmp_path: Path, max_events: int) -> None:
    trace, drawn, whole = draw(tmp_path / "t.json", max_events=max_events)
    whole_trace, _, _ = draw(tmp_path / "whole.json")
    about = trace["otherData"]
    assert 0.7 * max_events < len(trace["traceEvents"]) <= max_events
    assert about["complete"] is False
    assert len(trace["traceEvents"]) == about["events"] == drawn.events
    steps = [e for events in steps_of(trace).values() for e in events]
    spans = spans_of(trace)
    assert whole.replica_times is not None
    assert len(steps) + about["steps_left_out"] == whole.replica_times.steps.sum()
    assert len(spans) + about["requests_left_out"] == len(whole)
    assert all((e["ts"] + e["dur"]) * US < about["until_s"] + US for e in steps)
    assert "left out" in about["holds"]
    assert str(max_events) in about["holds"].replace(",", "")
    assert [e["ts"] for e in trace["traceEvents"] if e["name"].startswith("cut")] == [round(about["until_s"] * 1e6)]
    every = [e for events in steps_of(whole_trace).values() for e in events]
    ended = [e for e in every if (e["ts"] + e["dur"]) * US < about["until_s"] - US]
    assert sorted(map(str, steps)) == sorted(map(str, ended))
    for events in spans.values():
        for before, after in pairwise(events):
            assert before["ts"] + before["dur"] == after["ts"]


def test_what_a_windowed_run_leaves_unfinished_or_queued_is_drawn_to_its_end(tmp_path: Path) -> None:
    requests = stream(2_000, rate_rps=60.0)
    window = Window(start_s=0.2, end_s=0.5)
    trace, drawn, whole = draw(tmp_path / "t.json", requests=requests, window=window)
    assert (whole.status == 3).any()
    assert drawn.requests == len(whole)
    assert drawn.complete
    never = np.flatnonzero(np.isnan(whole.scheduled_s))
    assert len(never) > 0
    spans = spans_of(trace)
    for index in never:
        assert spans[int(index)][0]["name"] == "front end"
        end = spans[int(index)][-1]["ts"] + spans[int(index)][-1]["dur"]
        assert end == pytest.approx(max(whole.end_s, whole.arrival_s[index] + 0.02) * 1e6, abs=1)


def test_a_run_that_ends_with_its_last_arrival_is_drawn_to_there(tmp_path: Path) -> None:
    trace, drawn, whole = draw(tmp_path / "t.json", requests=stream(200, rate_rps=60.0), drain=False)
    assert drawn.complete
    assert drawn.run_s == whole.end_s == whole.arrival_s[-1] + model().request_overhead_s
    assert max(e["ts"] for e in trace["traceEvents"] if e["ph"] != "M") <= whole.end_s * 1e6
    assert whole.replica_times is not None
    assert 0 <= drawn.steps - int(whole.replica_times.steps.sum()) <= 2


def test_a_request_that_can_never_fit_is_a_mark(tmp_path: Path) -> None:
    requests = stream(40)
    too_long = requests.prompt_tokens + requests.output_tokens - 1 > 30 * 4
    assert too_long.any()
    trace, drawn, whole = draw(tmp_path / "t.json", requests=requests, num_blocks=30)
    assert drawn.requests + drawn.rejected == len(whole) == 40
    assert f"{drawn.rejected} more were rejected" in drawn.sentence and drawn.complete
    marks = [e for e in trace["traceEvents"] if e["name"].startswith("rejected")]
    assert len(marks) == drawn.rejected == int(too_long.sum()) == int((whole.status == 2).sum())


def test_answers_of_503_are_marks_in_the_drawn_time_and_counted_on_their_own(tmp_path: Path) -> None:
    requests = stream(200, rate_rps=60.0)
    for max_events in (200_000, 400, 100):
        trace, drawn, whole = draw(tmp_path / "t.json", requests=requests, max_events=max_events, max_num_queued_reqs=8)
        rejected = np.flatnonzero(whole.status == 2)
        assert 20 < len(rejected) < 180
        marks = {e["args"]["request"]: e["ts"] for e in trace["traceEvents"] if e["name"].startswith("rejected")}
        at_us = {int(i): round((whole.arrival_s[i] + model().request_overhead_s) * 1e6) for i in rejected}
        until_us = drawn.until_s * 1e6 if max_events < 200_000 else np.inf
        assert marks.items() <= at_us.items()
        assert len(trace["traceEvents"]) <= max_events
        assert len(marks) == drawn.rejected == trace["otherData"]["rejected"]
        assert all(ts <= until_us for ts in marks.values())
        assert drawn.rejected + drawn.rejected_left_out == len(rejected)
        assert drawn.requests + drawn.requests_left_out == len(whole) - len(rejected)
        assert drawn.complete == (max_events == 200_000)
        if not drawn.complete:
            assert f"{drawn.rejected_left_out:,} of {len(rejected):,} rejected ones" in drawn.sentence
            assert marks.keys() == {i for i, ts in at_us.items() if ts <= until_us}


def test_equal_runs_give_equal_bytes_and_leave_no_other_file(tmp_path: Path) -> None:
    draw(tmp_path / "a.json", max_events=900)
    draw(tmp_path / "b.json", max_events=900)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "b.json"]


def test_the_kernel_shows_no_steps(tmp_path: Path) -> None:
    timeline = Timeline(whole=draw(tmp_path / "t.json")[2], num_blocks=1, request_overhead_s=0.0)
    with pytest.raises(ValueError, match="reference"):
        simulate(
            stream(1),
            engine=EngineConfig(tensor_parallel_size=1, max_num_seqs=1, max_num_batched_tokens=1, max_model_len=9),
            model=model(),
            num_blocks=1,
            replicas=1,
            observer=timeline,
        )
