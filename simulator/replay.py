"""A recorded trace played at another load, without bending its time.

Squeezing the gaps of a trace would make bursts shorter and fiercer than any user ever was. Instead, a load below the
recorded one leaves requests out at random (each request has a mark in [0, 1) and stays while its mark is below the
load), and a load above it lays further copies of the trace over the first, each turned by its own random time around
the circle that the trace is bent into. At load 2.3 two copies play whole and a third keeps marks below 0.3, so a larger
load always contains the smaller one. What is kept: burstiness within a copy and the link between time and lengths. What
is lost: bursts that strike all users at once are diluted by superposition.

A session is kept or left out whole: all its requests carry one mark. Copies, and laps of one copy, are other users:
nothing that one of them sent is found in a cache by another, not even a system prompt that all sessions of the
recording share. Reuse across users is therefore understated at loads above 1, and never invented.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from simulator.traces import Trace

__all__ = ["TraceReplay"]

_LAP_SHIFT = (math.sqrt(5) - 1) / 2
"Marks turn by the golden section each lap, so that a thinned trace does not repeat the same requests every lap."


Played: TypeAlias = tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.int64]]


class TraceReplay:
    """Plays one trace for one seed; state: the copies drawn so far, which do not depend on the load."""

    def __init__(self, trace: Trace, seed: np.random.SeedSequence):
        self.trace = trace
        self._seed = seed
        self._marks: list[npt.NDArray[np.float64]] = []  # of each copy, by row of the trace
        self._offset_s = np.zeros(0)  # of each copy: where on the circle its time 0 lies
        self._start = np.zeros(0, dtype=np.int64)  # of each copy: its first row from there on

    def window(self, *, load: float, span_s: float) -> Played:
        """Arrivals in [0, ``span_s``), ascending, with each one's row in the trace and number of its playing.

        ``load`` 1.0 is as recorded. Equal playing numbers mean the same copy in the same lap: the same users.
        """
        copies = math.ceil(load)
        self._draw(copies)
        arrival_s, period_s, rows = self.trace.arrival_s, self.trace.period_s, len(self.trace.arrival_s)
        offset_s, start = self._offset_s[:copies], self._start[:copies]

        # Row numbers that run on from lap to lap: each copy plays those from its start to where the window ends.
        laps, rest_s = np.divmod(offset_s + span_s, period_s)
        counts = laps.astype(np.int64) * rows + np.searchsorted(arrival_s, rest_s) - start
        ends = np.cumsum(counts)
        running = np.arange(ends[-1]) + np.repeat(start - (ends - counts), counts)
        lap, row = np.divmod(running, rows) if laps.any() else (np.zeros_like(running), running)
        playing = lap * copies + np.repeat(np.arange(copies), counts)
        times = arrival_s[row] + (lap * period_s - np.repeat(offset_s, counts))

        # All copies play whole but the last, which keeps a share.
        keep = load - (copies - 1)
        if keep < 1:
            last = slice(ends[-1] - counts[-1], None)
            marks = (self._marks[copies - 1][row[last]] + lap[last] * _LAP_SHIFT) % 1.0
            kept = np.ones(len(times), dtype=np.bool_)
            kept[last] = marks < keep
            times, row, playing = times[kept], row[kept], playing[kept]
        if copies == 1:
            return times, row, playing
        order = np.argsort(times, kind="stable")
        return times[order], row[order], playing[order]

    def first(self, *, load: float, count: int) -> Played:
        """The first ``count`` arrivals, their rows and playings."""
        span_s = 1.1 * (count + 10) / (load * self.trace.rate_rps)
        while True:
            times, rows, playing = self.window(load=load, span_s=span_s)
            if len(times) >= count:
                return times[:count], rows[:count], playing[:count]
            span_s *= 1.5

    def _draw(self, copies: int) -> None:
        """Make sure that so many copies are drawn; a copy depends on the seed and its number only."""
        offsets_s = [float(offset_s) for offset_s in self._offset_s]
        while len(self._marks) < copies:
            key = (*self._seed.spawn_key, len(self._marks))
            generator = np.random.default_rng(np.random.SeedSequence(self._seed.entropy, spawn_key=key))
            offsets_s.append(float(generator.uniform(0, self.trace.period_s)))
            marks = generator.random(len(self.trace.arrival_s))
            if self.trace.session is not None:
                marks = marks[np.unique(self.trace.session, return_index=True)[1]][self.trace.session]
            self._marks.append(marks)
        if len(offsets_s) > len(self._offset_s):
            self._offset_s = np.array(offsets_s)
            self._start = np.searchsorted(self.trace.arrival_s, self._offset_s)
