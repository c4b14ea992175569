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
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from simulator.flags import FlagValue
from validator.processes import boot_id, group_of, start_of
from validator.targets.server_facts import read_facts
from validator.targets.target import RunningServer, TargetError

__all__ = ["AttachedTarget", "LocalTarget", "child_environment", "flag_arguments", "stop_orphans"]

POLL_S = 0.25
STOP_GRACE_S = 60.0
LAST_LINES = 25
HELD = "server.pid"
"""Number and start of the server that runs, and the boot of its machine; it outlives us only when we are killed."""


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
        held = self.folder / HELD
        _stop_orphan(held)
        port = free_port()
        place = ("--host", "127.0.0.1", "--port", str(port))
        command = (*self.command, "serve", self.model, *place, *flag_arguments(flags), *self.arguments)
        environment = child_environment() | {"VLLM_SERVER_DEV_MODE": "1"} | dict(self.environment)
        process: subprocess.Popen[bytes] | None = None
        try:
            process = _started(command, log, environment)
            _hold(held, process.pid)
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
            if process is not None:
                with _signals_ignored():
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


def stop_orphans(folder: Path) -> None:
    """Stop every server that a killed measurement of this folder, or of a folder in it, has left behind."""
    for held in sorted(folder.rglob(HELD)):
        _stop_orphan(held)


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


def _started(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as written:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise TargetError(f"{command[0]} cannot be run ({error.strerror}); --vllm names the command") from None


def _hold(held: Path, pid: int) -> None:
    """The file is there whole or not at all."""
    partial = held.with_name(f".{held.name}.part")
    partial.write_text(f"{pid} {start_of(pid)} {boot_id()}\n", encoding="utf-8")
    os.replace(partial, held)


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    """A second Ctrl-C must not leave half a server behind; only the main thread may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    was = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in was.items():
            signal.signal(number, handler)


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


def _stop_orphan(held: Path) -> None:
    """A server that an earlier, killed measurement left behind holds the memory that we need.

    Its first process may be gone and its workers not: they are of its session. The number of a dead server may be that
    of a stranger by now, who is left alone.
    """
    try:
        pid, start, *boot = held.read_text(encoding="utf-8").split()
        leader, ours = int(pid), start_of(int(pid)) in (int(start), None)
    except (OSError, ValueError):
        return
    if ours and boot == [boot_id()]:
        deadline = time.monotonic() + STOP_GRACE_S
        _send(signal.SIGTERM, group_of(leader))
        while group_of(leader) and time.monotonic() < deadline:
            time.sleep(0.1)
        _send(signal.SIGKILL, group_of(leader))
    held.unlink(missing_ok=True)


def _send(number: signal.Signals, pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
