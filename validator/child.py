"""Runs a program of the vLLM environment to its end, in a process group of its own that never outlives us."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from validator.targets.local import child_environment
from validator.targets.target import TargetError

__all__ = ["last_lines", "run_child"]


def run_child(command: Sequence[str], log: Path, *, within_s: float | None = None) -> int | None:
    """The exit code, or None when it was killed after `within_s`; what it prints goes to `log`."""
    with log.open("wb") as written:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                env=child_environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise TargetError(f"{command[0]} cannot be run ({error.strerror}); --vllm names the command") from None
    try:
        return process.wait(within_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def last_lines(log: Path, count: int = 15) -> str:
    """The end of a log, indented."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-count:]
    return "\n".join(f"  {line}" for line in lines)
