"""Rows of different lengths in one array: what each request brings as a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Rows"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """N rows, one after the other."""

    values: Ints
    """All rows in a line."""
    count: Ints
    """(N,) length of each."""

    @property
    def start(self) -> Ints:
        """(N,) where each begins."""
        return np.asarray(np.cumsum(self.count) - self.count)

    def spread(self, start: Ints, size: int) -> Ints:
        """The rows at other places of a line of `size`: each begins at its `start`; -1 where nothing lies."""
        line = np.full(size, -1, dtype=np.int64)
        line[np.repeat(start - self.start, self.count) + np.arange(len(self.values))] = self.values
        return line

    def __getitem__(self, row: int) -> tuple[int, ...]:
        end = int(self.count[: row + 1].sum())
        return tuple(self.values[end - int(self.count[row]) : end].tolist())

    def take(self, rows: Ints) -> Rows:
        """Those rows, in that order; a row may be taken more than once."""
        count = self.count[rows]
        ends = np.cumsum(count)
        places = np.arange(int(count.sum())) + np.repeat(self.start[rows] - (ends - count), count)
        return Rows(values=self.values[places], count=count)

    def __len__(self) -> int:
        return len(self.count)

    def lists(self) -> list[tuple[int, ...]]:
        """Each row as a tuple."""
        return [tuple(part.tolist()) for part in np.split(self.values, np.cumsum(self.count)[:-1])] if len(self) else []

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Rows:
        """From one sequence per row."""
        count = np.array([len(row) for row in rows], dtype=np.int64)
        return cls(values=np.array([value for row in rows for value in row], dtype=np.int64), count=count)
