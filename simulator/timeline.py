"""One run, seen: every step of every replica, and every request's way through them, as a Chrome trace.

`chrome://tracing` and ui.perfetto.dev open the file (Trace Event Format, "JSON Object Format"). A replica is a process
with its steps on one thread and counters for KV use and for running and waiting requests; its requests are a second
process with a thread each: front end, queued, prefill chunks, decode, preempted. Times are whole microseconds, so that
the end of a span and the begin of the next are the same number; exact durations stand in the arguments.

A `Timeline` watches the reference simulation, which gives the kernel's run to the last bit, and ends it when the file
is full. What the file then lacks is counted against the kernel's log of the whole run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from simulator.log import STATUSES, RequestLog
from simulator.step_observer import SeenRequest, SeenWork

__all__ = ["MAX_EVENTS", "Drawn", "Timeline", "write_timeline"]

MAX_EVENTS = 200_000
"""About 40 MB; both viewers open that in seconds."""

PER_REPLICA = 5
"""Three names, and the two counters that fall to zero at the end."""
PER_STEP = 5
"""The step and two counters, and the same two where the replica was idle before it."""
PER_NEW_REQUEST, PER_KNOWN_REQUEST = 5, 3
"""A name, front end, queue, chunk and the decode that may follow; a wait, a chunk and that decode."""

STEPS_PER_REPORT = 200

REQUEST_TID = 1_000_000
"""Thread numbers of requests begin here: Perfetto wants them unique in the whole file, and takes 0 for the idle one."""

Event = dict[str, Any]
Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]


def _us(time_s: float) -> int:
    return round(time_s * 1e6)


@dataclass(slots=True)
class _Track:
    """A request in the engine."""

    pid: int
    state: Literal["prefill", "decode", "preempted"]
    since_s: float
    """End of what is drawn; a decode's begin."""
    last_token_s: float = float("nan")
    tokens: int = 0
    """Given in this decode span."""
    longest_gap_s: float = 0.0
    preemptions: int = 0


