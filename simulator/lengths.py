"""How many tokens a prompt or an answer has: a fixed number, a uniform range, or a lognormal spread.

Published length statistics are means with a coefficient of variation (cv = standard deviation / mean), and real lengths
are skewed, so ``{mean, cv}`` is a lognormal: sigma² = ln(1 + cv²), mu = ln(mean) - sigma²/2. Its mean is the mean the
user wrote, before rounding to whole tokens and before clipping to the context window.
"""

from __future__ import annotations

import math
from typing import Annotated, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

__all__ = ["Lengths", "LognormalLengths", "UniformLengths", "clip_lengths", "draw_lengths", "typical_tokens"]

Tokens: TypeAlias = npt.NDArray[np.int64]

_MOST_TOKENS = 1_000_000_000


class LognormalLengths(BaseModel):
    """``{mean: 256, cv: 0.6}``."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    mean: Annotated[float, Field(ge=1, le=_MOST_TOKENS, examples=[256])]
    "Mean number of tokens."
    cv: Annotated[float, Field(ge=0, le=10, examples=[0.6])]
    "Standard deviation divided by the mean; 0 gives every request the mean, rounded."


class UniformLengths(BaseModel):
    """``{uniform: [a, b]}``: every whole number from a to b is equally likely, both ends included."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    uniform: Annotated[
        tuple[int, int], AfterValidator(lambda bounds: _checked_bounds(bounds)), Field(examples=["[100, 200]"])
    ]
    "Smallest and largest number of tokens."


def _checked_bounds(bounds: tuple[int, int]) -> tuple[int, int]:
    low, high = bounds
    if low < 1 or high > _MOST_TOKENS:
        rule = f"a length is at least 1 token and at most {_MOST_TOKENS:,}"
        raise ValueError(f"[{low}, {high}] is not allowed; {rule}, e.g. uniform: [100, 200]")
    if low > high:
        raise ValueError(f"[{low}, {high}] is not allowed; the smaller bound comes first: [{high}, {low}]")
    return bounds


def _at_least_one_token(
    lengths: int | LognormalLengths | UniformLengths,
) -> int | LognormalLengths | UniformLengths:
    if isinstance(lengths, int) and not 1 <= lengths <= _MOST_TOKENS:
        rule = f"a length is at least 1 token and at most {_MOST_TOKENS:,}"
        raise ValueError(f"{lengths} is not allowed; {rule}, e.g. 256")
    return lengths


Lengths: TypeAlias = Annotated[int | LognormalLengths | UniformLengths, AfterValidator(_at_least_one_token)]


def typical_tokens(lengths: Lengths) -> float:
    """The length that must fit the context window: the fixed one, the upper bound of a range, a lognormal's mean."""
    if isinstance(lengths, int):
        return float(lengths)
    if isinstance(lengths, UniformLengths):
        return float(lengths.uniform[1])
    return lengths.mean


def draw_lengths(lengths: Lengths, count: int, generator: np.random.Generator) -> Tokens:
    """``count`` lengths in tokens, at least 1 each. A longer draw from an equal generator begins with the shorter."""
    if isinstance(lengths, int):
        return np.full(count, lengths, dtype=np.int64)
    if isinstance(lengths, UniformLengths):
        low, high = lengths.uniform
        return generator.integers(low, high, size=count, endpoint=True, dtype=np.int64)
    sigma = math.sqrt(math.log1p(lengths.cv**2))
    tokens = generator.standard_normal(count)
    tokens *= sigma
    tokens += math.log(lengths.mean) - sigma**2 / 2
    np.exp(tokens, out=tokens)
    np.rint(tokens, out=tokens)
    np.clip(tokens, 1, _MOST_TOKENS, out=tokens)
    return tokens.astype(np.int64)


def clip_lengths(
    prompt_tokens: Tokens, output_tokens: Tokens, *, max_model_len: int
) -> tuple[Tokens, Tokens, npt.NDArray[np.bool_]]:
    """Both lengths cut so that prompt + output <= ``max_model_len``, and which requests were cut.

    The prompt gives way, because applications trim what they send and leave room for the answer; an answer alone is at
    most ``max_model_len`` - 1. vLLM itself would refuse such a prompt, so a large share means the limit is too small.
    """
    clipped = prompt_tokens + output_tokens > max_model_len
    if not clipped.any():
        return prompt_tokens, output_tokens, clipped
    output = np.minimum(output_tokens, max_model_len - 1)
    return np.minimum(prompt_tokens, max_model_len - output), output, clipped
