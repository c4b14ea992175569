"""The cells of a benchmark row as values, each within what a server or a client can mean.

A number outside is a typing error or in another unit (a latency in seconds, a utilization in percent), or would keep
the simulator busy for days; it is refused with its place, not fitted. Numbers are written as in CSV files of programs:
ASCII digits with a point, no separators.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from hardware_profiles.errors import InputError
from hardware_profiles.memory import kv_bytes_per_element

__all__ = ["FALSE", "MOST", "MOST_CONCURRENCY", "MOST_REQUESTS", "Cells"]

NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
MOST = 10_000_000
"""Largest length or flag that is taken for meant."""
MOST_CONCURRENCY = 100_000
MOST_REQUESTS = 10 * MOST_CONCURRENCY
"""Every request of a run is simulated."""
LEAST_MS, MOST_MS = 0.001, 3_600_000.0
"""A latency from one microsecond to one hour."""
LEAST_WEIGHT = 1e-3
TRUE, FALSE = ("true", "1", "1.0", "yes"), ("false", "0", "0.0", "no", "none")
ALL_REDUCE_BITS = {"": 16.0, "none": 16.0, "int4": 4.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """One row as text, by column, and where it stands."""

    cells: Mapping[str, str]
    file: str
    line: int | None = None

    def text(self, name: str) -> str:
        """The cell; empty where the row does not say it."""
        return self.cells.get(name) or ""

    def refused(self, name: str, rule: str) -> InputError:
        """The error that names the value and what it must be."""
        return self.error(f"{self.text(name)!r} is not allowed; it must be {rule}", name)

    def error(self, problem: str, name: str) -> InputError:
        """An error at this row."""
        return InputError(problem, file=self.file, line=self.line, key=name)

    def number(self, name: str, least: float, most: float, default: float | None = None, *, what: str = "") -> float:
        """A number within bounds; `what` says in words what it is."""
        text = self.text(name)
        if not text and default is not None:
            return default
        value = float(text) if NUMBER.fullmatch(text) else math.nan
        if not least <= value <= most:
            raise self.refused(name, f"{what or 'a number'} from {_plain(least)} to {_plain(most)}")
        return value

    def whole(self, name: str, default: int | None = None, *, least: int = 1, most: float = MOST) -> int:
        """A whole number, which may be written as 8.0."""
        value = self.number(name, least, most, default, what="a whole number")
        if value != int(value):
            raise self.refused(name, f"a whole number from {_plain(least)} to {_plain(most)}")
        return int(value)

    def length(self, name: str, least: int) -> int:
        """A number of tokens; means of a run have decimals."""
        return int(self.number(name, least, MOST, what="a number of tokens"))

    def latency_s(self, name: str) -> float:
        """A latency that stands there in milliseconds."""
        return self.number(name, LEAST_MS, MOST_MS, what="milliseconds") / 1e3

    def weight(self) -> float:
        """1 where none is stated; 0 leaves the row out."""
        text = self.text("weight")
        if NUMBER.fullmatch(text) and float(text) == 0.0:
            return 0.0
        return self.number("weight", LEAST_WEIGHT, 1.0, 1.0, what="0, which leaves the row out, or a number")

    def flag(self, name: str, default: bool) -> bool:
        """A yes or no."""
        text = self.text(name).lower()
        if not text:
            return default
        if text not in TRUE + FALSE:
            raise self.refused(name, "true or false")
        return text in TRUE

    def expert_ranks(self) -> int:
        """Ranks that experts are spread over; 1 = none, also where a program writes 0 or false."""
        if self.text("ep").lower() in FALSE:
            return 1
        return self.whole("ep", 1, most=1024)

    def kv_cache_dtype(self) -> str:
        """vLLM's word for the type of the KV cache."""
        name = self.text("kv_cache_dtype") or "auto"
        try:
            kv_bytes_per_element(name)
        except InputError as error:
            raise self.error(error.problem, "kv_cache_dtype") from None
        return name

    def all_reduce_bits(self) -> float:
        """Bits per value on the links: 4.5 with ROCm quick reduce in INT4 (values and scales)."""
        bits = ALL_REDUCE_BITS.get(self.text("all_reduce_quantization").lower())
        if bits is None:
            raise self.refused("all_reduce_quantization", "none or int4")
        return bits


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and value < 1e10 else f"{value:g}"
