"""Profile names, prefixes and aliases; what a profile file must hold."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hardware_profiles import profile as profiles
from hardware_profiles.errors import InputError
from hardware_profiles.fit_evidence import COMPANIONS, load_covariance, load_held_out, load_residuals
from hardware_profiles.node import load_node
from hardware_profiles.profile import find_profile_name, list_profiles, load_profile
from hardware_profiles.profile_subject import node_and_card
from planner.refit import shipped_rows
from simulator.all_reduce_curve import link_bytes_per_s
from simulator.benchmark_rows import read_rows

GPT_OSS = "mi355x/gpt-oss-120b-mxfp4-vllm"
LLAMA_FP8 = "mi355x/llama-3.3-70b-fp8-vllm"
LLAMA_MXFP4 = "mi355x/llama-3.3-70b-mxfp4-vllm"


@pytest.mark.parametrize(
    ("name", "full"),
    [
        (GPT_OSS, GPT_OSS),
        ("mi355x/gpt-oss-120b", GPT_OSS),
        ("mi355x/gpt-oss-120b-mxfp4", GPT_OSS),
        ("mi355x/llama-3.3-70b-fp8", LLAMA_FP8),
        ("mi355x/llama-3.3-70b-mxfp4", LLAMA_MXFP4),
        ("mi355x/deepseek-r1-distill-llama-70b-fp8", LLAMA_FP8),
    ],
)
def test_a_prefix_that_ends_at_a_dash_names_one_profile(name: str, full: str) -> None:
    assert find_profile_name(name) == full
    assert load_profile(name).name == full


def test_an_ambiguous_prefix_lists_what_it_could_mean() -> None:
    with pytest.raises(InputError, match="ambiguous") as raised:
        find_profile_name("mi355x/llama-3.3-70b")
    assert LLAMA_FP8 in str(raised.value) and LLAMA_MXFP4 in str(raised.value)


@pytest.mark.parametrize("name", ["mi355x/gpt-oss-12", "mi355x", "gpt-oss-120b", "mi355x/nothing", ""])
def test_half_a_word_names_nothing_and_the_error_lists_what_ships(name: str) -> None:
    with pytest.raises(InputError, match=f"shipped: .*{GPT_OSS}"):
        find_profile_name(name)


def test_other_engines_and_variants_need_their_full_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = load_profile(GPT_OSS).path.read_text(encoding="utf-8")
    (tmp_path / "mi355x").mkdir()
    for stem in ("gpt-oss-120b-mxfp4-vllm", "gpt-oss-120b-mxfp4-vllm_atom", "gpt-oss-120b-mxfp4-vllm-mtp"):
        (tmp_path / "mi355x" / f"{stem}.yaml").write_text(shipped.replace(GPT_OSS, f"mi355x/{stem}"), encoding="utf-8")
    monkeypatch.setattr(profiles, "FOLDER", tmp_path)
    assert find_profile_name("mi355x/gpt-oss-120b") == GPT_OSS
    assert find_profile_name("mi355x/gpt-oss-120b-mxfp4-vllm_atom") == "mi355x/gpt-oss-120b-mxfp4-vllm_atom"
    assert find_profile_name("mi355x/gpt-oss-120b-mxfp4-vllm-mtp") == "mi355x/gpt-oss-120b-mxfp4-vllm-mtp"


@pytest.mark.parametrize("name", list_profiles())
def test_a_shipped_profile_says_where_it_comes_from_and_how_well_it_predicts(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.sources and profile.caveats and profile.command.startswith("goodfleet profile fit ")
    assert profile.assumed_flags["enable_prefix_caching"] is False
    assert set(profile.tensor_parallel) == set(profile.measured.tensor_parallel_size) <= {1, 2, 4, 8}
    left_out = {"in sample", "leave one concurrency out", "leave one shape out"}
    assert left_out <= set(profile.errors)
    assert ("leave one TP out" in profile.errors) == (len(profile.tensor_parallel) > 1)
    residuals = load_residuals(profile)
    assert len(residuals) == max(figures["tpot"].rows for figures in profile.errors.values())
    assert all(row.note for row in residuals if row.weight != 1)


@pytest.mark.parametrize("name", list_profiles())
def test_no_efficiency_sits_on_its_bound_and_no_link_carries_more_than_it_can(name: str) -> None:
    profile = load_profile(name)
    for terms in (*profile.tensor_parallel.values(), profile.typical):
        assert terms is not None
        for field, value in terms:
            if field.endswith("_efficiency"):
                assert 0 < value < 0.9995, field
    rows = next(rows for rows in shipped_rows() if rows.profile == name)
    bits = min(row.all_reduce_bits for row in read_rows(rows.path))  # large messages may be quantised
    for degree, curve in profile.all_reduce.items():
        assert curve.large_bytes_per_s <= link_bytes_per_s(load_node(profile.node), degree) * 16 / bits


@pytest.mark.parametrize("name", list_profiles())
def test_the_covariance_is_one_and_names_numbers_of_the_file(name: str) -> None:
    profile = load_profile(name)
    covariance = load_covariance(profile)
    assert covariance is not None
    size = len(covariance.terms)
    assert [len(row) for row in covariance.matrix] == [size] * size
    for i, path in enumerate(covariance.terms):
        assert covariance.matrix[i][i] > 0
        part: object = profile
        for word in path.split("."):
            part = part[int(word)] if isinstance(part, dict) else getattr(part, word)
        assert isinstance(part, float) and part > 0
        for j in range(i):
            assert covariance.matrix[i][j] == pytest.approx(covariance.matrix[j][i], rel=1e-3, abs=1e-9)


def test_a_profile_without_its_all_reduce_is_refused(tmp_path: Path) -> None:
    text = load_profile(GPT_OSS).path.read_text(encoding="utf-8")
    start, end = text.index("all_reduce:"), text.index("tensor_parallel:\n  1:")
    path = tmp_path / "profile.yaml"
    path.write_text(f"{text[:start]}all_reduce: {{}}\n{text[end:]}", encoding="utf-8")
    with pytest.raises(InputError, match="tensor_parallel 2 has no all_reduce entry"):
        load_profile(path)


def test_an_efficiency_above_one_is_refused_with_file_and_key(tmp_path: Path) -> None:
    text = load_profile(GPT_OSS).path.read_text(encoding="utf-8")
    path = tmp_path / "profile.yaml"
    path.write_text(text.replace("    kv_efficiency: 0.", "    kv_efficiency: 1.", 1), encoding="utf-8")
    with pytest.raises(InputError, match=r"profile.yaml:\d+: tensor_parallel.1.kv_efficiency"):
        load_profile(path)


def copied(folder: Path) -> Path:
    """A shipped profile and the files beside it, free to be broken."""
    shipped = load_profile(GPT_OSS).path
    for suffix in (".yaml", *COMPANIONS):
        shutil.copy(shipped.with_suffix(suffix), folder / f"profile{suffix}")
    return folder / "profile.yaml"


@pytest.mark.parametrize("suffix", COMPANIONS)
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ": the file is empty"),
        (b"a,b\nx,y\n", ":"),
        (b"a,b\n1\n", ":2: has 1 fields where the header has 2"),
        (b"caf\xe9\n", ": cannot be read: it is not UTF-8"),
        (b'a,"b\n', ":1: is no CSV"),
    ],
)
def test_a_broken_file_beside_a_profile_is_named_with_its_cure(
    tmp_path: Path, suffix: str, content: bytes, words: str
) -> None:
    path = copied(tmp_path)
    path.with_suffix(suffix).write_bytes(content)
    read = {".residuals.csv": load_residuals, ".held-out.csv": load_held_out, ".covariance.csv": load_covariance}
    with pytest.raises(InputError, match="fit the profile anew") as raised:
        read[suffix](load_profile(path))
    assert f"profile{suffix}{words}" in str(raised.value)


@pytest.mark.parametrize("value", ["fast", "", "nan", "-1", "inf"])
def test_a_residual_that_is_no_number_is_named_with_its_line(tmp_path: Path, value: str) -> None:
    path = copied(tmp_path)
    file = path.with_suffix(".residuals.csv")
    header, first, *rest = file.read_text().splitlines()
    cells = first.split(",")
    cells[header.split(",").index("measured_tpot_s")] = value
    file.write_text("\n".join([header, ",".join(cells), *rest]))
    with pytest.raises(InputError, match=r"profile.residuals.csv:2: measured_tpot_s: .*; fit the profile anew"):
        load_residuals(load_profile(path))


def test_a_path_that_is_no_yaml_file_is_no_unknown_name(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text("{}")
    for path in (file, tmp_path / "none"):
        with pytest.raises(InputError, match=f"{path}: is no .yaml file; name a profile"):
            load_profile(path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("as_of: '2026-07-18'", "as_of: 'yesterday'", r":9: as_of: 'yesterday' is no date; write YYYY-MM-DD"),
        ("  - 819\n  - 9216", "  - 9216\n  - 819", "measured.context: 9216 to 819 is no range"),
        (
            "concurrency:\n  - 4\n  - 128\n",
            "concurrency:\n  - -4\n  - 0\n",
            "measured.concurrency: -4 to 0 is no range",
        ),
        ("large_from_bytes: 8000000.0", "large_from_bytes: 1.0", "large_from_bytes 1 must be above to_bytes 3e"),
        ("  - 8\n  concurrency", "  - 8\n  - 16\n  concurrency", "tensor_parallel_size 16 has no entry under"),
        ("  - 8\n  concurrency", "  concurrency", "tensor_parallel 8 is not in measured.tensor_parallel_size"),
    ],
)
def test_a_profile_that_contradicts_itself_is_refused_with_file_and_key(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    path = copied(tmp_path)
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError, match=r"profile\.yaml") as raised:
        load_profile(path)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("node: mi355x", "node: mi999", "profile.yaml: node: unknown node 'mi999'"),
        ("model: gpt-oss-120b", "model: nope", "profile.yaml: model: unknown model 'nope'"),
        ("precision: mxfp4", "precision: fp99", "profile.yaml: precision: precision 'fp99' is not on the card"),
    ],
)
def test_a_name_in_a_profile_that_means_nothing_is_told_with_file_and_key(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    path = copied(tmp_path)
    path.write_text(path.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError) as raised:
        node_and_card(load_profile(path))
    assert words in str(raised.value)
