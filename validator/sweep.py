"""Makes the runs of a plan: for each degree and session a server, a warm-up, and every run that is still missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from hardware_profiles.errors import InputError
from simulator.flags import FlagValue
from validator.bench_run import closed_loop_arguments, play
from validator.run_records import (
    RunRecord,
    ServerRecord,
    finished,
    record_server,
    records,
    session_folder,
    starts,
    write_whole,
)
from validator.sweep_plan import SweepPlan
from validator.targets.target import RunningServer, Target, TargetError

__all__ = ["Progress", "TargetOf", "check_server", "now", "server_differences", "server_flags", "sweep", "warm"]

TOKENS_OFF = 0.02
"""KV cache tokens of two starts may differ by this share."""
Progress = Callable[[str, int, int], None]
TargetOf = Callable[[Path], Target]
"""The target whose logs go to a folder."""
PLAIN: dict[str, FlagValue] = {
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
    "enable_expert_parallel": False,
    "num_speculative_tokens": 0,
    "enable_chunked_prefill": True,
    "long_prefill_token_threshold": 0,
    "long_prefill_token_threshold_adaptive": False,
    "max_num_active_seqs": 0,
    "watermark": 0.0,
    "scheduling_policy": "fcfs",
}
"""Flags that have no column in `measured.csv`: rows of a server with other values would be taken for these.

0 where the server has none of it. vLLM's defaults (0.32 vllm/config/scheduler.py, parallel.py).
"""
NEEDED = ("max_num_seqs", "max_num_batched_tokens", "block_size")


def sweep(plan: SweepPlan, folder: Path, target_of: TargetOf, client: Sequence[str], tell: Progress) -> None:
    """Make every run that the folder does not hold yet; `client` runs vLLM's command line."""
    total = len(plan.degrees) * plan.sessions * len(plan.shapes) * len(plan.concurrency)
    done = sum(len(finished(folder, plan, d, s)) for d in plan.degrees for s in range(1, plan.sessions + 1))
    for degree in plan.degrees:
        for session in range(1, plan.sessions + 1):
            held = finished(folder, plan, degree, session)
            missing = [run for run in plan.runs(degree, session) if run.name not in held]
            if not missing:
                continue
            place = session_folder(folder, degree, session)
            place.mkdir(parents=True, exist_ok=True)
            where = f"TP {degree}, session {session} of {plan.sessions}"
            tell(f"{where}, starting the server", done, total)
            with target_of(place).running(server_flags(plan, degree)) as server:
                record = check_server(server, plan, degree, place)
                refuse_another_server(folder, records(folder, plan), record, degree)
                tell(f"{where}, warming up", done, total)
                warm(plan, degree, session, server, client, place)
                for planned in missing:
                    run = planned.again(starts(place))
                    tell(f"{where}, {run.shape} at {run.concurrency}", done, total)
                    arguments = closed_loop_arguments(run, range_ratio=plan.range_ratio)
                    played = play(client, server, arguments, place / f"{run.name}.json", within_s=run.at_most_s)
                    made = RunRecord(degree=degree, session=session, run=run, server=record, played=played, date=now())
                    write_whole(place / f"{run.name}.run.json", made)
                    done += 1


def refuse_another_server(folder: Path, held: Iterable[RunRecord], record: ServerRecord, degree: int) -> None:
    """Sessions that differ in more than the restart are not replications of one another."""
    for run in held:
        if run.server.vllm_version != record.vllm_version:
            raise InputError(
                f"holds runs of vLLM {run.server.vllm_version}, and the server is {record.vllm_version}; give --out "
                "another folder",
                file=str(folder),
            )
        if run.degree == degree and (differences := server_differences(run.server, record)):
            raise InputError(
                f"the server of this session differs from that of earlier runs: {', '.join(differences)}; start it as "
                "it was, or give --out another folder",
                file=str(folder),
            )


def server_differences(was: ServerRecord, now: ServerRecord) -> tuple[str, ...]:
    """What two starts of a server say differently, KV cache tokens within 2 %: a GPU's free memory varies a little."""
    found = [
        f"{name} {now.flags.get(name)} instead of {value}"
        for name, value in was.flags.items()
        if now.flags.get(name) != value
    ]
    if was.vllm_version != now.vllm_version:
        found.append(f"vLLM {now.vllm_version} instead of {was.vllm_version}")
    held, left = was.kv_cache_tokens, now.kv_cache_tokens
    if (held is None) != (left is None) or (
        held is not None and left is not None and abs(left - held) > TOKENS_OFF * held
    ):
        found.append(f"{left} KV cache tokens instead of {held}")
    return tuple(found)


def server_flags(plan: SweepPlan, degree: int) -> dict[str, FlagValue]:
    """What a session's server is started with, or must be running with."""
    flags: dict[str, FlagValue] = {"tensor_parallel_size": degree}
    if not plan.server and "prefix-caching" not in plan.arguments:
        flags["enable_prefix_caching"] = False
    return flags


def check_server(server: RunningServer, plan: SweepPlan, degree: int, folder: Path) -> ServerRecord:
    """The server is the one that was meant and says what a profile must know; what it says is kept in `folder`."""
    facts = server.facts
    if (held := facts.flags.get("tensor_parallel_size", degree)) != degree:
        raise TargetError(f"the server runs with tensor_parallel_size {held}, not {degree}")
    if unknown := [name for name in NEEDED if name not in facts.flags]:
        raise InputError(
            f"the server does not tell {', '.join(unknown)}; start it with VLLM_SERVER_DEV_MODE=1 in its environment, "
            "which opens /server_info, or let this command start it"
        )
    for name, plain in PLAIN.items():
        if (value := facts.flags.get(name, plain)) != plain:
            raise InputError(
                f"the server runs with {name} {value}, and a profile's rows hold only those with {plain}; leave "
                f"--{name.replace('_', '-')} out of --flags",
                key="--server" if plan.server else "--flags",
            )
    longest = facts.flags.get("max_model_len")
    if isinstance(longest, int) and plan.longest_tokens > longest:
        raise InputError(
            f"a request of {plan.longest_tokens} tokens is longer than the server's max_model_len {longest}; give "
            "shorter --shapes, or --max-model-len in --flags"
        )
    return record_server(server, folder, now())


def warm(
    plan: SweepPlan, degree: int, session: int, server: RunningServer, client: Sequence[str], folder: Path
) -> None:
    """Traffic that does not count: kernels are compiled and caches filled before anything is measured."""
    for planned in plan.warm_up(degree, session):
        run = planned.again(starts(folder))
        arguments = closed_loop_arguments(run, range_ratio=plan.range_ratio)
        play(client, server, arguments, folder / f"{run.name}.json", within_s=run.at_most_s)


def now() -> str:
    """Date and time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
