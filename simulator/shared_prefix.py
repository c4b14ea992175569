"""Documents that several prompts of a workload begin with: retrieved passages, a system prompt, a tool description.

Popularities are shares of requests: ``zipf`` gives the k-th most popular of n documents 1/k divided by the sum of all
1/k, as web and document accesses are often found to follow (Breslau et al. 1999, exponent near 1); ``uniform`` gives
each 1/n.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from simulator.lengths import Tokens

__all__ = ["Prefix", "draw_documents", "popularities"]


class Prefix(BaseModel):
    """``{documents: 500, tokens: 2048, popularity: zipf}``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    documents: Annotated[int, Field(ge=1, le=1_000_000, examples=[500])]
    "How many different documents there are; every prompt begins with one."
    tokens: Annotated[int, Field(ge=1, le=1_000_000_000, examples=[2048])]
    "Tokens of each document. `isl` counts them: a prompt that is shorter holds only the document's beginning."
    popularity: Literal["zipf", "uniform"] = "zipf"
    "zipf: the k-th most popular is asked for 1/k times as often as the first; uniform: all alike."


def popularities(prefix: Prefix) -> npt.NDArray[np.float64]:
    """Share of the requests that begin with each document, the most popular first."""
    if prefix.popularity == "uniform":
        return np.full(prefix.documents, 1 / prefix.documents)
    weights = 1 / np.arange(1, prefix.documents + 1)
    return np.asarray(weights / weights.sum())


def draw_documents(prefix: Prefix, count: int, generator: np.random.Generator) -> Tokens:
    """The documents of ``count`` requests, numbered from 0. A longer draw from an equal generator begins with it."""
    up_to = np.cumsum(popularities(prefix))
    drawn: Tokens = np.searchsorted(up_to, generator.random(count) * up_to[-1], side="right")
    return np.minimum(drawn, prefix.documents - 1, dtype=np.int64)
