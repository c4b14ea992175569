"""TP8 x 1 against TP4 x 2 and the like: published and derived pairs beside what the shipped profiles predict.

A pair is covered by a profile of its GPU, model, precision and engine, without variant, with both degrees and both
layouts plain replicas. A profile shipped later covers its pairs without a change here; the rest is named.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import pytest

from hardware_profiles.model import load_model_card, precision_name
from hardware_profiles.node import load_node
from hardware_profiles.profile import HardwareProfile, list_profiles, load_profile
from hardware_profiles.shipped import PACKAGE
from simulator.benchmark_rows import BenchmarkRow, read_rows, select_rows
from simulator.closed_loop import predict_rows

DATA = Path(__file__).parent / "data" / "tp-split-comparisons.csv"
LAYOUT = re.compile(r"TP(\d+) x(\d+)")
"""Plain replicas; published pairs add expert or data parallelism."""
MEDIAN, WORST = 0.15, 0.60
"""Largest error of a ratio: of a profile's median pair, of any pair. Rows are medians over different versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One group of GPUs cut in two ways, at the same number of requests in flight."""

    gpu: str
    model: str
    precision: str
    framework: str
    isl: int
    osl: int
    concurrency: int | None
    a: str
    b: str
    measured_ratio: float
    """Throughput of b over that of a."""

    @property
    def label(self) -> str:
        """What is named when no profile covers it."""
        return f"{self.gpu} {self.model} {self.precision} {self.framework}: {self.b} over {self.a}"


