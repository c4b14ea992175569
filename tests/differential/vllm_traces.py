"""Traces of vLLM's own scheduler: made by a vLLM environment where there is one, kept in `golden/` for everywhere else.

    python -m tests.differential.vllm_traces --seed 1 --workloads 300

writes the golden file anew; `golden/README.md` says when to do that.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from simulator.schedule_trace import ScheduledStep
from simulator.schedule_workload import ScheduleWorkload
from tests.differential.random_workloads import ENDLESS_WORKLOADS, NAMED_WORKLOADS, random_workloads

__all__ = ["Trace", "read_golden", "vllm_python", "vllm_traces"]

FOLDER = Path(__file__).parent
REPOSITORY = FOLDER.parent.parent
GOLDEN = FOLDER / "golden" / "vllm-0.32.0.jsonl.gz"
ENDLESS_STEPS = 30
MOST_STEPS = 20_000
"""A workload that ends needs far fewer steps; a scheduler that hangs is cut off here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What vLLM scheduled for one workload."""

    name: str
    workload: ScheduleWorkload
    vllm: str
    """The release that did it."""
    steps: tuple[ScheduledStep, ...]
    hits: tuple[tuple[tuple[str, int], ...], ...]
    """For each step, (request, tokens) that an admitted request found in the prefix cache. No engine is compared with
    it: the scheduled tokens and the free blocks say the same."""


def vllm_python() -> Path | None:
    """The python of a vLLM environment, or None."""
    named = os.environ.get("GOODFLEET_VLLM_PYTHON")
    # As it is named, but for the folder: a link is what makes it an environment, and a test may run it elsewhere.
    python = Path(named).absolute() if named else REPOSITORY / ".venv-vllm" / "bin" / "python"
    return python if named or python.exists() else None


def vllm_traces(
    python: Path, workloads: Iterable[tuple[str, ScheduleWorkload, int]], *, processes: int = 2
) -> list[Trace]:
    """Run vLLM's scheduler over (name, workload, most steps); importing vLLM takes 10 s, so few processes do it all."""
    asked = list(workloads)
    shares = [asked[i::processes] for i in range(min(processes, len(asked)))]
    with ThreadPoolExecutor(len(shares)) as pool:
        answers = list(pool.map(lambda share: _run_oracle(python, share), shares))
    return [answers[i % len(shares)][i // len(shares)] for i in range(len(asked))]


def _run_oracle(python: Path, workloads: list[tuple[str, ScheduleWorkload, int]]) -> list[Trace]:
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "workloads.jsonl"), Path(folder, "traces.jsonl")
        rows = [{"workload": w.model_dump(exclude_none=True), "max_steps": most} for _, w, most in workloads]
        asked.write_text("".join(json.dumps(row) + "\n" for row in rows))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment["OMP_NUM_THREADS"] = "1"
        command = [str(python), str(FOLDER / "vllm_oracle.py"), str(asked), str(answered)]
        done = subprocess.run(command, env=environment, text=True, capture_output=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
        lines = [json.loads(line) for line in answered.read_text().splitlines()]
    return [_trace(name, w, line) for (name, w, _), line in zip(workloads, lines, strict=True)]


def _trace(name: str, workload: ScheduleWorkload, line: dict[str, object]) -> Trace:
    steps: list[ScheduledStep] = []
    rows = line["steps"]
    assert isinstance(rows, list)
    for step, scheduled, preempted, free_blocks, _ in rows:
        pairs = tuple((request, tokens) for request, tokens in scheduled)
        steps.append(ScheduledStep(step=step, scheduled=pairs, preempted=tuple(preempted), free_blocks=free_blocks))
    hits = tuple(tuple((request, tokens) for request, tokens in row[4]) for row in rows)
    return Trace(name=name, workload=workload, vllm=str(line["vllm"]), steps=tuple(steps), hits=hits)


def cases(seed: int, count: int) -> list[tuple[str, ScheduleWorkload, int]]:
    """The named workloads, the endless ones and `count` random ones."""
    rows = [(name, workload, MOST_STEPS) for name, workload in NAMED_WORKLOADS.items()]
    rows += [(name, workload, ENDLESS_STEPS) for name, workload in ENDLESS_WORKLOADS.items()]
    return rows + [(f"seed {seed}, workload {i}", w, MOST_STEPS) for i, w in enumerate(random_workloads(seed, count))]


def read_golden() -> tuple[dict[str, str], list[Trace]]:
    """The stored traces, after the line that says where they come from."""
    with gzip.open(GOLDEN, "rt", encoding="utf-8") as lines:
        origin: dict[str, str] = json.loads(next(lines))
        traces = []
        for text in lines:
            line = json.loads(text)
            workload = ScheduleWorkload.model_validate_json(json.dumps(line["workload"]), strict=True)
            traces.append(_trace(line["name"], workload, line | origin))
    return origin, traces


def write_golden(traces: Sequence[Trace], *, command: str, seed: int) -> None:
    """Equal traces give equal bytes: no time stamp, no file name inside."""
    (release,) = {trace.vllm for trace in traces}
    origin = {"vllm": release, "command": command, "seed": str(seed)}
    lines = [json.dumps(origin)]
    for trace in traces:
        both = zip(trace.steps, trace.hits, strict=True)
        steps = [[s.step, s.scheduled, s.preempted, s.free_blocks, hits] for s, hits in both]
        workload = trace.workload.model_dump(exclude_defaults=True)
        lines.append(json.dumps({"name": trace.name, "workload": workload, "steps": steps}, separators=(",", ":")))
    with GOLDEN.open("wb") as file, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
        packed.write("".join(line + "\n" for line in lines).encode())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential.vllm_traces", description="Write golden traces")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workloads", type=int, default=300)
    chosen = parser.parse_args()
    python = vllm_python()
    if python is None:
        print("error: no vLLM environment; make one as tests/vllm/README.md says", file=sys.stderr)
        return 2
    command = f"python -m tests.differential.vllm_traces --seed {chosen.seed} --workloads {chosen.workloads}"
    traces = vllm_traces(python, cases(chosen.seed, chosen.workloads))
    write_golden(traces, command=command, seed=chosen.seed)
    print(f"{len(traces)} workloads, {sum(len(t.steps) for t in traces)} steps, vLLM {traces[0].vllm}: {GOLDEN}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
