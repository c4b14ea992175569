"""What a measurement has done so far: one folder per session, one record per finished run.

    FOLDER/plan.json                                    what is measured; another plan is refused
    FOLDER/tp1/session-1/server-1.json, server-1.log    each start of the session's server, and what it said it does
    FOLDER/tp1/session-1/1024-128-c4.json, .log, .run.json

A run is finished when its `.run.json` is there and counts; it is written last and renamed into place. So a measurement
that was killed goes on where it was: half-written results, and runs that others disturbed, are made again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from hardware_profiles.errors import InputError
from simulator.flags import FlagValue
from validator.bench_run import Played
from validator.sweep_plan import SweepPlan, SweepRun
from validator.targets.target import RunningServer, TargetError

__all__ = [
    "RunRecord",
    "ServerRecord",
    "finished",
    "keep_plan",
    "record_server",
    "records",
    "session_folder",
    "starts",
    "write_whole",
]

Record = TypeVar("Record", bound=BaseModel)


class ServerRecord(BaseModel):
    """One start of a server."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    vllm_version: str
    model_id: str
    model_path: str
    kv_cache_tokens: int | None
    num_gpu_blocks: int | None
    flags: dict[str, FlagValue]
    told_by: str
    command: str
    fresh: bool
    started: str
    """Date and time, UTC."""


class RunRecord(BaseModel):
    """One finished run of the sweep."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    degree: int
    session: int
    run: SweepRun
    server: ServerRecord
    played: Played
    date: str

    @property
    def invalid(self) -> tuple[str, ...]:
        """Why the run says nothing about the machine; empty = it counts."""
        found, result = [], self.played.result
        if result.failed or result.completed != self.run.requests:
            found.append(f"{result.completed} of {self.run.requests} requests were answered")
        return (*found, *self.played.invalid)


def keep_plan(folder: Path, plan: SweepPlan) -> None:
    """Write the plan into a new folder; a folder that holds another plan's runs is an `InputError`."""
    path = folder / "plan.json"
    if path.exists():
        held = read_record(path, SweepPlan)
        if held is None:
            raise InputError("is no plan of a measurement; give --out another folder", file=str(path))
        names = [name for name in SweepPlan.model_fields if getattr(held, name) != getattr(plan, name)]
        if names:
            was = ", ".join(f"{name} {getattr(held, name)!s}" for name in names)
            raise InputError(
                f"holds a measurement with other settings ({was}); repeat its command to go on with it, or give --out "
                "another folder",
                file=str(path),
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, plan)


def session_folder(folder: Path, degree: int, session: int) -> Path:
    """Where a session's files are."""
    return folder / f"tp{degree}" / f"session-{session}"


def finished(folder: Path, plan: SweepPlan, degree: int, session: int) -> dict[str, RunRecord]:
    """The runs of a session that count, by name."""
    place = session_folder(folder, degree, session)
    found = {run.name: read_record(place / f"{run.name}.run.json", RunRecord) for run in plan.runs(degree, session)}
    return {name: record for name, record in found.items() if record is not None and not record.invalid}


def records(folder: Path, plan: SweepPlan) -> Iterator[RunRecord]:
    """Every run that was made, those that do not count included, by degree, shape, concurrency and session."""
    for degree in plan.degrees:
        named = [(run, s) for s in range(1, plan.sessions + 1) for run in plan.runs(degree, s)]
        for run, session in sorted(named, key=lambda r: (r[0].shape.isl, r[0].shape.osl, r[0].concurrency, r[1])):
            record = read_record(session_folder(folder, degree, session) / f"{run.name}.run.json", RunRecord)
            if record is not None:
                yield record


def record_server(server: RunningServer, folder: Path, started: str) -> ServerRecord:
    """What a server says of itself, kept beside its log."""
    facts = server.facts
    record = ServerRecord(
        vllm_version=facts.vllm_version,
        model_id=facts.model_id,
        model_path=facts.model_path,
        kv_cache_tokens=facts.kv_cache_tokens,
        num_gpu_blocks=facts.num_gpu_blocks,
        flags=dict(facts.flags),
        told_by=facts.told_by,
        command=server.command,
        fresh=server.fresh,
        started=started,
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = server.log.with_suffix(".json") if server.log is not None else folder / f"server-{starts(folder) + 1}.json"
    write_whole(path, record)
    return record


def starts(folder: Path) -> int:
    """How often the session of a folder was begun: each start of its server, or each use of one that was running."""
    return len(list(folder.glob("server-*.json")))


def write_whole(path: Path, record: BaseModel) -> None:
    """The file is there whole or not at all."""
    partial = path.with_name(f".{path.name}.part")
    partial.write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)


def read_record(path: Path, kind: type[Record]) -> Record | None:
    """None where there is none, or only half of one."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
    except OSError as error:
        raise TargetError(f"{path} cannot be read: {error.strerror}") from None
