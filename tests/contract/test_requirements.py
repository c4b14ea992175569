"""The pinned development environment: the same files on every machine, wherever they are fetched from."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PINS = (ROOT / "requirements-dev.txt").read_text()
HASH = r" \\\n    --hash=sha256:[0-9a-f]{64}"
ENTRY = re.compile(rf"^(?P<name>[a-z0-9-]+)==(?P<version>\S+)(?:{HASH})+$", re.MULTILINE)
VERSIONS = {match["name"]: match["version"] for match in ENTRY.finditer(PINS)}


def test_every_pin_has_hashes_and_nothing_else_is_asked_of_pip() -> None:
    asked = [line for line in PINS.splitlines() if line and not line.startswith((" ", "#"))]
    assert len(asked) == len(VERSIONS) > 0


def test_pins_name_no_place_to_fetch_from() -> None:
    assert "//" not in PINS
    assert not re.search(r"index-url|find-links|trusted-host| @ ", PINS)


def test_pins_satisfy_what_the_project_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in project["dependencies"] + project["optional-dependencies"]["dev"]:
        wanted = Requirement(text)
        pinned = VERSIONS.get(canonicalize_name(wanted.name))
        assert pinned is not None and wanted.specifier.contains(pinned), f"{text} is pinned to {pinned}; run make lock"
