"""Profiles that could as well be true: coefficient sets drawn from what a fit left open.

Measured rows tell coefficients together, not one by one (a step that is longer by its floor or by its weights looks the
same), so they are drawn together, in logarithms. With C the covariance beside the profile, s its `interval_scale`, t
its `degree_interval_scale`, and r, d and x normal with mean 0:

    ln value = ln fitted + x                      cov(x) = s² C, all coefficients of all degrees at once
    every step time x exp(r)                      sd(r) = s residual_sd: the lack of fit, one factor for the whole draw
    ln value of a degree not measured = ln typical + (x_typical + d) t / s     sd(d) = s deviation_sd, by term

C is of ln(value) where the fit ended, but an efficiency must stay below 1 and `smooth_exponent` above 1. So these two
are drawn in the coordinate in which `coefficients.py` fits them: e = u / (1 + u^6)^(1/6) and p = 1 + u, with x divided
by d ln(value) / d ln(u). Small draws have the file's covariance, large ones bend away from the bound, as the fit's do.

Normals come from the seed alone, draw after draw: all configurations and degrees of a plan see the same draws, and the
first n of more draws are the n draws. Left out: that the fit's shape is not quite normal in the logarithms; the model's
form; the lack of fit of TTFT beyond its steps (`ttft_residual_sd`); the link's rate as an upper bound of all-reduce.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hardware_profiles.errors import InputError
from hardware_profiles.fit_evidence import Covariance, load_covariance
from hardware_profiles.profile import AllReduce, HardwareProfile, SharedTerms, TensorParallelTerms

__all__ = ["covariance_root", "draw_profiles", "refuse_broken_covariance"]

Floats = NDArray[np.float64]
Terms = TypeVar("Terms", SharedTerms, TensorParallelTerms, AllReduce)

ROUNDING = 1e-3
"""Files hold four digits, so eigenvalues down to minus this share of the largest are zeros; below it, it is no
covariance."""
DECIMALS = 10
"""Logarithms are cut here, so that the last bits of a linear-algebra library do not reach a plan."""
FURTHEST = 5.0
"""No coefficient moves by more than e^5: the widest prior of a fit has a standard deviation of 1 and ends at 5."""
LARGEST_EXPONENT = 64.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moves:
    """One draw, in logarithms."""

    by_path: Mapping[str, float]
    """x of each coefficient, by its path in the profile's file."""
    residual: float
    deviations: Mapping[int, Mapping[str, float]]
    """d of each term, by degree that was not measured."""

    def of(self, part: str) -> dict[str, float]:
        """x by field of one part of the file."""
        return {path.removeprefix(part): x for path, x in self.by_path.items() if path.startswith(part)}


def draw_profiles(
    profile: HardwareProfile,
    covariance: Covariance | None,
    *,
    draws: int,
    seed: np.random.SeedSequence | int,
    degrees: Sequence[int] = (),
) -> tuple[HardwareProfile, ...]:
    """As many profiles as `draws`; without a covariance they differ by the common residual alone.

    `degrees` that were not measured get `typical` terms and a deviation of their own. A degree above 1 must have an
    all-reduce curve.
    """
    unmeasured = [degree for degree in degrees if degree not in profile.tensor_parallel]
    for degree in unmeasured:
        if profile.typical is None or (degree > 1 and degree not in profile.all_reduce):
            missing = "typical" if profile.typical is None else f"all_reduce.{degree}"
            raise InputError(
                f"TP {degree} was not measured and cannot be drawn without {missing}; measured are TP "
                f"{', '.join(map(str, profile.tensor_parallel))}",
                file=str(profile.path),
            )
    terms: tuple[str, ...] = ()
    root = np.zeros((0, 0))
    if covariance is not None:
        _refuse_unknown_terms(profile, covariance)
        terms, root = covariance.terms, covariance_root(covariance, file=_file_of(profile))
    pooled = sorted(profile.deviation_sd)
    columns = 1 + len(terms) + len(unmeasured) * len(pooled)
    normals = np.random.default_rng(seed).standard_normal((draws, columns)) * profile.interval_scale
    known = np.round(normals[:, 1 : 1 + len(terms)] @ root, DECIMALS)
    sds = np.tile([profile.deviation_sd[name] for name in pooled], len(unmeasured))
    sds = sds * (profile.degree_interval_scale / profile.interval_scale)
    own = np.round(normals[:, 1 + len(terms) :] * sds, DECIMALS).reshape(draws, len(unmeasured), len(pooled))
    residuals = np.round(normals[:, 0] * profile.residual_sd, DECIMALS)
    return tuple(
        _drawn(
            profile,
            _Moves(
                by_path=dict(zip(terms, known[i].tolist(), strict=True)),
                residual=float(residuals[i]),
                deviations={
                    degree: dict(zip(pooled, own[i, j].tolist(), strict=True)) for j, degree in enumerate(unmeasured)
                },
            ),
        )
        for i in range(draws)
    )


