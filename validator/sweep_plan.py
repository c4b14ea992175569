"""Which runs a measurement consists of: TP degrees x fresh server sessions x shapes x requests in flight.

A prefill-heavy and a decode-heavy shape are needed to tell the terms of a step apart (design 4.4); the concurrency is
swept from one request, where a step is mostly latency, to what the machine is meant to carry. Within a session the
order of runs is shuffled, so that a drift of the machine does not look like an effect of the load. Every run draws
prompts of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from hardware_profiles.errors import InputError

__all__ = ["Shape", "SweepPlan", "SweepRun", "numbers_of", "shapes_of"]

LEAST_REQUESTS = 8
"""A median over fewer requests says little."""
Count = Annotated[int, Field(ge=1)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Shape(_Frozen):
    """Nominal lengths of a request."""

    isl: Count
    osl: Annotated[int, Field(ge=2)]
    """An answer of one token has no time per output token."""

    def __str__(self) -> str:
        return f"{self.isl}/{self.osl}"


class SweepRun(_Frozen):
    """One run of the benchmark client."""

    name: str
    shape: Shape
    concurrency: Count
    requests: Count
    seed: Annotated[int, Field(ge=0)]

    def again(self, attempt: int) -> SweepRun:
        """The run of a session's nth start: a server that goes on may hold the prompts of the one before in its cache.

        Seeds stay below 2^32.
        """
        if attempt == 1:
            return self
        (seed,) = np.random.SeedSequence([self.seed, attempt]).generate_state(1)
        return self.model_copy(update={"seed": int(seed)})

    @property
    def at_most_s(self) -> float:
        """No server that works takes so long: 10 min, 2 s per token of an answer, 100 prompt tokens per second."""
        waves = math.ceil(self.requests / self.concurrency)
        return 600.0 + 2.0 * waves * self.shape.osl + self.requests * self.shape.isl / 100.0


class SweepPlan(_Frozen):
    """Everything that decides what is measured; a folder holds the runs of one plan."""

    model: str
    node: str
    precision: str
    degrees: Annotated[tuple[Count, ...], Field(min_length=1, max_length=16)]
    sessions: Annotated[int, Field(ge=1, le=99)]
    """Fresh servers per degree."""
    shapes: Annotated[tuple[Shape, ...], Field(min_length=1)]
    concurrency: Annotated[tuple[Count, ...], Field(min_length=1)]
    waves: Count
    """Requests of a run per request in flight."""
    range_ratio: Annotated[float, Field(ge=0, lt=1)]
    """Lengths are uniform in nominal x (1 - r) to nominal x (1 + r), as `--random-range-ratio` draws them."""
    seed: Annotated[int, Field(ge=0, le=399)]
    command: str
    """What runs vLLM; empty for a server that was running."""
    server: str
    """Address of a server that was running; empty where sessions are started."""
    arguments: str
    """Further arguments of `vllm serve`."""

    @property
    def longest_tokens(self) -> int:
        """Of a prompt and its answer."""
        stretch = 1 + self.range_ratio
        return max(math.ceil(shape.isl * stretch) + math.ceil(shape.osl * stretch) for shape in self.shapes)

    def runs(self, degree: int, session: int) -> tuple[SweepRun, ...]:
        """The runs of one session in the order they are made; no two runs of a plan share a seed."""
        runs = list(self._runs(degree, session))
        order = np.random.default_rng([self.seed, degree, session]).permutation(len(runs))
        return tuple(runs[i] for i in order)

    def warm_up(self, degree: int, session: int) -> tuple[SweepRun, ...]:
        """One wave per shape at the highest load, before anything counts."""
        most = max(self.concurrency)
        return tuple(
            SweepRun(
                name=f"warm-up-{shape.isl}-{shape.osl}",
                shape=shape,
                concurrency=most,
                requests=most,
                seed=self._seed(degree, session, 900 + i),
            )
            for i, shape in enumerate(self.shapes)
        )

    def _runs(self, degree: int, session: int) -> Iterator[SweepRun]:
        for i, shape in enumerate(self.shapes):
            for j, concurrency in enumerate(self.concurrency):
                yield SweepRun(
                    name=f"{shape.isl}-{shape.osl}-c{concurrency}",
                    shape=shape,
                    concurrency=concurrency,
                    requests=max(self.waves * concurrency, LEAST_REQUESTS),
                    seed=self._seed(degree, session, i * len(self.concurrency) + j),
                )

    def _seed(self, degree: int, session: int, number: int) -> int:
        """Below 2^32, which numpy's global generator takes: plan, degree, session and run in decimal places."""
        return ((self.seed * 100 + self.degrees.index(degree)) * 100 + session) * 1000 + number


def numbers_of(text: str, option: str) -> tuple[int, ...]:
    """`1,2,4,8`: whole numbers above 0, each once, in ascending order."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1 or len(set(numbers)) < len(numbers):
        raise InputError(f"{text!r} is not allowed; give whole numbers above 0, each once, e.g. 1,2,4", key=option)
    return tuple(sorted(numbers))


def shapes_of(text: str, option: str) -> tuple[Shape, ...]:
    """`1024/128,128/1024`: prompt and answer tokens of each shape."""
    rule = "give ISL/OSL, e.g. 1024/128,128/1024; an answer has at least 2 tokens"
    try:
        parts = [part.split("/") for part in text.split(",")]
        shapes = [Shape(isl=int(isl), osl=int(osl)) for isl, osl in parts]
    except ValueError:  # also pydantic's
        raise InputError(f"{text!r} is not allowed; {rule}", key=option) from None
    if len(set(shapes)) < len(shapes):
        raise InputError(f"{text!r} names a shape twice; name each once", key=option)
    return tuple(shapes)