@dataclass(slots=True)
class _Engine:
    """What was last drawn of a replica."""

    idle_from_s: float
    requests: tuple[int, int] = (0, 0)
    """Running, waiting."""
    kv_used_fraction: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What a file holds of a run, and what it leaves out."""

    until_s: float
    run_s: float
    """End of the whole run."""
    events: int
    max_events: int
    steps: int
    steps_left_out: int
    requests: int
    """That were not turned away."""
    requests_left_out: int
    rejected: int
    """Turned away: answered 503, or longer than the KV cache."""
    rejected_left_out: int

    @property
    def complete(self) -> bool:
        return not (self.steps_left_out or self.requests_left_out or self.rejected_left_out)

    @property
    def sentence(self) -> str:
        if self.complete:
            more = f"; {self.rejected:,} more were rejected" if self.rejected else ""
            return f"the whole run, {self.run_s:,.1f} s, {self.steps:,} steps and {self.requests:,} requests{more}"
        rejected = self.rejected + self.rejected_left_out
        more = f", and {self.rejected_left_out:,} of {rejected:,} rejected ones" if rejected else ""
        return (
            f"cut at {self.max_events:,} events; it holds simulated time 0 to {self.until_s:,.3f} s of "
            f"{self.run_s:,.1f} s; {self.steps_left_out:,} of {self.steps + self.steps_left_out:,} steps and "
            f"{self.requests_left_out:,} of {self.requests + self.requests_left_out:,} requests are left out{more}"
        )


@dataclass(slots=True, kw_only=True)
class Timeline:
    """A `StepObserver` that draws until the file is full. One is good for one run."""

    whole: RequestLog
    """Of the same run, played to its end by the kernel."""
    num_blocks: int
    """KV blocks of one replica."""
    request_overhead_s: float
    """Front end: from the arrival that the log counts to the engine."""
    max_events: int = MAX_EVENTS
    progress: Callable[[int, int], None] | None = None
    """Told now and then how many events are drawn, of how many at most."""
    cut_s: float | None = None
    """End of the first step that is not drawn."""
    steps: int = 0
    names: list[Event] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    tracks: dict[int, _Track] = field(default_factory=dict)
    """Requests that were admitted and have not finished, by index."""
    engines: dict[int, _Engine] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    turned_away: Int64s = field(init=False)
    """The rejected requests by index, in order of time."""
    turned_away_s: Float64s = field(init=False)
    """When the front end turned each away."""
    reserved: int = 1
    """Events still to come for what is open: ends of decodes and preemptions, last counters, the mark of the cut."""

    def __post_init__(self) -> None:
        rejected = np.flatnonzero(self.whole.status == STATUSES.index("rejected"))
        times_s = self.whole.arrival_s[rejected] + self.request_overhead_s
        order = np.argsort(times_s, kind="stable")
        self.turned_away, self.turned_away_s = rejected[order], times_s[order]

    def step(
        self,
        *,
        replica: int,
        start_s: float,
        end_s: float,
        work: Sequence[SeenWork],
        preempted: Sequence[SeenRequest],
        waiting: int,
        running: int,
        free_blocks: int,
    ) -> bool:
        """Draw one step, unless the most that it can take no longer fits; then the run ends here."""
        if start_s >= self.whole.end_s:  # the reference works off what is left, a run that certifies does not
            return False
        prompts = [item for item in work if not item.decode]
        new = sum(item.sequence.index not in self.tracks for item in prompts)
        most = PER_STEP + PER_NEW_REQUEST * new + PER_KNOWN_REQUEST * (len(prompts) - new) + len(preempted)
        most += 0 if replica in self.engines else PER_REPLICA
        most += int(np.searchsorted(self.turned_away_s, end_s, side="right"))  # marks, drawn at the end
        if len(self.names) + len(self.events) + self.reserved + most > self.max_events:
            self.cut_s = end_s
            return False
        if replica not in self.engines:
            self._begin_replica(replica, start_s)
        used = (self.num_blocks - free_blocks) / self.num_blocks
        self._count(replica, start_s, running, waiting, used)
        self._draw_step(replica, start_s, end_s, work, prompts, waiting, used)
        self.engines[replica].idle_from_s = end_s
        for request in preempted:
            self._preempt(request, start_s)
        for item in work:
            if item.decode:
                self._decode(item, end_s)
            else:
                self._prefill(item, replica, start_s, end_s)
        return True

    def _begin_replica(self, replica: int, start_s: float) -> None:
        self.engines[replica] = _Engine(idle_from_s=start_s)
        for pid, name in ((replica + 1, f"replica {replica}"), (self._pid(replica), f"replica {replica}: requests")):
            self.names.append({"name": "process_name", "ph": "M", "pid": pid, "tid": pid, "args": {"name": name}})
        self._name_thread(replica + 1, replica + 1, "steps")
        self.reserved += 2

    def _pid(self, replica: int) -> int:
        """Of a replica's requests; the replicas themselves come first."""
        assert self.whole.replica_times is not None
        return len(self.whole.replica_times.steps) + replica + 1

    def _name_thread(self, pid: int, tid: int, name: str) -> None:
        self.names.append({"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}})

    def _name_request(self, pid: int, index: int, workload: int, prompt_tokens: int, output_tokens: int) -> None:
        name = f"{index} {self.whole.workload_names[workload]}: {prompt_tokens} + {output_tokens} tokens"
        self._name_thread(pid, REQUEST_TID + index, name)

    def _span(self, pid: int, tid: int, name: str, start_s: float, end_s: float, **args: object) -> None:
        begin = _us(start_s)
        self.events.append(
            {
                "name": name,
                "cat": "request" if tid >= REQUEST_TID else "step",
                "ph": "X",
                "ts": begin,
                "dur": _us(end_s) - begin,
                "pid": pid,
                "tid": tid,
                "args": args,
            }
        )

    def _count(self, replica: int, now_s: float, running: int, waiting: int, used: float) -> None:
        """Counters hold until the next sample, so only changes are drawn; an idle replica falls to zero."""
        engine = self.engines[replica]
        if engine.idle_from_s < now_s:
            self._sample(replica, engine.idle_from_s, (0, 0), 0.0)
        self._sample(replica, now_s, (running, waiting), used)

    def _sample(self, replica: int, now_s: float, requests: tuple[int, int], used: float) -> None:
        engine = self.engines[replica]
        place: Event = {"ph": "C", "ts": _us(now_s), "pid": replica + 1, "tid": replica + 1}
        if requests != engine.requests:
            engine.requests = requests
            args = {"running": requests[0], "waiting": requests[1]}
            self.events.append({"name": "requests", "cat": "step", **place, "args": args})
        if used != engine.kv_used_fraction:
            engine.kv_used_fraction = used
            self.events.append({"name": "KV use", "cat": "step", **place, "args": {"fraction": round(used, 6)}})

    def _draw_step(
        self,
        replica: int,
        start_s: float,
        end_s: float,
        work: Sequence[SeenWork],
        prompts: Sequence[SeenWork],
        waiting: int,
        used: float,
    ) -> None:
        decodes = len(work) - len(prompts)
        tokens = sum(item.tokens for item in work)
        prefill_tokens = sum(item.tokens for item in prompts)
        chunks = f"{len(prompts)} prefill chunk{'' if len(prompts) == 1 else 's'} ({prefill_tokens} tokens)"
        parts = ([f"{decodes} decode"] if decodes else []) + ([chunks] if prompts else [])
        self._span(
            replica + 1,
            replica + 1,
            " + ".join(parts),
            start_s,
            end_s,
            decodes=decodes,
            prefill_tokens=prefill_tokens,
            prefills=len(prompts),
            scheduled_tokens=tokens,
            duration_ms=round((end_s - start_s) * 1e3, 6),
            kv_used_fraction=round(used, 6),
            waiting=waiting,
        )
        self.steps += 1
        if self.progress is not None and self.steps % STEPS_PER_REPORT == 0:
            self.progress(len(self.events), self.max_events)

    def _preempt(self, request: SeenRequest, now_s: float) -> None:
        track = self.tracks.get(request.index)
        if track is None:  # the step that was under way gave it its last token
            return
        if track.state == "decode":
            self._end_decode(request.index, track, now_s)
        elif track.since_s < now_s:
            self._span(track.pid, REQUEST_TID + request.index, "waits for tokens of a step", track.since_s, now_s)
        track.state, track.since_s = "preempted", now_s
        track.preemptions += 1
        self.reserved += 1

    def _prefill(self, work: SeenWork, replica: int, start_s: float, end_s: float) -> None:
        request = work.sequence
        tid = REQUEST_TID + request.index
        track = self.tracks.get(request.index)
        if track is None:
            pid = self._pid(replica)
            self._name_request(pid, request.index, request.workload, request.prompt_tokens, request.output_tokens)
            track = self.tracks[request.index] = _Track(pid=pid, state="prefill", since_s=start_s)
            self.seen.add(request.index)
            self._wait(pid, tid, request.arrival_s, start_s)
        elif track.state == "preempted":
            self._span(track.pid, tid, "preempted", track.since_s, start_s)
            self.reserved -= 1
        elif track.since_s < start_s:  # admitted, but the step before had no tokens left for it
            self._span(track.pid, tid, "waits for tokens of a step", track.since_s, start_s)
        known_tokens = request.prompt_tokens + request.emitted_tokens - work.given
        name = f"{'prefill' if not track.preemptions else 'prefill again'} {work.tokens} tokens"
        self._span(track.pid, tid, name, start_s, end_s, after=work.before_tokens, of=known_tokens)
        track.state, track.since_s = "prefill", end_s
        if not work.given:
            return
        if work.last:
            del self.tracks[request.index]
            return
        track.state, track.last_token_s, track.tokens, track.longest_gap_s = "decode", end_s, 0, 0.0
        self.reserved += 1

    def _wait(self, pid: int, tid: int, arrival_s: float, until_s: float) -> None:
        """From the arrival at the front end to the first step."""
        if self.request_overhead_s > 0:
            self._span(pid, tid, "front end", arrival_s - self.request_overhead_s, arrival_s)
        if arrival_s < until_s:
            self._span(pid, tid, "queued", arrival_s, until_s)

    def _decode(self, work: SeenWork, end_s: float) -> None:
        request = work.sequence
        if not work.given:  # scheduled before it was known that the answer had ended
            return
        track = self.tracks[request.index]
        track.longest_gap_s = max(track.longest_gap_s, end_s - track.last_token_s)
        track.last_token_s = end_s
        track.tokens += work.given
        if work.last:
            self._end_decode(request.index, track, end_s)
            del self.tracks[request.index]

    def _end_decode(self, index: int, track: _Track, end_s: float) -> None:
        self.reserved -= 1
        if end_s == track.since_s:
            return
        longest_ms = round(track.longest_gap_s * 1e3, 6)
        self._span(
            track.pid,
            REQUEST_TID + index,
            "decode",
            track.since_s,
            end_s,
            tokens=track.tokens,
            longest_gap_ms=longest_ms,
        )

    def finish(self) -> Drawn:
        """Draw the ends of what is open, and what never reached a step; say what is missing of the whole run."""
        whole = self.whole
        end_s = whole.end_s if self.cut_s is None else self.cut_s
        for index, track in self.tracks.items():
            if track.state == "decode":
                self._end_decode(index, track, track.last_token_s)
            elif track.state == "preempted":
                self._span(track.pid, REQUEST_TID + index, "preempted", track.since_s, max(track.since_s, end_s))
        busy = {track.pid for track in self.tracks.values()}
        for replica, engine in self.engines.items():
            if self._pid(replica) not in busy and engine.idle_from_s <= end_s and self.cut_s is None:
                self._sample(replica, engine.idle_from_s, (0, 0), 0.0)
        if self.cut_s is not None:
            name = f"cut: {self.max_events} events"
            self.events.append({"name": name, "ph": "i", "s": "g", "ts": _us(end_s), "pid": 1, "tid": 1, "args": {}})
        rejected = self._draw_turned_away(np.inf if self.cut_s is None else end_s)
        drawn = len(self.seen) + (self._draw_unseen(end_s) if self.cut_s is None else 0)
        assert whole.replica_times is not None
        # A run that ends with its window cuts off the steps that are under way; the kernel does not count those.
        left_out = 0 if self.cut_s is None else max(0, int(whole.replica_times.steps.sum()) - self.steps)
        return Drawn(
            until_s=end_s,
            run_s=whole.end_s,
            events=len(self.names) + len(self.events),
            max_events=self.max_events,
            steps=self.steps,
            steps_left_out=left_out,
            requests=drawn,
            requests_left_out=len(whole) - len(self.turned_away) - drawn,
            rejected=rejected,
            rejected_left_out=len(self.turned_away) - rejected,
        )

    def _draw_turned_away(self, until_s: float) -> int:
        """Rejected requests of the drawn time as marks, while there is room; no replica took them."""
        whole, drawn = self.whole, 0
        pid = min(self.engines, default=0) + 1
        for index, time_s in zip(self.turned_away, self.turned_away_s, strict=True):
            if time_s > until_s or len(self.names) + len(self.events) + 1 > self.max_events:
                break
            workload, prompt_tokens = whole.workload_names[int(whole.workload[index])], int(whole.prompt_tokens[index])
            name = f"rejected: {workload}, {prompt_tokens} prompt tokens"
            place: Event = {"ts": _us(float(time_s)), "pid": pid, "tid": pid}
            args = {"request": int(index)}
            self.events.append({"name": name, "cat": "request", "ph": "i", "s": "p", **place, "args": args})
            drawn += 1
        return drawn

    def _draw_unseen(self, end_s: float) -> int:
        """Requests that were still queued when the run ended, while there is room."""
        whole, drawn = self.whole, 0
        for index in np.setdiff1d(np.arange(len(whole)), [*self.seen, *self.turned_away]):
            if len(self.names) + len(self.events) + 3 > self.max_events:
                break
            replica = int(whole.replica[index])
            workload, prompt_tokens = int(whole.workload[index]), int(whole.prompt_tokens[index])
            arrival_s = float(whole.arrival_s[index]) + self.request_overhead_s
            pid = self._pid(replica)
            name = f"{index} {self.whole.workload_names[workload]}: {prompt_tokens} prompt tokens"
            self._name_thread(pid, REQUEST_TID + int(index), name)
            self._wait(pid, REQUEST_TID + int(index), arrival_s, max(arrival_s, end_s))
            drawn += 1
        return drawn


def write_timeline(timeline: Timeline, path: Path, *, title: str) -> Drawn:
    """Finish the timeline of a run and write it whole or not at all; equal runs give equal bytes."""
    drawn = timeline.finish()
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.writelines(_lines(timeline, drawn, title))
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return drawn


def _lines(timeline: Timeline, drawn: Drawn, title: str) -> Iterator[str]:
    """One event a line: names first, then everything in order of time."""
    about = {
        "title": title,
        "holds": drawn.sentence,
        "complete": drawn.complete,
        "from_s": 0.0,
        "until_s": drawn.until_s,
        "run_s": drawn.run_s,
        "events": drawn.events,
        "max_events": drawn.max_events,
        "steps": drawn.steps,
        "steps_left_out": drawn.steps_left_out,
        "requests": drawn.requests,
        "requests_left_out": drawn.requests_left_out,
        "rejected": drawn.rejected,
        "rejected_left_out": drawn.rejected_left_out,
    }
    yield f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about, ensure_ascii=False)},"traceEvents":['
    separator = "\n"
    for event in [*timeline.names, *sorted(timeline.events, key=lambda e: e["ts"])]:
        yield separator + json.dumps(event, separators=(",", ":"), ensure_ascii=False)
        separator = ",\n"
    yield "\n]}\n"
