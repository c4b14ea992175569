"""Drawn profiles: they scatter as the covariance says, stay possible, and are the same for the same seed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hardware_profiles.errors import InputError
from hardware_profiles.fit_evidence import Covariance, load_covariance
from hardware_profiles.model import load_model_card
from hardware_profiles.node import load_node
from hardware_profiles.profile import HardwareProfile, list_profiles, load_profile
from simulator.profile_draws import covariance_root, draw_profiles
from simulator.steptime import step_time_model

GPT_OSS = "mi355x/gpt-oss-120b-mxfp4-vllm"
MANY = 20_000
TWO = ("tensor_parallel.1.step_floor_s", "all_reduce.8.floor_s")


def profile() -> HardwareProfile:
    """A shipped profile; its interval factors are 1, so that draws have the covariance of the file."""
    return replace(load_profile(GPT_OSS), interval_scale=1.0, degree_interval_scale=1.0)


def value_of(drawn: HardwareProfile, path: str) -> float:
    part, *middle, name = path.split(".")
    terms = getattr(drawn, part)
    return float(getattr(terms[int(middle[0])] if middle else terms, name))


def logs_of(drawn: tuple[HardwareProfile, ...], terms: tuple[str, ...]) -> np.ndarray:
    return np.log([[value_of(one, term) for term in terms] for one in drawn])


def two_terms(sd: float, correlation: float) -> Covariance:
    cross = correlation * sd * sd
    return Covariance(terms=TWO, matrix=((sd * sd, cross), (cross, sd * sd)))


@pytest.mark.parametrize("name", list_profiles())
def test_the_root_of_a_shipped_covariance_gives_the_file_back(name: str) -> None:
    covariance = load_covariance(load_profile(name))
    assert covariance is not None
    matrix, root = np.array(covariance.matrix), covariance_root(covariance)
    assert root @ root == pytest.approx(matrix, abs=1e-4 * np.diag(matrix).max())
    logs = np.random.default_rng(5).standard_normal((MANY, len(matrix))) @ root
    error = np.sqrt((np.outer(np.diag(matrix), np.diag(matrix)) + matrix**2) / MANY)  # of a sample covariance
    assert np.all(np.abs(np.cov(logs.T) - matrix) <= 5 * error + 1e-7)


def test_drawn_coefficients_have_the_covariance_of_the_file() -> None:
    full = load_covariance(profile())
    assert full is not None
    # Terms without a bound near by: those bend away from it on purpose.
    kept = [i for i, t in enumerate(full.terms) if "efficiency" not in t and "exponent" not in t and "8." in t]
    assert len(kept) == 5
    terms = tuple(full.terms[i] for i in kept)
    matrix = np.array(full.matrix)[np.ix_(kept, kept)]
    logs = logs_of(draw_profiles(profile(), full, draws=4_000, seed=3), terms)
    error = np.sqrt((np.outer(np.diag(matrix), np.diag(matrix)) + matrix**2) / 4_000)
    assert np.all(np.abs(np.cov(logs.T) - matrix) <= 5 * error)
    fitted = np.log([value_of(profile(), term) for term in terms])
    assert logs.mean(axis=0) == pytest.approx(fitted, abs=5 * np.sqrt(np.diag(matrix).max() / 4_000))


def test_small_draws_of_bounded_terms_have_the_covariance_of_the_file_too() -> None:
    terms = ("tensor_parallel.1.kv_efficiency", "shared.smooth_exponent")
    sd = 1e-3
    covariance = Covariance(terms=terms, matrix=((sd**2, 0.5 * sd**2), (0.5 * sd**2, sd**2)))
    logs = logs_of(draw_profiles(profile(), covariance, draws=4_000, seed=3), terms)
    assert np.std(logs, axis=0) == pytest.approx([sd, sd], rel=0.05)
    assert np.corrcoef(logs.T)[0, 1] == pytest.approx(0.5, abs=0.05)


def test_efficiencies_stay_below_1_and_the_exponent_above_1_however_little_is_known() -> None:
    full = load_covariance(profile())
    assert full is not None
    wide = replace(profile(), interval_scale=10.0)
    for one in draw_profiles(wide, full, draws=300, seed=1):
        assert 1.0 <= one.shared.smooth_exponent <= 64.0
        for terms in one.tensor_parallel.values():
            assert all(0 < v <= 1 for name, v in terms if name.endswith("efficiency"))
            assert all(v > 0 for _, v in terms)


def test_an_efficiency_of_1_and_an_exponent_of_1_stay_where_they_are() -> None:
    known = profile()
    terms = known.tensor_parallel[1].model_copy(update={"kv_efficiency": 1.0})
    edge = replace(
        known,
        tensor_parallel={1: terms},
        shared=known.shared.model_copy(update={"smooth_exponent": 1.0}),
    )
    names = ("tensor_parallel.1.kv_efficiency", "shared.smooth_exponent")
    drawn = draw_profiles(edge, Covariance(terms=names, matrix=((0.01, 0.0), (0.0, 0.01))), draws=20, seed=1)
    assert np.all(logs_of(drawn, names) == 0.0)


def test_terms_that_are_one_unknown_move_as_one() -> None:
    drawn = draw_profiles(profile(), two_terms(0.1, 1.0), draws=200, seed=4)  # a singular matrix
    logs = logs_of(drawn, TWO) - np.log([value_of(profile(), term) for term in TWO])
    assert logs[:, 0] == pytest.approx(logs[:, 1], abs=1e-8)
    assert np.std(logs[:, 0]) == pytest.approx(0.1, rel=0.15)


def test_eigenvalues_below_zero_by_rounding_are_zeros_and_others_are_refused() -> None:
    root = covariance_root(two_terms(0.1, 1.0002))
    assert root @ root == pytest.approx(np.full((2, 2), 0.01), rel=1e-3)
    with pytest.raises(InputError, match="not a covariance"):
        covariance_root(two_terms(0.1, 1.5))


@pytest.mark.parametrize(
    ("matrix", "rule"),
    [
        (((0.01, 0.0),), "2 rows of 2 numbers"),
        (((0.01, float("nan")), (0.0, 0.01)), "symmetric and finite"),
        (((0.01, 0.005), (0.0, 0.01)), "symmetric and finite"),
    ],
)
def test_what_is_not_a_covariance_is_refused(matrix: tuple[tuple[float, ...], ...], rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        draw_profiles(profile(), Covariance(terms=TWO, matrix=matrix), draws=2, seed=1)


@pytest.mark.parametrize("term", ["tensor_parallel.3.kv_efficiency", "shared.nothing", "step_floor_s", "errors.tpot"])
def test_a_term_that_the_profile_does_not_hold_is_refused_by_name(term: str) -> None:
    with pytest.raises(InputError, match=term):
        draw_profiles(profile(), Covariance(terms=(term,), matrix=((0.01,),)), draws=2, seed=1)


def test_equal_seeds_give_equal_draws_and_more_draws_begin_with_the_fewer() -> None:
    covariance = load_covariance(profile())
    seed = np.random.SeedSequence(7)
    first = draw_profiles(profile(), covariance, draws=8, seed=seed)
    assert draw_profiles(profile(), covariance, draws=8, seed=seed) == first
    assert draw_profiles(profile(), covariance, draws=16, seed=seed)[:8] == first
    assert draw_profiles(profile(), covariance, draws=8, seed=8) != first


def test_one_draw_is_a_fast_or_slow_machine_at_every_degree() -> None:
    """Degrees share what the fit knows of them together, so choices between them are not made of noise."""
    full = load_covariance(profile())
    assert full is not None
    node, card = load_node("mi355x"), load_model_card("gpt-oss-120b")
    drawn = draw_profiles(profile(), full, draws=100, seed=2)

    def decode_s(one: HardwareProfile, degree: int) -> float:
        model = step_time_model(one, node=node, card=card, tensor_parallel_size=degree, max_tokens=128)
        return float(model.decode_s[64])

    logs = np.log([[decode_s(one, degree) for degree in (1, 8)] for one in drawn])
    assert np.corrcoef(logs.T)[0, 1] > 0.3


def test_without_a_covariance_only_the_common_residual_is_drawn() -> None:
    drawn = draw_profiles(profile(), None, draws=4_000, seed=1)
    assert all(one.tensor_parallel == profile().tensor_parallel and one.shared == profile().shared for one in drawn[:9])
    factors = np.log([one.step_factor for one in drawn])
    assert np.std(factors) == pytest.approx(profile().residual_sd, rel=0.05)
    assert np.mean(factors) == pytest.approx(0.0, abs=5 * profile().residual_sd / np.sqrt(4_000))


def test_a_drawn_step_factor_stretches_every_step() -> None:
    node, card = load_node("mi355x"), load_model_card("gpt-oss-120b")
    plain, slow = (
        step_time_model(one, node=node, card=card, tensor_parallel_size=8, max_tokens=64)
        for one in (profile(), replace(profile(), step_factor=1.25))
    )
    assert slow.decode_s == pytest.approx(1.25 * plain.decode_s)
    assert slow.kv_s == pytest.approx(1.25 * plain.kv_s)
    assert slow.request_overhead_s == plain.request_overhead_s


def test_the_interval_scale_widens_every_part() -> None:
    known = profile()
    covariance = two_terms(0.02, 0.3)
    wide = replace(known, interval_scale=3.0)
    one, three = (logs_of(draw_profiles(p, covariance, draws=50, seed=1), TWO) for p in (known, wide))
    fitted = np.log([value_of(known, term) for term in TWO])
    assert three - fitted == pytest.approx(3 * (one - fitted), abs=1e-8)
    one_factor, three_factor = (draw_profiles(p, covariance, draws=1, seed=1)[0].step_factor for p in (known, wide))
    assert np.log(three_factor) == pytest.approx(3 * np.log(one_factor))


def without_degree(degree: int) -> tuple[HardwareProfile, Covariance]:
    """The profile as if a degree had not been measured; its all-reduce stays known."""
    known, full = profile(), load_covariance(profile())
    assert full is not None
    kept = [i for i, term in enumerate(full.terms) if f".{degree}." not in term]
    matrix = np.array(full.matrix)[np.ix_(kept, kept)]
    others = {d: t for d, t in known.tensor_parallel.items() if d != degree}
    fewer = replace(known, tensor_parallel=others)
    return fewer, Covariance(terms=tuple(full.terms[i] for i in kept), matrix=tuple(map(tuple, matrix.tolist())))


def test_a_degree_that_was_not_measured_is_drawn_wider_than_one_that_was() -> None:
    fewer, covariance = without_degree(8)
    drawn = draw_profiles(fewer, covariance, draws=2_000, seed=1, degrees=(4, 8))
    typical = logs_of(drawn, ("typical.step_floor_s",))[:, 0]
    measured = logs_of(drawn, ("tensor_parallel.4.step_floor_s",))[:, 0]
    unmeasured = logs_of(drawn, ("tensor_parallel.8.step_floor_s",))[:, 0]
    assert np.std(unmeasured) > 2 * np.std(measured)
    assert np.std(unmeasured - typical) == pytest.approx(fewer.deviation_sd["step_floor_s"], rel=0.1)
    large = logs_of(drawn, ("all_reduce.8.large_bytes_per_s",))[:, 0]
    assert np.std(large) == pytest.approx(fewer.deviation_sd["large_share"], rel=0.1)
    assert all(one.tensor_parallel[8].kv_efficiency <= 1 for one in drawn)


def test_a_degree_that_was_not_measured_has_a_factor_of_its_own() -> None:
    fewer, covariance = without_degree(8)
    names = ("tensor_parallel.8.step_floor_s", "tensor_parallel.4.step_floor_s", "all_reduce.8.large_bytes_per_s")
    narrow, wide = (
        logs_of(draw_profiles(one, covariance, draws=500, seed=1, degrees=(8,)), names)
        for one in (replace(fewer, degree_interval_scale=1.0), replace(fewer, degree_interval_scale=2.0))
    )
    assert np.std(wide, axis=0) == pytest.approx(np.array([2, 1, 2]) * np.std(narrow, axis=0))


def test_a_degree_that_cannot_be_drawn_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"TP 16 was not measured .* without all_reduce.16"):
        draw_profiles(profile(), None, draws=1, seed=1, degrees=(16,))
    fewer, _ = without_degree(1)
    with pytest.raises(InputError, match="without typical"):
        draw_profiles(replace(fewer, typical=None), None, draws=1, seed=1, degrees=(1,))
