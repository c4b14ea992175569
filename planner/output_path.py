"""Where results go, checked before they are computed: no input is replaced, and no long run ends unwritten."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from hardware_profiles.errors import InputError
from hardware_profiles.fit_evidence import COMPANIONS
from simulator.scenario import LoadedScenario
from simulator.traffic import TraceTraffic

__all__ = ["files_in", "input_files", "profile_files", "refuse_input", "refuse_unwritable", "refuse_unwritable_folder"]


def input_files(loaded: LoadedScenario) -> tuple[Path, ...]:
    """The scenario and every file it names: traces, the price book, a model's card or folder."""
    scenario = loaded.scenario
    named = [scenario.model, *scenario.hardware, *([scenario.cost.prices] if scenario.cost is not None else [])]
    named += [w.traffic.trace for w in scenario.workloads.values() if isinstance(w.traffic, TraceTraffic)]
    found = [loaded.path, *(loaded.path.parent / name for name in named)]
    return tuple(path for path in found if path.is_file())


def profile_files(profile: Path) -> tuple[Path, ...]:
    """A profile and what a fit leaves beside it."""
    return (profile, *(profile.with_suffix(suffix) for suffix in COMPANIONS))


def files_in(paths: Iterable[Path]) -> list[Path]:
    """The files among some paths, and those in their folders."""
    return [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]


def refuse_input(path: Path, option: str, inputs: Iterable[Path]) -> None:
    """An output that would replace what it is made from, under whatever name or link."""
    for file in inputs:
        if path.exists() and path.samefile(file):
            raise InputError(f"{path} is an input of this command and would be overwritten; give {option} another path")


def refuse_unwritable(path: Path, option: str) -> None:
    """A file that could not be written when its content is known; its folder is made."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; {option} names a file")
    _refuse_unwritable_inside(path.parent, path, option)


def refuse_unwritable_folder(folder: Path, option: str) -> None:
    """A folder that cannot be made, or in which nothing can be written; folders that are not there yet are not made."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; {option} names a folder")
    nearest = next((above for above in (folder, *folder.parents) if above.exists()), Path())
    _refuse_unwritable_inside(nearest, folder, option)


def _refuse_unwritable_inside(folder: Path, path: Path, option: str) -> None:
    reason = next((f"{above} is a file" for above in (folder, *folder.parents) if above.is_file()), None)
    if reason is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return
        except OSError as error:
            reason = error.strerror
    raise InputError(f"{path} cannot be written ({reason}); give {option} another path")
