"""The watch over a run: what strangers took of this machine, seen by /proc."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from validator import contention
from validator.contention import Contention, ContentionWatch, _Sample
from validator.processes import tree_of

SPIN = "import time; end = time.monotonic() + {}; exec('while time.monotonic() < end: pass')"
pytestmark = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="only Linux has /proc")


def start_stranger(script: str) -> int:
    """A process whose parent has ended, so it descends from nobody of ours."""
    launcher = "import subprocess as s, sys; print(s.Popen([sys.executable, '-c', sys.argv[1]], stdout=s.DEVNULL).pid)"
    done = subprocess.run([sys.executable, "-c", launcher, script], stdout=subprocess.PIPE, text=True)
    return int(done.stdout)


def watched(seconds: float) -> Contention | None:
    with ContentionWatch(os.getpid()) as watch:
        start_s = time.perf_counter()
        time.sleep(seconds)
        end_s = time.perf_counter()
    return watch.between(start_s, end_s)


def sample(at_s: float, waits: dict[int, float] | None = None, *, ours_s: float = 0.0, machine_s: float) -> _Sample:
    return _Sample(at_s=at_s, waited_s=waits or {}, ours_s=ours_s, machine_s=(machine_s, 0.0))


def watch_of(*samples: _Sample) -> ContentionWatch:
    watch = ContentionWatch(None)
    watch._samples = list(samples)
    return watch


def test_a_stranger_that_spins_is_seen_by_its_cpu_time() -> None:
    stranger = start_stranger(SPIN.format(4))
    assert stranger not in tree_of(os.getpid())
    found = watched(1.5)
    assert found is not None
    assert found.strangers > 0.3
    assert found.share > contention.LIMIT


def test_a_process_of_any_name_does_not_blind_the_watch() -> None:
    name = "open('/proc/self/comm', 'wb').write(bytes([255, 254, 41, 32])); import time; time.sleep(3)"
    stranger = start_stranger(name)
    deadline = time.monotonic() + 5
    comm = Path(f"/proc/{stranger}/comm")
    while not comm.read_bytes().startswith(b"\xff") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert comm.read_bytes().startswith(b"\xff")
    assert watched(0.7) is not None


def test_what_was_not_watched_near_both_ends_is_not_known() -> None:
    watch = watch_of(*(sample(0.5 * i, machine_s=0.1 * i) for i in range(21)))
    assert watch.between(0.0, 10.0) is not None
    assert watch.between(0.0, 10.9) is not None
    assert watch.between(0.0, 11.5) is None
    assert watch.between(-1.5, 10.0) is None


def test_a_process_that_began_and_ended_inside_a_run_waited_too() -> None:
    probe = [sample(5.0, {1: 0.0, 7: 1.0}, machine_s=5.0), sample(9.5, {1: 0.0, 7: 3.0}, machine_s=9.5)]
    found = watch_of(sample(0.0, {1: 0.0}, machine_s=0.0), *probe, sample(10.0, {1: 0.5}, machine_s=10.0))
    contended = found.between(0.0, 10.0)
    assert contended is not None
    assert contended.wait == pytest.approx(0.2)


def test_where_linux_tells_no_waits_the_strangers_share_of_all_cpus_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    found = watch_of(sample(0.0, machine_s=0.0), sample(10.0, ours_s=3.0, machine_s=9.0)).between(0.0, 10.0)
    assert found is not None
    assert found.wait == 0.0
    assert found.strangers == pytest.approx(0.6)
    assert found.share == pytest.approx(0.3)


def test_a_server_of_others_is_not_watched() -> None:
    with ContentionWatch(None) as watch:
        pass
    assert not watch.possible
    assert watch.between(0.0, 1.0) is None
