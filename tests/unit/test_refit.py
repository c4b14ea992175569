"""Which profile is fitted from which file of measured rows."""

from __future__ import annotations

import pytest

from hardware_profiles.model import load_model_card
from hardware_profiles.node import load_node
from planner import refit
from planner.refit import shipped_rows
from simulator.benchmark_rows import read_rows, select_rows


def test_the_name_of_a_file_says_what_its_profile_is_of() -> None:
    found = {rows.path.stem: rows for rows in shipped_rows()}
    plugin = found["mi355x-deepseek-r1-mxfp4-vllm_atom"]
    assert (plugin.node, plugin.model, plugin.precision, plugin.engine, plugin.variant) == (
        "mi355x",
        "deepseek-r1",
        "mxfp4",
        "vllm_atom",
        "",
    )
    assert plugin.profile == "mi355x/deepseek-r1-mxfp4-vllm_atom"
    assert found["mi355x-minimax-m3-fp8-mtp-ep8"].profile == "mi355x/minimax-m3-fp8-vllm-mtp-ep8"
    assert not [stem for stem in found if stem.endswith(("-earlier", "-all-reduce"))]


@pytest.mark.parametrize("rows", shipped_rows(), ids=lambda rows: rows.path.stem)
def test_every_row_of_a_file_belongs_to_its_profile(rows: refit.ShippedRows) -> None:
    read = read_rows(rows.path)
    chosen = select_rows(
        read,
        node=load_node(rows.node),
        card=load_model_card(rows.model),
        precision=rows.precision,
        engine=rows.engine,
        variant=rows.variant,
    )
    assert len(chosen) == sum(not row.special for row in read) > 10


def test_a_name_that_no_profile_has_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        refit.main(["h100/nothing-*"])
    assert ended.value.code == 2
    assert "h100/gpt-oss-120b-mxfp4-vllm" in capsys.readouterr().err
