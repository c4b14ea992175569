"""The shipped nodes say what their sources say, and a node file of one's own is checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hardware_profiles
from hardware_profiles.errors import InputError
from hardware_profiles.node import list_nodes, load_node
from hardware_profiles.shipped import PACKAGE

GIB = 2**30


def test_the_nodes_shipped_are_the_six_promised() -> None:
    assert list_nodes() == ("b200", "h100", "h200", "mi300x", "mi325x", "mi355x")


@pytest.mark.parametrize("name", list_nodes())
def test_a_shipped_node_is_eight_gpus_and_every_number_has_a_dated_source(name: str) -> None:
    node = load_node(name)
    assert node.name == name
    assert node.gpus_per_server == 8
    assert {"hbm_bytes", "hbm_bytes_per_s", "flops", "link_bytes_per_s", "tdp_w"} <= set(node.sources)
    for source in node.sources.values():
        assert source.source and source.date is not None
    assert node.flops["fp8"] > node.flops["bf16"]


def test_the_mi355x_is_what_the_driver_reports_and_what_was_measured() -> None:
    node = load_node("mi355x")
    assert node.hbm_bytes / GIB == pytest.approx(287.98, abs=0.005)
    assert node.hbm_bytes_per_s == 8.0e12
    assert node.hbm_rate_bytes_per_s == 7.2e12
    assert node.flops == {"fp4": 10_066e12, "fp8": 5_033e12, "bf16": 2_516e12}
    assert node.measured_flops == {"fp8": 3.5e15}
    assert node.link_bytes_per_s == 76.8e9
    assert node.link_bytes_per_s * 7 == pytest.approx(node.scaleup_bytes_per_s, rel=0.001)
    assert (node.platform, node.scaleup_topology, node.tdp_w) == ("rocm", "full_mesh", 1400)


def test_without_a_measured_bandwidth_the_vendors_counts() -> None:
    node = load_node("h200")
    assert node.hbm_measured_bytes_per_s is None
    assert node.hbm_rate_bytes_per_s == 4.8e12


def test_gpus_without_four_bit_arithmetic_state_no_rate_for_it() -> None:
    assert "fp4" not in load_node("mi300x").flops
    assert "fp4" not in load_node("h100").flops
    assert "fp4" in load_node("b200").flops


def test_an_unknown_node_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match="unknown node 'mi35x'; did you mean `mi355x`") as caught:
        load_node("mi35x")
    assert "b200, h100, h200, mi300x, mi325x, mi355x" in str(caught.value)
    with pytest.raises(InputError, match="no such file"):
        load_node("./mi355x.yaml")


def own_node(folder: Path, old: str, new: str) -> Path:
    text = (PACKAGE / "nodes" / "mi355x.yaml").read_text(encoding="utf-8")
    assert old in text
    path = folder / "own.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


def test_a_file_of_ones_own_is_read_by_path_against_the_scenarios_folder(tmp_path: Path) -> None:
    own_node(tmp_path, "name: mi355x", "name: ours")
    assert load_node("./own.yaml", relative_to=tmp_path).name == "ours"
    with pytest.raises(InputError, match=r"to use the file of that name, write `./own.yaml`"):
        load_node("own.yaml", relative_to=tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("tdp_w: 1400", "tdp_w: -1", r":14: tdp_w: -1 is not allowed; it must be greater than 0"),
        ("tdp_w: 1400", "tdp_watts: 1400", r"unknown key `tdp_watts`; did you mean `tdp_w`\?"),
        ("  tdp_w:\n", "  tdp_ww:\n", "no source for tdp_w"),
        ("fp8: 5.033e+15", "fp8: .inf", "inf is not allowed; write a finite number"),
        ("fp8: 5.033e+15", "fp8: 0.0", "a rate must be greater than zero"),
        ("fp8: 5.033e+15", "fp9: 1.0", "fp9"),
        ("gpus_per_server: 8", "gpus_per_server: 0", "it must be at least 1"),
    ],
)
def test_a_wrong_node_file_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_node(own_node(tmp_path, old, new))


def test_the_package_offers_exactly_what_it_lists_and_imports_it_when_used() -> None:
    for name in hardware_profiles.__all__:
        assert getattr(hardware_profiles, name).__name__ == name
    assert sorted(hardware_profiles._MODULE_OF) == sorted(hardware_profiles.__all__)
    with pytest.raises(AttributeError):
        hardware_profiles.no_such_name  # noqa: B018
    code = "import sys, hardware_profiles.errors; sys.exit('pydantic' in sys.modules or 'yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=PACKAGE.parent).returncode == 0