@lru_cache
def pairs() -> tuple[Pair, ...]:
    lines = [line for line in DATA.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return tuple(
        Pair(
            gpu=row["gpu"],
            model=row["model"],
            precision=row["precision"],
            framework=row["framework"],
            isl=int(row["isl"]),
            osl=int(row["osl"]),
            concurrency=int(row["total_concurrency"]) if row["total_concurrency"] else None,
            a=row["a"],
            b=row["b"],
            measured_ratio=float(row["ratio_b_over_a"]),
        )
        for row in csv.DictReader(lines)
    )


@lru_cache
@lru_cache
def plain_profiles() -> tuple[HardwareProfile, ...]:
    return tuple(profile for profile in map(load_profile, list_profiles()) if not profile.variant)


@lru_cache
def names_of(model: str) -> frozenset[str]:
    card = load_model_card(model)
    return frozenset(name.lower() for name in (card.name, *card.aliases))


@lru_cache
def covering(pair: Pair) -> HardwareProfile | None:
    layouts = [LAYOUT.fullmatch(text) for text in (pair.a, pair.b)]
    for profile in plain_profiles():
        if (
            pair.concurrency is not None
            and (profile.node, profile.engine) == (pair.gpu, pair.framework)
            and pair.model.lower() in names_of(profile.model)
            and precision_name(pair.precision) == profile.precision
            and all(found and int(found[1]) in profile.tensor_parallel for found in layouts)
        ):
            return profile
    return None


@lru_cache
def rows_of(name: str) -> tuple[BenchmarkRow, ...]:
    """The rows a profile was fitted from: their server flags are those of the pairs."""
    profile = load_profile(name)
    stem = name.replace("/", "-").removesuffix("-vllm")
    rows = read_rows(PACKAGE / "measurements" / f"{stem}.csv")
    card = load_model_card(profile.model)
    return select_rows(
        rows, node=load_node(profile.node), card=card, precision=profile.precision, engine=profile.engine
    )


def row_for(profile: HardwareProfile, pair: Pair, layout: str) -> tuple[BenchmarkRow, int]:
    """One replica's row, and how many replicas: flags of the row of that degree whose shape and load are nearest."""
    found = LAYOUT.fullmatch(layout)
    assert found is not None and pair.concurrency is not None
    degree, replicas = int(found[1]), int(found[2])
    concurrency = pair.concurrency // replicas

    def distance(row: BenchmarkRow) -> tuple[bool, float]:
        load = abs(math.log((row.concurrency or concurrency) / concurrency))
        return (row.isl, row.osl) != (pair.isl, pair.osl), load

    like = min((row for row in rows_of(profile.name) if row.tensor_parallel_size == degree), key=distance)
    flags = replace(like, isl=pair.isl, osl=pair.osl, concurrency=concurrency, requests=None, kv_cache_tokens=None)
    return flags, replicas


def within_its_rows(profile: HardwareProfile, pair: Pair) -> bool:
    """Each layout's degree was measured on this shape with as many requests in flight: else extrapolated."""
    for layout in (pair.a, pair.b):
        found = LAYOUT.fullmatch(layout)
        assert found is not None and pair.concurrency is not None
        degree, replicas = int(found[1]), int(found[2])
        like = (degree, pair.isl, pair.osl)
        rows = [row for row in rows_of(profile.name) if (row.tensor_parallel_size, row.isl, row.osl) == like]
        most = max((row.concurrency or 0 for row in rows), default=0)
        if pair.concurrency // replicas > most:
            return False
    return True


def predicted_ratios(profile: HardwareProfile, covered: Sequence[Pair]) -> list[float]:
    """Throughput of b over that of a; replicas of a layout share the load equally."""
    rows = [row_for(profile, pair, layout) for pair in covered for layout in (pair.a, pair.b)]
    predicted = predict_rows(
        profile, [row for row, _ in rows], node=load_node(profile.node), card=load_model_card(profile.model)
    )
    totals = [tokens_per_s * replicas for (_, replicas), (_, tokens_per_s, _) in zip(rows, predicted, strict=True)]
    return [b / a for a, b in zip(totals[::2], totals[1::2], strict=True)]


def test_every_pair_is_covered_or_named() -> None:
    found = pairs()
    named = Counter(pair.label for pair in found if covering(pair) is None)
    covered = sum(covering(pair) is not None for pair in found)
    print(f"{covered} of {len(found)} pairs covered by {', '.join(profile.name for profile in plain_profiles())}")
    for label, count in sorted(named.items()):
        print(f"not covered ({count}): {label}")
    assert len(found) == 131
    assert covered + named.total() == len(found)


@pytest.mark.parametrize("profile", plain_profiles(), ids=lambda profile: profile.name)
def test_the_ratio_of_a_covered_pair_comes_out_near_the_measured_one(profile: HardwareProfile) -> None:
    mine = [pair for pair in pairs() if covering(pair) == profile]
    errors = []
    for pair, ratio in zip(mine, predicted_ratios(profile, mine) if mine else (), strict=True):
        inside = within_its_rows(profile, pair)
        if inside:
            errors.append(abs(ratio / pair.measured_ratio - 1))
        print(
            f"{profile.name} {pair.isl}/{pair.osl} {pair.concurrency} in flight: {pair.b} over {pair.a}: "
            f"measured {pair.measured_ratio:.3f}, predicted {ratio:.3f} ({ratio / pair.measured_ratio - 1:+.1%})"
            f"{'' if inside else ' extrapolated: no row of a degree has that load'}"
        )
    if profile.tier != "pooled medians":
        return  # the pairs are of pooled medians: dated runs of one version only stand beside them
    if not errors:
        print(f"{profile.name}: no pair of the file is of its model, precision and engine within its rows' loads")
        return
    assert sorted(errors)[len(errors) // 2] <= MEDIAN
    assert max(errors) <= WORST


def test_a_pair_of_a_profiles_own_rows_is_found_and_predicted() -> None:
    """The machinery above, on a pair made here: gpt-oss-120b at 64 requests in flight, 8192/1024."""
    profile = load_profile("mi355x/gpt-oss-120b-mxfp4-vllm")
    by_point = {
        (row.tensor_parallel_size, row.isl, row.osl, row.concurrency): row.tokens_per_s for row in rows_of(profile.name)
    }
    big, small = by_point[8, 8192, 1024, 16], by_point[1, 8192, 1024, 4]
    assert big is not None and small is not None
    pair = Pair(
        gpu="mi355x",
        model="openai/gpt-oss-120b",
        precision="fp4",
        framework="vllm",
        isl=8192,
        osl=1024,
        concurrency=16,
        a="TP8 x1",
        b="TP1 x4",
        measured_ratio=4 * small / big,
    )
    assert covering(pair) == profile
    assert covering(replace(pair, framework="sglang")) is None
    assert covering(replace(pair, a="DP1/TP8/EP8")) is None
    (ratio,) = predicted_ratios(profile, [pair])
    print(f"four TP1 on half the GPUs over one TP8: measured {pair.measured_ratio:.3f}, predicted {ratio:.3f}")
    assert ratio == pytest.approx(pair.measured_ratio, rel=0.05)
