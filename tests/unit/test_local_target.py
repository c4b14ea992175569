"""Starting and ending a server on this machine, with a stand-in for vLLM."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simulator.flags import FlagValue
from validator.processes import boot_id, group_of, start_of, tree_of
from validator.targets import local
from validator.targets.local import AttachedTarget, LocalTarget, flag_arguments, stop_orphans
from validator.targets.server_facts import read_facts
from validator.targets.target import TargetError

STUB = (sys.executable, str(Path(__file__).parents[1] / "stub_vllm.py"))
FLAGS = {"tensor_parallel_size": 1, "max_num_seqs": 24}


def stub(folder: Path, wrong: str = "", **settings: float) -> LocalTarget:
    return LocalTarget(model="m", folder=folder, command=STUB, environment={"STUB_VLLM": wrong}, **settings)  # type: ignore[arg-type]


def hold(folder: Path, pid: int, start: int | None) -> None:
    (folder / "server.pid").write_text(f"{pid} {start} {boot_id()}\n")


def test_flags_become_arguments_in_vllms_spelling() -> None:
    flags: dict[str, FlagValue] = {
        "max_num_seqs": 64,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "kv_cache_dtype": "fp8",
    }
    given = ("--max-num-seqs", "64", "--enforce-eager", "--no-enable-prefix-caching", "--kv-cache-dtype", "fp8")
    assert flag_arguments(flags) == given


def test_a_server_that_ends_early_is_told_with_the_last_lines_of_its_log(tmp_path: Path) -> None:
    said = r"(?s)ended with 1 before it was ready.*no room for the weights"
    with pytest.raises(TargetError, match=said), stub(tmp_path, "refuses").running(FLAGS):
        pass


def test_a_server_that_never_gets_ready_is_given_up_and_stopped(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="not ready within 1 s"), stub(tmp_path, "deaf", ready_within_s=1).running({}):
        pass
    assert not (tmp_path / "server.pid").exists()


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    target = LocalTarget(model="m", folder=tmp_path, command=("no-such-vllm",))
    with pytest.raises(TargetError, match="no-such-vllm cannot be run"), target.running(FLAGS):
        pass


def test_a_server_deaf_to_sigterm_is_killed_after_the_grace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "STOP_GRACE_S", 0.5)
    with stub(tmp_path, "deaf to SIGTERM").running(FLAGS) as server:
        assert server.pid is not None
        pid = server.pid
    assert start_of(pid) is None


def test_every_start_has_a_log_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        with stub(tmp_path).running(FLAGS):
            pass
    assert sorted(path.name for path in tmp_path.glob("*.log")) == ["server-1.log", "server-2.log"]


def test_a_server_left_behind_by_a_killed_measurement_is_stopped_first(tmp_path: Path) -> None:
    orphan = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    hold(tmp_path, orphan.pid, start_of(orphan.pid))
    with stub(tmp_path).running(FLAGS):
        assert orphan.wait(5) == -signal.SIGTERM


def test_every_server_left_behind_in_a_folder_is_stopped_with_its_workers(tmp_path: Path) -> None:
    """The first process is gone; its worker holds the memory."""
    script = (
        "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid)"
    )
    leader = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    start = start_of(leader.pid)
    assert leader.stdout is not None
    worker = int(leader.stdout.readline())
    leader.stdout.close()
    leader.wait()
    assert group_of(leader.pid) == (worker,)
    folder = tmp_path / "tp1" / "session-2"
    folder.mkdir(parents=True)
    hold(folder, leader.pid, start)
    stop_orphans(tmp_path)
    assert start_of(worker) is None
    assert not (folder / "server.pid").exists()


def test_a_server_of_before_a_reboot_is_nobody(tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    (tmp_path / "server.pid").write_text(f"{stranger.pid} {start_of(stranger.pid)} another-boot\n")
    stop_orphans(tmp_path)
    assert stranger.poll() is None
    assert not (tmp_path / "server.pid").exists()
    stranger.kill()
    stranger.wait()


def test_a_second_interruption_does_not_stop_the_stopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = local._stop

    def interrupted(process: subprocess.Popen[bytes]) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        plain(process)

    monkeypatch.setattr(local, "_stop", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with stub(tmp_path).running(FLAGS) as server:
            pid = server.pid or 0
        assert start_of(pid) is None
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_pid_file_that_cannot_be_written_leaves_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def full(held: Path, pid: int) -> None:
        started.append(pid)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(local, "_hold", full)
    with pytest.raises(OSError, match="No space left"), stub(tmp_path).running(FLAGS):
        pass
    assert start_of(started[0]) is None


def test_a_process_that_got_the_number_of_a_dead_server_is_left_alone(tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    hold(tmp_path, stranger.pid, (start_of(stranger.pid) or 0) - 1)
    with stub(tmp_path).running(FLAGS):
        assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_a_process_and_what_descends_from_it_are_one_tree() -> None:
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    parent = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    deadline = time.monotonic() + 10
    while len(tree_of(parent.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(tree_of(parent.pid)) == 2
    os.killpg(parent.pid, signal.SIGKILL)
    parent.wait()
    assert tree_of(parent.pid) == ()


def test_without_development_endpoints_the_metrics_and_the_log_tell_what_they_can(tmp_path: Path) -> None:
    target = LocalTarget(model="m", folder=tmp_path, command=STUB, environment={"VLLM_SERVER_DEV_MODE": "0"})
    with target.running(FLAGS) as server:
        assert server.facts.flags["max_num_seqs"] == 24  # from the log
        from_metrics = read_facts(server.url, None)
    assert from_metrics.kv_cache_tokens == server.facts.kv_cache_tokens == 87_296
    assert from_metrics.flags["block_size"] == 128
    assert "max_num_seqs" not in from_metrics.flags


def test_a_running_server_that_contradicts_the_flags_is_refused(tmp_path: Path) -> None:
    with (
        stub(tmp_path).running(FLAGS) as server,
        pytest.raises(TargetError, match="tensor_parallel_size 1, not 2"),
        AttachedTarget(url=server.url).running({"tensor_parallel_size": 2}),
    ):
        pass


def test_an_address_where_no_vllm_answers_is_told(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(TargetError, match="health does not answer"), AttachedTarget(url=url).running({}):
            pass
