"""`goodfleet profile measure`: from a node with vLLM on it to a profile of it.

sweep.py             runs of vLLM's benchmark client, in fresh server sessions
measured_rows.py     -> measured.csv, runs.csv
all_reduce.py        -> all-reduce.csv, where there is more than one GPU
simulator.calibration -> profile.yaml, fitted to both
open_loop.py         predicts traffic that was not used, replays it, compares
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hardware_profiles.errors import InputError
from hardware_profiles.model import ModelCard
from hardware_profiles.node import Node
from validator.all_reduce import measure_all_reduce, python_of, unmeasured
from validator.measured_rows import session_spread, write_measured, write_runs
from validator.open_loop import OpenLoopPlan, make_prediction, read_prediction, replay_streams
from validator.open_loop_table import Comparison, compare, print_comparisons, write_comparisons
from validator.run_records import RunRecord, keep_plan, records, write_whole
from validator.sweep import Progress, TargetOf, now, sweep
from validator.sweep_plan import SweepPlan
from validator.targets.local import AttachedTarget, LocalTarget, stop_orphans
from validator.targets.target import Target, TargetError

__all__ = ["Measurement", "measure", "target_source"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a finished measurement left in its folder."""

    records: tuple[RunRecord, ...]
    measured: Path
    profile: Path
    all_reduce: Path | None
    """None = no curve of this node was measured."""
    comparisons: tuple[Comparison, ...] = ()
    """Of the open loop, where it was asked for."""

    @property
    def open_loop_counts(self) -> bool:
        """Whether every stream was replayed in a session that counts."""
        return bool(self.comparisons) and all(row.sessions for row in self.comparisons)


def target_source(plan: SweepPlan, command: Sequence[str], arguments: Sequence[str]) -> TargetOf:
    """Where the sessions of a plan run: a server of each session's own, or the one that runs already."""

    def target(folder: Path) -> Target:
        if plan.server:
            return AttachedTarget(url=plan.server)
        return LocalTarget(model=plan.model, folder=folder, command=tuple(command), arguments=tuple(arguments))

    return target


def measure(
    plan: SweepPlan,
    *,
    node: Node,
    card: ModelCard,
    folder: Path,
    client: Sequence[str],
    target_of: TargetOf,
    command: str,
    tell: Progress,
    console: Console,
    open_loop: OpenLoopPlan | None = None,
) -> Measurement:
    """Make what is missing of the plan's runs, write the rows, measure the all-reduce, fit, check on an open loop."""
    if plan.server and plan.sessions > 1:
        raise InputError("a server that is running gives one session; leave --repeats at 1, or leave --server out")
    if plan.server and len(plan.degrees) > 1:
        degrees = ",".join(map(str, plan.degrees))
        raise InputError(f"a server that is running has one degree, and --tp names {degrees}; give its own")
    if (most := max(plan.degrees)) > node.gpus_per_server:
        raise InputError(f"--tp {most} is more than the {node.gpus_per_server} GPUs of {node.name}")
    with held_alone(folder):
        stop_orphans(folder)
        return _measure(
            plan,
            node=node,
            card=card,
            folder=folder,
            client=client,
            target_of=target_of,
            command=command,
            tell=tell,
            console=console,
            open_loop=open_loop,
        )


