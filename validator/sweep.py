"""Makes the runs of a plan: for each degree and session a server, a warm-up, and every run that is still missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from hardware_profiles.errors import InputError
from simulator.flags import FlagValue
from validator.bench_run import closed_loop_arguments, play
from validator.run_records import RunRecord, ServerRecord, finished, record_server, session_folder, write_whole
from validator.sweep_plan import SweepPlan
from validator.targets.target import RunningServer, Target, TargetError

__all__ = ["Progress", "TargetOf", "check_server", "now", "server_flags", "sweep", "warm"]

Progress = Callable[[str, int, int], None]
TargetOf = Callable[[Path], Target]
"""The target whose logs go to a folder."""
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
                tell(f"{where}, warming up", done, total)
                warm(plan, degree, session, server, client, place)
                for run in missing:
                    tell(f"{where}, {run.shape} at {run.concurrency}", done, total)
                    arguments = closed_loop_arguments(run, range_ratio=plan.range_ratio)
                    played = play(client, server, arguments, place / f"{run.name}.json")
                    made = RunRecord(degree=degree, session=session, run=run, server=record, played=played, date=now())
                    write_whole(place / f"{run.name}.run.json", made)
                    done += 1


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
    for run in plan.warm_up(degree, session):
        play(client, server, closed_loop_arguments(run, range_ratio=plan.range_ratio), folder / f"{run.name}.json")


def now() -> str:
    """Date and time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
