"""vLLM on the CPUs of this machine, measured, fitted, predicted and measured again: the whole of `profile measure`.

    python -m tests.hardware.measure_cpu OUT [--publish FOLDER]

`make measure-cpu` runs it on a quiet machine and publishes what docs/methods/measured/cpu holds. It needs a vLLM
environment (`tests/vllm`), two cores, 6 GB of memory and about 20 minutes. What was left unfinished or others disturbed
is made again, three times at most and by the same command later; the table is published once every stream has a session
that counts. The model has random weights: how long a step takes does not depend on them.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from tests.differential.vllm_traces import vllm_python
from validator.open_loop_table import markdown

__all__ = ["CpuBench", "disturbed", "replay_troubles", "rows_of"]

REPOSITORY = Path(__file__).parents[2]
SERVER_FLAGS = (
    "--load-format dummy --dtype bfloat16 --max-model-len 2048 --max-num-seqs 32 --max-num-batched-tokens 512 "
    "--enforce-eager"
)
FULL = (
    *("--shapes", "256/32,32/128", "--concurrency", "1,2,4,8,16,32", "--waves", "5", "--repeats", "2"),
    *("--open-loop", "0.5,0.7,0.9", "--mix", "128/64", "--open-loop-seconds", "60", "--open-loop-sessions", "2"),
)
ATTEMPTS = 3
PUBLISHED = ("open-loop.csv", "measured.csv", "runs.csv", "profile.yaml", "profile.residuals.csv")


class CpuBench:
    """A folder with a small model and a node file of this machine's cores; state: what was measured there so far."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder = folder
        self._python = python
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "tiny-llama" / "config.json").exists():
            self._script("make_model.py", folder / "tiny-llama")
        if not (folder / "cpu.yaml").exists():
            self._script("machine_rates.py", folder / "rates.json")
            (folder / "cpu.yaml").write_text(node_text(json.loads((folder / "rates.json").read_text())))

    def measure(
        self,
        *options: str,
        out: str = "measured",
        environment: Mapping[str, str] | None = None,
        shown: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run `goodfleet profile measure`, which goes on with what `out` holds. No path of this machine is in it.

        What it says is returned, or shown as it comes.
        """
        words = ("profile", "measure", "./tiny-llama", "--node", "./cpu.yaml", "--flags", SERVER_FLAGS, "--out", out)
        return subprocess.run(
            (sys.executable, "-c", "from validator.cli import app; app()", *words, *options),
            cwd=self.folder,
            env=self._environment() | {"COLUMNS": "140"} | dict(environment or {}),
            stdout=None if shown else subprocess.PIPE,
            stderr=None if shown else subprocess.STDOUT,
            text=True,
        )

    def _script(self, name: str, out: Path) -> None:
        script = REPOSITORY / "tests" / "vllm" / name
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        subprocess.run((str(self._python), str(script), str(out)), check=True, env=environment)

    def _environment(self) -> dict[str, str]:
        return os.environ | {
            "PATH": f"{self._python.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
        }


def node_text(rates: Mapping[str, float]) -> str:
    """A node whose "GPU" is one core of this machine, with the rates that one core was seen to reach."""
    measured = f"{{source: tests/vllm/machine_rates.py, date: {datetime.now(UTC):%Y-%m-%d}, how_known: measured}}"
    assumed = measured.replace("measured}", "assumed}")
    cores = os.cpu_count() or 1
    return f"""\
name: cpu
gpu: one core of {processor()}
platform: cpu
gpus_per_server: {cores}
hbm_bytes: {int(rates["memory_bytes"]) // cores}
hbm_bytes_per_s: {rates["bytes_per_s"]:.4e}
flops: {{bf16: {rates["bf16_flops"]:.4e}}}
scaleup_bytes_per_s: {rates["bytes_per_s"]:.4e}
scaleup_topology: switched
tdp_w: 100
sources:
  gpus_per_server: {measured}
  hbm_bytes: {measured}
  hbm_bytes_per_s: {measured}
  flops: {measured}
  scaleup_bytes_per_s: {measured}
  scaleup_topology: {assumed}
  tdp_w: {assumed}
"""


def processor() -> str:
    """The processor's name, as far as the kernel tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV with `#` lines; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def disturbed(out: Path) -> list[str]:
    """Why runs of the sweep do not count."""
    return [
        f"session {row['session']}, {row['isl']}/{row['osl']}, {row['max_concurrency']} in flight: {row['invalid']}"
        for row in rows_of(out / "runs.csv")
        if row["invalid"]
    ]


def replay_troubles(out: Path) -> list[str]:
    """Why replays of the open loop do not count."""
    rows = rows_of(out / "open-loop" / "open-loop.csv")
    return list(dict.fromkeys(f"{row['load']}, {row['does_not_count']}" for row in rows if row["does_not_count"]))


def publish(out: Path, node: Path, folder: Path) -> None:
    """Copy what documents show, and write the table."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in PUBLISHED:
        held = out / "open-loop" / name
        shutil.copyfile(held if held.exists() else out / name, folder / name)
    shutil.copyfile(node, folder / "cpu.yaml")
    (folder / "open-loop.md").write_text(markdown(folder / "open-loop.csv"))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--publish", type=Path)
    given = parser.parse_args()
    python = vllm_python()
    if python is None:
        print("no vLLM environment; tests/vllm/README.md says how to make one", file=sys.stderr)
        return 1
    bench = CpuBench(given.out.resolve(), python)
    out = bench.folder / "measured"
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches the measurement, which stops its server and ends
    for _ in range(ATTEMPTS):
        done = bench.measure(*FULL, shown=True)
        rows = rows_of(out / "open-loop" / "open-loop.csv")
        if done.returncode not in (0, 1):
            return done.returncode
        if rows and not replay_troubles(out):
            break
    if not rows or any(row["sessions"] == "0" for row in rows):
        print("no table:", *(disturbed(out) or replay_troubles(out)), sep="\n  ", file=sys.stderr)
        return 1
    if given.publish is not None:
        publish(out, bench.folder / "cpu.yaml", given.publish)
    return 0


if __name__ == "__main__":
    sys.exit(main())
