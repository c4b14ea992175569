"""JSON that benchmark clients write: one object, a list of objects, or objects one after another (`--append-result`).

Python's client writes NaN and Infinity, which are no JSON, when a run measured nothing; they are refused here, as is a
key that stands twice. A unit is part of a key's name: `median_tpot_ms` is in milliseconds, `median_tpot` in seconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeAlias

from hardware_profiles.errors import InputError

__all__ = ["JsonValue", "Record", "read_json"]

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
TOO_LARGE = 1e15
MAX_DIGITS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One result, and where it stands."""

    data: Mapping[str, JsonValue]
    place: str
    """File, and which of its results where it holds several."""

    def text(self, key: str) -> str:
        """The value as text, "" where it is missing or null; a list or object is an `InputError`."""
        value = self.data.get(key)
        if isinstance(value, list | dict):
            raise self.error(key, "is a list or object; a single value is needed")
        if isinstance(value, bool):
            return "true" if value else "false"
        return "" if value is None else str(value)

    def number(self, key: str) -> float | None:
        """A finite number that is not negative; None where it is missing or null. Numbers in quotes are read too."""
        text = self.text(key)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            raise self.error(key, f"{text!r} is no number") from None
        if not (math.isfinite(value) and 0 <= value < TOO_LARGE):
            raise self.error(key, f"{text} is not allowed; it must be a number from 0 to {TOO_LARGE:g}")
        return value

    def inner(self, *keys: str) -> Record:
        """The object below these keys; empty where there is none."""
        found: JsonValue = dict(self.data)
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return Record(data=found if isinstance(found, dict) else {}, place=self.place)

    def error(self, key: str, problem: str) -> InputError:
        """A mistake in one of its values."""
        return InputError(problem, file=self.place, key=key)


def read_json(path: Path) -> tuple[Record, ...]:
    """The objects of a file; what is not JSON, or holds something else, is an `InputError`."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=str(path)) from None
    except UnicodeDecodeError as error:
        raise InputError(f"byte {error.start} is not UTF-8; save the file as UTF-8", file=str(path)) from None
    found = _values(text, str(path))
    if len(found) == 1 and isinstance(found[0], list):
        found = found[0]
    objects = [value for value in found if isinstance(value, dict)]
    if not objects or len(objects) < len(found):
        raise InputError("holds no result: an object or a list of objects is needed", file=str(path))
    several = len(objects) > 1
    return tuple(
        Record(data=value, place=f"{path}, result {index}" if several else str(path))
        for index, value in enumerate(objects, start=1)
    )


def _values(text: str, file: str) -> list[JsonValue]:
    def refuse(word: str) -> NoReturn:
        raise InputError(f"{word} is no number; the run measured nothing there: repeat it or remove the key", file=file)

    def whole(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            raise InputError(f"a number of {len(digits)} digits is too long; write it as 1.0e9", file=file)
        return int(digits)

    def once(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
        made = dict(pairs)
        if len(made) < len(pairs):
            twice = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
            raise InputError(f"the key {twice!r} stands twice; keep one", file=file)
        return made

    decoder = json.JSONDecoder(parse_constant=refuse, parse_int=whole, object_pairs_hook=once)
    found: list[JsonValue] = []
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise InputError(f"is no JSON: {error.msg}", file=file, line=error.lineno) from None
        except RecursionError:
            raise InputError("is no result: lists and objects are nested too deeply", file=file) from None
        found.append(value)
    if not found:
        raise InputError("the file is empty", file=file)
    return found
