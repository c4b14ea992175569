"""One vLLM server on this machine: started for a session and stopped after it, or attached to and left alone.

vLLM is a family of processes (API server, engine core, one worker per GPU); SIGTERM to the first ends all of them in
3-5 s. It is started in a process group of its own, so Ctrl-C reaches us and not it, and what has not gone after a grace
is killed by that group, never by name. Its development endpoints are on (VLLM_SERVER_DEV_MODE, loopback only), because
only they tell the flags in effect.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from simulator.flags import FlagValue
from validator.processes import start_of
from validator.targets.server_facts import read_facts
from validator.targets.target import RunningServer, TargetError

__all__ = ["AttachedTarget", "LocalTarget", "child_environment", "flag_arguments"]

POLL_S = 0.25
STOP_GRACE_S = 60.0
LAST_LINES = 25
HELD = "server.pid"
"""Number and start of the server that runs; it outlives us only when we are killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTarget:
    """Starts `vllm serve` on a free port of the loopback interface."""

    model: str
    """Model folder or hub name, as `vllm serve` takes it."""
    folder: Path
    """Where the servers' logs go: server-1.log and so on."""
    command: tuple[str, ...] = ("vllm",)
    """What runs vLLM's command line; `python -m …` of another environment will do."""
    arguments: tuple[str, ...] = ()
    """Further arguments of `vllm serve`, in vLLM's spelling."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables on top of this process's own."""
    ready_within_s: float = 1800.0

    @contextlib.contextmanager
    def running(self, flags: Mapping[str, FlagValue]) -> Iterator[RunningServer]:
        """Start, wait until it answers, read what it does; stop it on leaving, however that happens."""
        log = self._next_log()
        _stop_orphan(self.folder)
        port = free_port()
        place = ("--host", "127.0.0.1", "--port", str(port))
        command = (*self.command, "serve", self.model, *place, *flag_arguments(flags), *self.arguments)
        environment = child_environment() | {"VLLM_SERVER_DEV_MODE": "1"} | dict(self.environment)
        with log.open("wb") as written:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=written,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise TargetError(f"{command[0]} cannot be run ({error.strerror}); --vllm names the command") from None
        held = self.folder / HELD
        held.write_text(f"{process.pid} {start_of(process.pid)}\n", encoding="utf-8")
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(process, url, log, self.ready_within_s)
            yield RunningServer(
                url=url,
                facts=read_facts(url, log),
                pid=process.pid,
                log=log,
                command=shlex.join(command),
                fresh=True,
            )
        finally:
            _stop(process)
            held.unlink(missing_ok=True)

    def _next_log(self) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        number = 1 + len(list(self.folder.glob("server-*.log")))
        return self.folder / f"server-{number}.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedTarget:
    """A server that somebody else started: never stopped, and its flags are what they are."""

    url: str

    @contextlib.contextmanager
    def running(self, flags: Mapping[str, FlagValue]) -> Iterator[RunningServer]:
        """The server as it is; flags that it contradicts are a `TargetError`."""
        url = self.url.rstrip("/")
        if not _healthy(url):
            raise TargetError(f"{url}/health does not answer; --server names a running vLLM server")
        facts = read_facts(url, None)
        for name, value in flags.items():
            if facts.flags.get(name, value) != value:
                raise TargetError(f"{url} runs with {name} {facts.flags[name]}, not {value}")
        yield RunningServer(url=url, facts=facts, pid=None, log=None, command="", fresh=False)


def flag_arguments(flags: Mapping[str, FlagValue]) -> tuple[str, ...]:
    """Flags as arguments of `vllm serve`: `--max-num-seqs 64`, `--enforce-eager`, `--no-enable-prefix-caching`."""
    arguments: list[str] = []
    for name, value in flags.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{option}" if value else f"--no-{option}")
        else:
            arguments += [f"--{option}", str(value)]
    return tuple(arguments)


def child_environment() -> dict[str, str]:
    """This process's variables without those of its python: vLLM may live in another environment."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5.0) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not _healthy(url):
        if process.poll() is not None:
            raise TargetError(f"vLLM ended with {process.returncode} before it was ready; {_end_of(log)}")
        if time.monotonic() > deadline:
            raise TargetError(f"vLLM was not ready within {within_s:g} s; {_end_of(log)}")
        time.sleep(POLL_S)


def _end_of(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
    return "\n".join((f"the last lines of {log}:", *(f"  {line}" for line in lines)))


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the first process; after the grace, SIGKILL to what is left of its group."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_GRACE_S)
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline and _group_lives(process.pid):
        time.sleep(0.1)
        process.poll()
    if _group_lives(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _stop_orphan(folder: Path) -> None:
    """A server that an earlier, killed measurement of this folder left behind holds the memory that we need."""
    try:
        pid, start = (int(text) for text in (folder / HELD).read_text(encoding="utf-8").split())
    except (OSError, ValueError):
        return
    deadline = time.monotonic() + STOP_GRACE_S
    with contextlib.suppress(ProcessLookupError):
        if start_of(pid) == start:
            os.kill(pid, signal.SIGTERM)
        while start_of(pid) == start and time.monotonic() < deadline:
            time.sleep(0.1)
        if start_of(pid) == start:
            os.killpg(pid, signal.SIGKILL)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
