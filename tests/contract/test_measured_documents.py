"""Tables of measurements in the documentation are what their CSV files say."""

from pathlib import Path

from validator.open_loop_table import markdown

FOLDER = Path(__file__).parents[2] / "docs" / "methods" / "measured"


def test_every_open_loop_table_is_made_from_its_csv() -> None:
    tables = sorted(FOLDER.glob("*/open-loop.csv"))
    assert tables
    for path in tables:
        assert path.with_suffix(".md").read_text() == markdown(path), f"{path}: make measure-cpu writes the table"