def covariance_root(covariance: Covariance, *, file: str | None = None) -> Floats:
    """The symmetric R with R R = C: normals times R have the covariance C.

    C may be singular, as where a profile's terms are functions of fewer unknowns. Of all roots the symmetric one does
    not depend on the signs and the order in which a library returns eigenvectors.
    """
    count = len(covariance.terms)
    if len(covariance.matrix) != count or any(len(row) != count for row in covariance.matrix):
        raise InputError(f"the matrix must have {count} rows of {count} numbers, one per term; fit anew", file=file)
    matrix = np.array(covariance.matrix, dtype=np.float64).reshape(count, count)
    if not bool(np.isfinite(matrix).all()) or not np.allclose(matrix, matrix.T, rtol=1e-3, atol=1e-9):
        raise InputError("a covariance is symmetric and finite; fit the profile anew", file=file)
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    if count and values[0] < -ROUNDING * values[-1]:
        raise InputError(
            f"not a covariance: its smallest eigenvalue is {values[0]:.3g}, its largest {values[-1]:.3g}, and none may "
            "be negative; fit the profile anew",
            file=file,
        )
    return np.asarray((vectors * np.sqrt(np.clip(values, 0.0, None))) @ vectors.T)


def refuse_broken_covariance(profile: HardwareProfile) -> None:
    """A covariance beside a profile from which nothing could be drawn, told before a search of minutes needs it."""
    covariance = load_covariance(profile)
    if covariance is not None:
        _refuse_unknown_terms(profile, covariance)
        covariance_root(covariance, file=_file_of(profile))


def _file_of(profile: HardwareProfile) -> str:
    return str(profile.path.with_suffix(".covariance.csv"))


def _refuse_unknown_terms(profile: HardwareProfile, covariance: Covariance) -> None:
    """Every term must be a number of the profile: one that is not would silently be taken as exact."""
    parts: dict[str, object] = {"shared.": profile.shared, "typical.": profile.typical}
    parts |= {f"all_reduce.{degree}.": curve for degree, curve in profile.all_reduce.items()}
    parts |= {f"tensor_parallel.{degree}.": terms for degree, terms in profile.tensor_parallel.items()}
    for term in covariance.terms:
        part = term[: term.rfind(".") + 1]
        value = getattr(parts.get(part), term.removeprefix(part), None)
        if not isinstance(value, float):
            raise InputError(
                f"{term} is not a number of {profile.name}; profile and covariance must come from one fit",
                file=_file_of(profile),
            )


def _drawn(profile: HardwareProfile, moves: _Moves) -> HardwareProfile:
    tensor_parallel = {
        degree: _moved(terms, moves.of(f"tensor_parallel.{degree}."))
        for degree, terms in profile.tensor_parallel.items()
    }
    all_reduce = {
        degree: _moved(curve, moves.of(f"all_reduce.{degree}.")) for degree, curve in profile.all_reduce.items()
    }
    typical_moves = moves.of("typical.")
    for degree, deviation in moves.deviations.items():
        assert profile.typical is not None  # asked for above
        names = TensorParallelTerms.model_fields
        wider = profile.degree_interval_scale / profile.interval_scale
        both = {name: wider * typical_moves.get(name, 0.0) for name in names}
        tensor_parallel[degree] = _moved(profile.typical, both, deviation)
        if degree in all_reduce:
            large = deviation.get("large_share", 0.0)
            all_reduce[degree] = _moved(all_reduce[degree], {"large_bytes_per_s": large})
    return replace(
        profile,
        shared=_moved(profile.shared, moves.of("shared.")),
        tensor_parallel=dict(sorted(tensor_parallel.items())),
        all_reduce=all_reduce,
        typical=_moved(profile.typical, typical_moves) if profile.typical is not None else None,
        step_factor=math.exp(moves.residual),
    )


def _moved(terms: Terms, moves: Mapping[str, float], deviation: Mapping[str, float] | None = None) -> Terms:
    """A set of terms with each moved by x, and by d in the fit's own coordinate (which d is given in)."""
    deviation = deviation or {}
    values = {name: _value(name, float(getattr(terms, name)), x, deviation.get(name, 0.0)) for name, x in moves.items()}
    return terms.model_copy(update=values)


def _value(name: str, value: float, x: float, d: float) -> float:
    """One coefficient moved by x in ln(value) and d in ln(u); the two are the same but near a bound."""
    if name.endswith("_efficiency"):
        slope = 1.0 - value**6  # d ln(e) / d ln(u)
        if slope <= 0.0:
            return value
        log_u = math.log(value) - math.log(slope) / 6 + _cut(x / slope + d)
        return math.exp(-float(np.logaddexp(0.0, -6.0 * log_u)) / 6)
    if name == "smooth_exponent":
        above = value - 1.0
        return min(1.0 + above * math.exp(_cut(x * value / above + d)), LARGEST_EXPONENT) if above > 0 else value
    return value * math.exp(_cut(x + d))


def _cut(move: float) -> float:
    return max(-FURTHEST, min(FURTHEST, move))