@contextlib.contextmanager
def held_alone(folder: Path) -> Iterator[None]:
    """The folder is this process's as long as it lives; a folder that another process measures into is refused."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                "another measurement is going on in this folder; wait for it, or give --out another folder",
                file=str(folder),
            ) from None
        yield


def _measure(
    plan: SweepPlan,
    *,
    node: Node,
    card: ModelCard,
    folder: Path,
    client: Sequence[str],
    target_of: TargetOf,
    command: str,
    tell: Progress,
    console: Console,
    open_loop: OpenLoopPlan | None,
) -> Measurement:
    keep_plan(folder, plan)
    sweep(plan, folder, target_of, client, tell)
    found = tuple(records(folder, plan))
    measured = folder / "measured.csv"
    write_runs(folder / "runs.csv", found)
    counted = write_measured(measured, found, plan=plan, model=card.name, command=command)
    _print_runs(found, console)
    if counted == 0:
        raise TargetError(
            f"no run counts, so there is nothing to fit; {folder / 'runs.csv'} says why each does not. On a quiet "
            "machine the same command makes them again"
        )
    curve = folder / "all-reduce.csv"
    if unmeasured(plan.degrees, curve):
        tell("all-reduce", 0, 1)
        _all_reduce(plan, node, curve, client, console)
    profile = folder / "profile.yaml"
    fit(measured, plan, node=node, card=card, all_reduce=curve if curve.exists() else None, out=profile, tell=tell)
    comparisons: tuple[Comparison, ...] = ()
    if open_loop is not None:
        comparisons = check_open_loop(
            open_loop,
            plan,
            found,
            profile,
            node=node,
            card=card,
            folder=folder / "open-loop",
            client=client,
            target_of=target_of,
            command=command,
            tell=tell,
            console=console,
        )
    return Measurement(
        records=found,
        measured=measured,
        profile=profile,
        all_reduce=curve if curve.exists() else None,
        comparisons=comparisons,
    )


def check_open_loop(
    wanted: OpenLoopPlan,
    plan: SweepPlan,
    found: Sequence[RunRecord],
    profile: Path,
    *,
    node: Node,
    card: ModelCard,
    folder: Path,
    client: Sequence[str],
    target_of: TargetOf,
    command: str,
    tell: Progress,
    console: Console,
) -> tuple[Comparison, ...]:
    """Predict, write it down, replay, compare. A prediction that is written stays, whatever is fitted later."""
    mine = [record for record in found if record.degree == wanted.degree]
    if any(record.invalid for record in mine):
        console.print("The open loop waits until every run of the sweep counts: give the same command again.")
        return ()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "prediction.json"
    prediction = read_prediction(path)
    if prediction is None:
        kept = folder / "profile.yaml"
        for suffix in (".yaml", ".covariance.csv", ".residuals.csv"):
            shutil.copyfile(profile.with_suffix(suffix), kept.with_suffix(suffix))
        prediction = make_prediction(wanted, profile=kept, node=node, card=card, server=mine[0].server)
        write_whole(path, prediction)
    elif prediction.plan != wanted:
        raise InputError(
            "holds a prediction for another open loop; repeat its options, or remove it to predict and replay anew",
            file=str(path),
        )
    replays = replay_streams(prediction, plan, folder=folder, target_of=target_of, client=client, tell=tell)
    rows = compare(prediction, replays)
    write_comparisons(rows, prediction, replays, folder / "open-loop.csv", command=command)
    print_comparisons(rows, prediction, console)
    return rows


def fit(
    rows: Path, plan: SweepPlan, *, node: Node, card: ModelCard, all_reduce: Path | None, out: Path, tell: Progress
) -> None:
    """Fit a profile to the rows that count."""
    from simulator.benchmark_rows import read_rows
    from simulator.calibration import fit_profile, write_profile

    fitted = fit_profile(
        read_rows(rows),
        node=node,
        card=card,
        precision=plan.precision,
        all_reduce=all_reduce,
        seed=1,
        progress=tell,
    )
    write_profile(fitted, out)


def _all_reduce(plan: SweepPlan, node: Node, curve: Path, client: Sequence[str], console: Console) -> None:
    python = python_of(client)
    if python is None:
        console.print("All-reduce not measured: no python found behind the vLLM command; its cost is assumed.")
        return
    failed = measure_all_reduce(python, plan.degrees, gpu=node.gpu, date=now()[:10], out=curve)
    for degree, problem in failed.items():
        console.print(
            f"All-reduce at TP {degree} not measured ({problem}); its cost is assumed. The same command measures it.",
            highlight=False,
        )


def _print_runs(found: Sequence[RunRecord], console: Console) -> None:
    table = Table(title="Runs: medians over requests, and the share of the run that others took", title_justify="left")
    for column in ("TP", "session", "ISL/OSL", "in flight", "TTFT ms", "TPOT ms", "tok/s", "others", "counts"):
        table.add_column(column, justify="left" if column == "counts" else "right")
    for record in found:
        played = record.played
        table.add_row(
            str(record.degree),
            str(record.session),
            str(record.run.shape),
            str(record.run.concurrency),
            f"{played.result.median_ttft_ms:,.1f}",
            f"{played.result.median_tpot_ms:,.2f}",
            f"{played.result.total_token_throughput:,.0f}",
            "?" if played.contention is None else f"{played.contention:.1%}",
            "no: " + "; ".join(record.invalid) if record.invalid else "yes",
        )
    console.print(table)
    if any(record.played.unchecked for record in found):
        console.print("Not checked: prompt tokens, prefix cache and preemptions, of which the server has no counters.")
    if spread := session_spread(found):
        figures = ", ".join(f"{name} {sd:.1%}" for name, sd in spread.items())
        console.print(f"Between sessions (standard deviation of one point): {figures}.", highlight=False)
