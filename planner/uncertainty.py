"""Whether a fleet meets its targets when the profile is wrong by its own error and the traffic falls otherwise.

Two things are not known: the coefficients of the machine, and which requests will come when. Each of `DRAWS` streams s
is played twice, with the fitted profile m0 and with one drawn from the fit's covariance (`simulator.profile_draws`):

    probability                     share of runs (m_i, s_i) in which every target holds
    probability of seeds alone      share of runs (m0, s_i): the profile taken as exact
    share of the profile            cov(D, Y) / var(Y),  Y_i = ln value(m_i, s_i),  D_i = Y_i - ln value(m0, s_i)

where the value is that of the target nearest to breaking. As Y is D plus the value of the exact profile, the shares of
the two add up to 1, and what they do only together (a slow machine suffers more from a burst) is split evenly. Draws
and streams are all different, so the runs are independent and their count is binomial: Clopper and Pearson's interval
("The use of confidence or fiducial limits", Biometrika 26, 1934). Requests inside one run are not; no interval here
counts them. A run judges a window of a certain length; longer windows scatter less by seed. Left out: what no fit
knows (`profile_draws.py`), and demand other than the scenario's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from hardware_profiles.fit_evidence import load_covariance
from hardware_profiles.profile import HardwareProfile
from planner.feasibility import Configuration
from planner.screen import Screen
from planner.sizing import Interval
from simulator.profile_draws import draw_profiles
from simulator.run import Routing
from simulator.score import Score
from simulator.steady import EndToEnd

__all__ = ["Chance", "Uncertainty", "share_of_profile", "uncertainty_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """A probability from independent runs."""

    met: int
    """Runs in which every target held."""
    runs: int

    @property
    def interval(self) -> Interval:
        """The share of runs that met, with its 95 % interval of Clopper and Pearson."""
        low = float(stats.beta.ppf(0.025, self.met, self.runs - self.met + 1)) if self.met else 0.0
        high = float(stats.beta.ppf(0.975, self.met + 1, self.runs - self.met)) if self.met < self.runs else 1.0
        return Interval(value=self.met / self.runs, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertainty:
    """How far one fleet's figures may be off, by the profile and by seeds."""

    coefficients_drawn: bool
    """False: the profile has no covariance, so only its common residual was drawn and the figures are too sure."""
    both: Chance
    seeds_alone: Chance
    workload: str
    target: str
    """Of this workload: the target nearest to breaking, whose spread is told apart."""
    limit_s: float
    drawn_s: tuple[float, ...]
    """Its value in each run with a drawn profile; infinite where too many never finished, NaN where nothing applies."""
    exact_s: tuple[float, ...]
    """The same on the same streams with the fitted profile."""
    window_s: float
    """Mean length of what a run judges."""

    @property
    def profile_share(self) -> Interval | None:
        """Share of the variance of the logarithm that is the profile's; None when all runs are alike."""
        return share_of_profile(self.exact_s, self.drawn_s)


def uncertainty_of(
    screen: Screen,
    configuration: Configuration,
    *,
    servers: int,
    load: float,
    routing: Routing,
    guess: EndToEnd,
    binding: tuple[str, str, float],
    streams: Sequence[np.random.SeedSequence],
    profile_seed: np.random.SeedSequence,
    progress: Callable[[int], None],
) -> Uncertainty:
    """Play every stream with the fitted profile and with a drawn one; `binding` is workload, target, limit in s.

    Streams and seed common to all finalists make their differences less a matter of luck.
    """
    fitted = configuration.platform.profile
    covariance = load_covariance(fitted)
    workload, target, limit_s = binding

    def play(stream: np.random.SeedSequence, profile: HardwareProfile | None = None) -> Score:
        run = screen.fleet_run(
            configuration,
            servers=servers,
            multiplier=load,
            seed=stream,
            routing=routing,
            profile=profile,
            guess=guess,
            certify=False,
        )
        return run.score

    exact: list[Score] = []
    drawn: list[Score] = []
    profiles = draw_profiles(fitted, covariance, draws=len(streams), seed=profile_seed)
    for i, (stream, profile) in enumerate(zip(streams, profiles, strict=True)):
        progress(i)
        exact.append(play(stream))
        drawn.append(play(stream, profile))
    return Uncertainty(
        coefficients_drawn=covariance is not None,
        both=Chance(met=sum(s.meets for s in drawn), runs=len(drawn)),
        seeds_alone=Chance(met=sum(s.meets for s in exact), runs=len(exact)),
        workload=workload,
        target=target,
        limit_s=limit_s,
        drawn_s=tuple(_value_s(s, workload, target) for s in drawn),
        exact_s=tuple(_value_s(s, workload, target) for s in exact),
        window_s=float(np.mean([s.window_s for s in (*exact, *drawn)])),
    )


def _value_s(score: Score, workload: str, target: str) -> float:
    pressures = score.workload(workload).pressures
    return next((p.value_s for p in pressures if p.target == target), float("nan"))


def share_of_profile(exact_s: Sequence[float], drawn_s: Sequence[float]) -> Interval | None:
    """cov(D, Y) / var(Y) over runs on the same streams, its 95 % interval from leaving one stream out (jackknife).

    Values without end count as the longest that ended. None when all runs are alike.
    """
    values = np.array([exact_s, drawn_s], dtype=np.float64)
    values = values[:, ~np.isnan(values).any(axis=0) & (values > 0).all(axis=0)]
    ended = values[np.isfinite(values)]
    count = values.shape[1]
    if count < 3 or len(ended) == 0:
        return None
    exact, drawn = np.log(np.minimum(values, ended.max()))
    shares = []
    for left_out in (None, *range(count)):
        kept = np.arange(count) != left_out if left_out is not None else np.ones(count, dtype=np.bool_)
        y = drawn[kept] - drawn[kept].mean()
        d = drawn[kept] - exact[kept]
        variance = float(y @ y)
        if variance < 1e-18 * count:  # one run of another length, and without it none
            return None
        shares.append(float((d - d.mean()) @ y) / variance)
    whole, rest = shares[0], np.array(shares[1:])
    error = float(np.sqrt((count - 1) / count * np.sum((rest - rest.mean()) ** 2)))
    half = float(stats.t.ppf(0.975, count - 1)) * error
    low, value, high = (min(1.0, max(0.0, s)) for s in (whole - half, whole, whole + half))
    return Interval(value=value, low=low, high=high)
