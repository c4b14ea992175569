"""The wheel alone is enough: built without network, installed in an empty environment, run from another folder."""

import os
import subprocess
import sys
import time
import zipfile
from email import message_from_bytes
from pathlib import Path

import numpy
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("hardware_profiles", "simulator", "planner", "validator")
COMMANDS = {
    (): ("plan", "simulate", "capacity", "profile", "recipe", "schema"),
    ("profile",): ("list", "show", "fit", "check"),
    ("recipe",): ("export",),
}


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a plain shell would, without this process's PYTHON*, colours or terminal."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "FORCE_COLOR"))}
    env = inherited | {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "120"} | environment
    return subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=ROOT)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel in it; its dependencies are those of the running one, through a .pth file."""
    folder = tmp_path_factory.mktemp("environment")
    created = run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    assert created.returncode == 0, created.stderr
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", folder / "bin" / "python")
    installed = run(*pip, "install", "--no-deps", "--no-index", "--no-compile", wheel, cwd=folder)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    (site_packages,) = (folder / "lib").glob("python*/site-packages")
    # Packages found through a .pth line come after the environment's own, and .pth files among them are not followed:
    # an editable goodfleet in the running environment stays out of sight.
    (site_packages / "dependencies.pth").write_text(f"{Path(numpy.__file__).parents[1]}\n")
    return folder


def test_the_wheel_holds_all_code_and_data_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert held == wanted
    kinds = {(name.split("/")[1], Path(name).suffix) for name in held if name.startswith("hardware_profiles/")}
    assert {(folder, ".yaml") for folder in ("nodes", "models", "profiles", "prices")} <= kinds
    assert ("measurements", ".csv") in kinds


def test_the_wheel_says_its_version_licence_python_and_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = next(name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name)
        metadata = message_from_bytes(archive.read(f"{info}/METADATA"))
        scripts = archive.read(f"{info}/entry_points.txt").decode()
        assert f"{info}/licenses/LICENSE" in archive.namelist()
    assert (metadata["Name"], metadata["Version"]) == ("goodfleet", "0.1.0")
    assert (metadata["License-Expression"], metadata["Requires-Python"]) == ("Apache-2.0", ">=3.11")
    assert {"vllm", "ray", "kubernetes", "ui"} <= set(metadata.get_all("Provides-Extra", []))
    assert "goodfleet = validator.cli:app" in scripts


def test_the_installed_packages_are_the_wheels_own(environment: Path, tmp_path: Path) -> None:
    for package in PACKAGES:
        code = f"import {package}; print({package}.__file__)"
        found = run(environment / "bin" / "python", "-c", code, cwd=tmp_path)
        assert Path(found.stdout.strip()).is_relative_to(environment), found.stdout + found.stderr


@pytest.mark.parametrize("group", COMMANDS, ids=lambda group: " ".join(("goodfleet", *group)))
def test_help_names_every_command(group: tuple[str, ...], environment: Path, tmp_path: Path) -> None:
    shown = run(environment / "bin" / "goodfleet", *group, "--help", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    words = shown.stdout.split()
    assert [command for command in COMMANDS[group] if command not in words] == []


def test_profiles_are_listed_from_another_folder(environment: Path, tmp_path: Path) -> None:
    listed = run(environment / "bin" / "goodfleet", "profile", "list", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "mi355x/gpt-oss-120b-mxfp4-vllm" in listed.stdout
    assert list(tmp_path.iterdir()) == []


def test_planning_commands_import_neither_vllm_nor_torch(environment: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    trap.mkdir()
    for name in ("vllm", "torch"):
        (trap / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')\n")
    for arguments in (("--help",), ("profile", "list")):
        result = run(environment / "bin" / "goodfleet", *arguments, cwd=tmp_path, PYTHONPATH=str(trap))
        assert result.returncode == 0, result.stdout + result.stderr


def test_help_imports_nothing_heavy(environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = "import sys; sys.argv = ['goodfleet', '--help']\nfrom validator.cli import app\n"
    code += "try: app()\nexcept SystemExit: pass\nprint(*sys.modules)"
    shown = run(environment / "bin" / "python", "-c", code, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    heavy = {"numba", "numpy", "scipy", "pandas", "pyarrow", "optuna", "simpy"} & set(shown.stdout.split())
    assert heavy == set()
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        run(environment / "bin" / "goodfleet", "--help", cwd=tmp_path)
        seconds.append(time.perf_counter() - start)
    with capsys.disabled():
        print(f"\ngoodfleet --help: {min(seconds):.2f} s (aim: 0.5 s)")
