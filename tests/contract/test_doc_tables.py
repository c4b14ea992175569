"""Tables in the documentation are what their commands print; `make docs` writes them anew.

A block begins with `<!-- goodfleet … -->`, the command, and ends with `<!-- end -->`.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli import commands

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(<!-- goodfleet (?P<arguments>[^\n]+) -->\n).*?(?P<end>\n?<!-- end -->)", re.DOTALL)


def pages() -> list[Path]:
    """Every page that holds such a block."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if BLOCK.search(page.read_text(encoding="utf-8"))]


def refreshed(text: str) -> str:
    """The page with every block as its command prints it now."""
    return BLOCK.sub(lambda block: f"{block.group(1)}\n{_printed(block.group('arguments'))}\n<!-- end -->", text)


def _printed(arguments: str) -> str:
    found = CliRunner().invoke(commands, shlex.split(arguments), catch_exceptions=False)
    if found.exit_code != 0:
        raise RuntimeError(f"goodfleet {arguments}: exit code {found.exit_code}: {found.output}")
    return found.stdout


def test_the_calibration_page_has_tables_of_commands() -> None:
    assert ROOT / "docs" / "methods" / "calibration.md" in pages()


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_table_of_a_command_is_what_it_prints_now(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert refreshed(text) == text, "make docs writes the tables anew"


if __name__ == "__main__":
    for page in pages():
        page.write_text(refreshed(page.read_text(encoding="utf-8")), encoding="utf-8")
        print(page.relative_to(ROOT))
