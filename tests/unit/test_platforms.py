"""Which profile answers for a scenario: the shipped plain one, or what the user names."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hardware_profiles.errors import InputError
from hardware_profiles.profile import FOLDER, load_profile
from planner.extrapolation import other_engine
from planner.feasibility import Configuration
from planner.platforms import find_platforms
from planner.space import baseline_configuration
from simulator.hardware_check import load_model_and_nodes
from simulator.scenario import LoadedScenario, load_scenario

SCENARIO = """\
name: a
model: gpt-oss-120b
hardware: [mi355x]
workloads:
  chat:
    traffic: {rate_rps: 5}
    isl: 256
    osl: 64
    slo: {ttft_ms: 500}
"""
SHIPPED = FOLDER / "mi355x" / "gpt-oss-120b-mxfp4-vllm.yaml"


def scenario(tmp_path: Path, more: str, *, allow_other_engine: bool = False) -> LoadedScenario:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO + more, encoding="utf-8")
    return load_scenario(path, allow_other_engine=allow_other_engine)


def profile_named(loaded: LoadedScenario) -> str:
    card, nodes = load_model_and_nodes(loaded)
    (platform,) = find_platforms(loaded, card, nodes)
    return f"{platform.profile.name} {platform.profile.engine}"


def written(tmp_path: Path, name: str, engine: str) -> None:
    text = SHIPPED.read_text(encoding="utf-8").replace("engine: vllm\n", f"engine: {engine}\n")
    text = text.replace("gpt-oss-120b-mxfp4-vllm\n", f"gpt-oss-120b-mxfp4-{engine}\n")
    (tmp_path / name).write_text(text, encoding="utf-8")


def refusal(loaded: LoadedScenario) -> str:
    with pytest.raises(InputError) as raised:
        profile_named(loaded)
    return str(raised.value)


def test_without_a_name_the_plain_vllm_profile_answers(tmp_path: Path) -> None:
    assert profile_named(scenario(tmp_path, "")) == "mi355x/gpt-oss-120b-mxfp4-vllm vllm"


def test_a_profile_of_ones_own_is_read_beside_the_scenario(tmp_path: Path) -> None:
    shutil.copy(SHIPPED, tmp_path / "mine.yaml")
    loaded = scenario(tmp_path, "profiles: mine.yaml\n")
    card, nodes = load_model_and_nodes(loaded)
    (platform,) = find_platforms(loaded, card, nodes)
    assert platform.profile.path == tmp_path / "mine.yaml"


def test_another_engine_needs_the_users_word_and_says_so(tmp_path: Path) -> None:
    written(tmp_path, "other.yaml", "sglang")
    text = refusal(scenario(tmp_path, "profiles: [other.yaml]\n"))
    assert "s.yaml:10: profiles" in text
    assert "measured on sglang" in text and "--allow-other-engine" in text
    allowed = scenario(tmp_path, "profiles: [other.yaml]\n", allow_other_engine=True)
    assert profile_named(allowed) == "mi355x/gpt-oss-120b-mxfp4-sglang sglang"
    card, nodes = load_model_and_nodes(allowed)
    configuration = baseline_configuration(allowed.scenario, find_platforms(allowed, card, nodes)[0])
    assert isinstance(configuration, Configuration)
    assert "sglang" in (other_engine(configuration) or "")


def test_amds_build_of_vllm_has_vllms_scheduler_and_is_named_all_the_same(tmp_path: Path) -> None:
    written(tmp_path, "plugin.yaml", "vllm_atom")
    loaded = scenario(tmp_path, "profiles: [plugin.yaml]\n")
    assert profile_named(loaded) == "mi355x/gpt-oss-120b-mxfp4-vllm_atom vllm_atom"
    card, nodes = load_model_and_nodes(loaded)
    configuration = baseline_configuration(loaded.scenario, find_platforms(loaded, card, nodes)[0])
    assert isinstance(configuration, Configuration)
    assert "upstream vLLM is slower" in (other_engine(configuration) or "")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("profiles: [mi355x/llama-3.3-70b-fp8]\n", "was measured with llama-3.3-70b; the model here is gpt-oss-120b"),
        ("profiles: [none.yaml]\n", "s.yaml:10: profiles[0]: there is no profile file 'none.yaml'"),
        ("profiles: [../rows.csv]\n", "s.yaml:10: profiles[0]: ../rows.csv: is no .yaml file; name a profile"),
        ("profiles: [mi355x/gpts]\n", "s.yaml:10: profiles[0]: unknown profile 'mi355x/gpts'"),
        ("profiles: [mi355x/gpt-oss-120b, mi355x/gpt-oss-120b-mxfp4]\n", "both hold for mxfp4 on mi355x"),
    ],
)
def test_a_profile_that_does_not_belong_is_refused(tmp_path: Path, more: str, words: str) -> None:
    assert words in refusal(scenario(tmp_path, more))


def test_a_profile_of_a_node_nobody_asked_for_is_refused(tmp_path: Path) -> None:
    text = SHIPPED.read_text(encoding="utf-8").replace("node: mi355x\n", "node: h100\n")
    (tmp_path / "h100.yaml").write_text(text, encoding="utf-8")
    assert "which the scenario does not ask for" in refusal(scenario(tmp_path, "profiles: [h100.yaml]\n"))


def test_a_broken_covariance_is_refused_before_anything_is_searched(tmp_path: Path) -> None:
    written(tmp_path, "mine.yaml", "vllm")
    loaded = scenario(tmp_path, "profiles: mine.yaml\n")
    beside = tmp_path / "mine.covariance.csv"
    shipped = SHIPPED.with_suffix(".covariance.csv").read_text().splitlines()
    beside.write_text("\n".join(shipped[:-3]))
    assert "mine.covariance.csv: the matrix must have" in refusal(loaded)
    beside.write_text("\n".join([*shipped[:-1], shipped[-1][: shipped[-1].rindex(",")] + ",nan"]))
    assert f"mine.covariance.csv:{len(shipped)}: " in refusal(loaded)
    beside.write_text("\n".join([shipped[0].replace("weight_efficiency", "height", 1), *shipped[1:]]))
    assert "height is not a number of" in refusal(loaded)
    beside.write_text("\n".join(shipped))
    assert profile_named(loaded).endswith("vllm")


def test_a_list_without_a_name_gets_an_example_that_exists(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"list at least one, e\.g\. ") as raised:
        scenario(tmp_path, "profiles: []\n")
    example = str(raised.value).partition("e.g. [")[2].rstrip("]")
    assert load_profile(example).name == example


def test_a_mistake_in_a_models_folder_names_the_scenario_and_the_file(tmp_path: Path) -> None:
    loaded = scenario(tmp_path, "")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text('{"model_type": "llama"}')
    loaded.path.write_text(SCENARIO.replace("gpt-oss-120b", "./mine"))
    said = refusal(load_scenario(loaded.path))
    assert "s.yaml:2: model: " in said and "config.json: num_hidden_layers: missing" in said
    loaded.path.write_text(SCENARIO.replace("gpt-oss-120b", "mf"))
    assert "or give the path of a model folder, e.g. ./mf" in refusal(load_scenario(loaded.path))
