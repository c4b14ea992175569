"""One run of `vllm bench serve`, vLLM's own benchmark client, and what it saved.

    vllm bench serve --dataset-name random --ignore-eos --save-result --save-detailed …       a closed loop
    vllm bench serve --dataset-name timed_trace --dataset-path trace.jsonl …                  given arrivals and lengths

The result holds medians and means, and per request the prompt's tokens, the answer's, when it was sent
(`time.perf_counter`), the time to its first token and the gaps after it (vLLM 0.32 vllm/benchmarks/serve.py). The file
appears under its name only when it is whole.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from validator.child import last_lines, run_child
from validator.contention import LIMIT, Contention, ContentionWatch
from validator.sweep_plan import SweepRun
from validator.targets.server_facts import counters
from validator.targets.target import RunningServer, TargetError

__all__ = ["BenchResult", "Played", "closed_loop_arguments", "play", "read_result", "replay_arguments"]


TOKENS_OFF = 0.01
"""Prompt tokens that the server counted may be so far from those sent: more, and others used it or lengths differ."""


class BenchResult(BaseModel):
    """The part of a result file that we read; seconds, but for the `_ms`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    duration: Annotated[float, Field(gt=0)]
    completed: int
    failed: int
    total_input_tokens: int
    total_output_tokens: int
    total_token_throughput: float
    median_ttft_ms: float
    mean_ttft_ms: float
    p99_ttft_ms: float
    median_tpot_ms: float
    mean_tpot_ms: float
    p99_tpot_ms: float
    p99_itl_ms: float
    input_lens: tuple[int, ...]
    output_lens: tuple[int, ...]
    start_times: tuple[float, ...]
    ttfts: tuple[float, ...]
    itls: tuple[tuple[float, ...], ...]

    @property
    def start_s(self) -> float:
        """When the first request left."""
        return min(self.start_times)


class Played(BaseModel):
    """A run and what was seen of the machine and the server while it lasted."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    command: str
    result: BenchResult
    wait: float | None
    """See `Contention`; None = not known, as of a server that is not ours."""
    strangers: float | None
    stolen: float | None
    contention: float | None
    watched: bool
    """The server is ours and /proc is there, so a contention that is not known is a fault."""
    prompt_tokens: int | None
    """Counted by the server; None = it has no such counter, here and below."""
    cached_tokens: int | None
    """Prompt tokens that it found in its prefix cache."""
    preemptions: int | None

    @property
    def unchecked(self) -> bool:
        """Whether the server has none of the counters."""
        return self.prompt_tokens is None and self.cached_tokens is None and self.preemptions is None

    @property
    def invalid(self) -> tuple[str, ...]:
        """Why the machine or the server were not in the state that was to be measured."""
        found, sent = [], self.result.total_input_tokens
        if self.contention is not None and self.contention > LIMIT:
            found.append(f"others took up to {self.contention:.1%} of the run's time (limit {LIMIT:.0%})")
        if self.contention is None and self.watched:
            found.append("it is not known whether others used the machine: the watch saw too little of the run")
        if self.cached_tokens:
            found.append(f"{self.cached_tokens} prompt tokens came from the prefix cache")
        if self.prompt_tokens is not None and abs(self.prompt_tokens - sent) > TOKENS_OFF * sent:
            found.append(f"the server counted {self.prompt_tokens} prompt tokens, and {sent} were sent")
        return tuple(found)


def closed_loop_arguments(run: SweepRun, *, range_ratio: float) -> tuple[str, ...]:
    """The arguments that make a run of the sweep."""
    return (
        *("--dataset-name", "random", "--random-input-len", str(run.shape.isl)),
        *("--random-output-len", str(run.shape.osl), "--random-range-ratio", f"{range_ratio:g}"),
        *("--num-prompts", str(run.requests), "--max-concurrency", str(run.concurrency)),
        *("--seed", str(run.seed)),
    )


def replay_arguments(trace: Path, *, requests: int, longest_tokens: int) -> tuple[str, ...]:
    """The arguments that replay given arrivals: one hash a request, so its prompt is drawn as one piece of its own."""
    return (
        *("--dataset-name", "timed_trace", "--dataset-path", str(trace), "--num-prompts", str(requests)),
        *("--timed-trace-chunk-hash-size", str(longest_tokens + 1)),
    )


def play(
    command: Sequence[str], server: RunningServer, arguments: Sequence[str], saved: Path, *, within_s: float
) -> Played:
    """Run the client against a server and leave its result in `saved`.

    A client that fails, or has not ended within a time, is a `TargetError`: nothing of its run is kept.
    """
    facts = server.facts
    partial = saved.with_suffix(".part.json")
    partial.unlink(missing_ok=True)
    whole = (
        *(*command, "bench", "serve", "--backend", "vllm", "--base-url", server.url),
        *("--model", facts.model_path, "--served-model-name", facts.model_id, "--ignore-eos", "--temperature", "0"),
        *arguments,
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,95,99"),
        *("--save-result", "--save-detailed", "--disable-tqdm"),
        *("--result-dir", str(partial.parent), "--result-filename", partial.name),
    )
    before = counters(server.url)
    with ContentionWatch(server.pid) as watch:
        _client(whole, saved.with_suffix(".log"), within_s)
    after = counters(server.url)
    result = read_result(partial)
    found = watch.between(result.start_s, result.start_s + result.duration)
    os.replace(partial, saved)
    return Played(
        command=shlex.join((*whole[:-1], saved.name)),
        result=result,
        **_shares(found),
        watched=watch.possible,
        prompt_tokens=_increase("prompt_tokens", before, after),
        cached_tokens=_increase("prefix_cache_hits", before, after),
        preemptions=_increase("num_preemptions", before, after),
    )


def read_result(path: Path) -> BenchResult:
    """A saved result; one that is missing or half written is a `TargetError`."""
    try:
        return BenchResult.model_validate_json(path.read_bytes())
    except OSError as error:
        raise TargetError(f"the benchmark client left no result: {path} ({error.strerror})") from None
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        problem = error.errors()[0]["msg"]
        raise TargetError(f"{path} is no whole result of `vllm bench serve`: {place} {problem}") from None


def _client(command: Sequence[str], log: Path, within_s: float) -> None:
    code = run_child(command, log, within_s=within_s)
    if code is None:
        raise TargetError(
            f"the benchmark client was stopped after {within_s:.0f} s, far more than its run can take; the server's "
            f"log may say why, and the same command goes on: {shlex.join(command)}\n{last_lines(log)}"
        )
    if code != 0:
        raise TargetError(f"the benchmark client ended with {code}: {shlex.join(command)}\n{last_lines(log)}")


def _increase(name: str, before: Mapping[str, float | None], after: Mapping[str, float | None]) -> int | None:
    """vLLM's counters are there from its start, at 0."""
    first, last = before[name], after[name]
    return None if first is None or last is None else round(last - first)


def _shares(found: Contention | None) -> dict[str, float | None]:
    if found is None:
        return dict.fromkeys(("wait", "strangers", "stolen", "contention"))
    return {"wait": found.wait, "strangers": found.strangers, "stolen": found.stolen, "contention": found.share}
