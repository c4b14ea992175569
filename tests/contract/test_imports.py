"""Which way data flows, which package may touch vllm, and that what is imported is declared."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("hardware_profiles", "simulator", "planner", "validator")
PART_OF = {"pydantic-core": "pydantic", "torch": "vllm"}
"Distributions that another one pins to its own release, so that declaring the other one is enough."
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def absolute_imports(package: str) -> Iterator[tuple[Path, str]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((path, alias.name.split(".")[0]) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                yield path, node.module.split(".")[0]


def distribution_names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower().replace("_", "-") for requirement in requirements}


def test_data_flows_one_way_and_only_validator_may_import_vllm_or_torch() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("hardware_profiles/bad.py", "import simulator"),
        ("simulator/bad.py", "from planner import bad"),
        ("planner/bad.py", "def late() -> None:\n    import validator"),
        ("planner/bad.py", "import torch"),
        ("simulator/bad.py", "from vllm.v1.core.sched import scheduler"),
    ],
)
def test_the_import_rules_see_a_wrong_import(module: str, statement: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
        (tmp_path / package / "bad.py").touch()
    assert lint_imports(tmp_path).returncode == 0
    (tmp_path / module).write_text(statement + "\n")
    result = lint_imports(tmp_path)
    assert result.returncode == 1
    assert "BROKEN" in result.stdout


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_what_it_is_or_what_it_offers(package: str) -> None:
    tree = ast.parse((ROOT / package / "__init__.py").read_text())
    assigned = {
        target.id
        for node in tree.body
        for target in (node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)])
        if isinstance(target, ast.Name)
    }
    assert ast.get_docstring(tree) or "__all__" in assigned


@pytest.mark.parametrize("package", PACKAGES)
def test_every_imported_package_is_declared(package: str) -> None:
    declared = distribution_names(PROJECT["dependencies"])
    if package == "validator":  # may import an extra inside the command that needs it
        for extra in PROJECT["optional-dependencies"].values():
            declared |= distribution_names(extra)
    provided_by = packages_distributions()
    for path, name in absolute_imports(package):
        if name in PACKAGES or name in sys.stdlib_module_names:
            continue
        owners = distribution_names(provided_by.get(name, [name]))
        declared_owners = {PART_OF.get(owner, owner) for owner in owners} & declared
        assert declared_owners, f"{path.relative_to(ROOT)} imports {name}, which pyproject.toml does not declare"
