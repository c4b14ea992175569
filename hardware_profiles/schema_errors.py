"""pydantic's findings in the words of the person who wrote the file: key path, value, rule, cure.

pydantic reports a value of a union type once per alternative ("not an integer", "not a mapping", "field missing"); a
reader has only one value in mind. Of each union the alternative that fits best is reported: first one whose own shape
matches, then the one with the fewest problems.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

__all__ = ["KeyPath", "key_text", "problems_of"]

KeyPath: TypeAlias = tuple[str | int, ...]


def key_text(path: KeyPath) -> str:
    """``("search", "block_size", 1)`` as people write it: ``search.block_size[1]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


def problems_of(
    error: ValidationError, model: type[BaseModel], data: Mapping[str, Any], what: str
) -> list[tuple[KeyPath, str]]:
    """The problems to show, in the file's order of keys, each as (key path, text)."""
    details = _best_alternatives(error.errors(include_url=False), data)
    paths = [_place(detail["loc"], data)[0] for detail in details]
    found: list[tuple[KeyPath, str]] = []
    for detail, path in zip(details, paths, strict=True):
        if detail["type"] == "too_short" and any(other[: len(path)] == path != other for other in paths):
            continue  # pydantic counts only the valid items; the invalid ones are reported themselves
        found.append((path, _text(detail, path, model, what)))
    return sorted(dict.fromkeys(found), key=lambda item: _order(item[0], data))


def _place(loc: tuple[str | int, ...], data: object) -> tuple[KeyPath, tuple[KeyPath, str] | None]:
    """Key path of a pydantic location, and its first union: (path of the union, tag of the alternative), if any."""
    path: KeyPath = ()
    union: tuple[KeyPath, str] | None = None
    here: object = data
    for index, part in enumerate(loc):
        last = index == len(loc) - 1
        if isinstance(here, Mapping) and str(part) in here:
            path, here = (*path, str(part)), here[str(part)]
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            path, here = (*path, part), here[part]
        elif last and isinstance(here, Mapping) and part != "[key]" and not _is_tag(part):
            path = (*path, part)
        elif union is None and part != "[key]":
            union = (path, str(part))
    return path, union


def _is_tag(part: str | int) -> bool:
    """Tags of union alternatives are type names (``MeanCv``, ``int``, ``tuple[int, ...]``, ``function-after[…]``)."""
    text = str(part)
    return "[" in text or text[:1].isupper() or text in ("int", "float", "str", "bool", "none", "date", "decimal")


def _best_alternatives(details: list[ErrorDetails], data: object) -> list[ErrorDetails]:
    kept: list[ErrorDetails] = []
    unions: dict[KeyPath, dict[str, list[ErrorDetails]]] = {}
    for detail in details:
        _, union = _place(detail["loc"], data)
        if union is None:
            kept.append(detail)
        else:
            unions.setdefault(union[0], {}).setdefault(union[1], []).append(detail)
    for path, alternatives in unions.items():
        groups = list(alternatives.values())
        misfits = [(_wrong_shape(group, path, data), len(group)) for group in groups]
        if min(misfits)[0]:
            kept.append(
                {**groups[0][0], "type": "union_type", "ctx": {"kinds": [group[0]["type"] for group in groups]}}
            )
        else:
            kept.extend(groups[misfits.index(min(misfits))])
    return kept


def _wrong_shape(group: list[ErrorDetails], union: KeyPath, data: object) -> bool:
    """True where an alternative already failed on the value's type (a number where it wants a mapping)."""
    return any(detail["type"].endswith("_type") and _place(detail["loc"], data)[0] == union for detail in group)


def _order(path: KeyPath, data: object) -> tuple[int, ...]:
    """Position of a key path in the file; a missing key comes after its siblings."""
    positions: list[int] = []
    here: object = data
    for part in path:
        if isinstance(here, Mapping):
            keys = list(here)
            positions.append(keys.index(part) if part in here else len(keys))
            here = here.get(part)
        else:
            positions.append(int(part))
            here = here[int(part)] if isinstance(here, list) else None
    return tuple(positions)


_NEEDS = {
    "int": "a whole number without quotes",
    "float": "a number without quotes",
    "decimal": "a number",
    "bool": "true or false",
    "string": "text; put it in quotes",
    "tuple": "a list, [a, b]",
    "list": "a list, [a, b]",
    "model": "a mapping of keys",
    "model_attributes": "a mapping of keys",
    "dict": "a mapping of keys",
    "date": "a date as YYYY-MM-DD",
}


def _text(detail: ErrorDetails, path: KeyPath, model: type[BaseModel], what: str) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    name = path[-1] if path else what
    example = _example(detail["loc"], model)
    shown = _shown(value)
    if kind == "extra_forbidden":
        return _unknown_key(str(path[-1]), _valid_keys(detail["loc"][:-1], model))
    if kind == "missing":
        return f"missing; {f'`{key_text(path[:-1])}`' if path[1:] else what} needs `{name}`{example}"
    bounds = (("gt", "greater than"), ("ge", "at least"), ("lt", "less than"), ("le", "at most"))
    for key, words in bounds:
        if key in context:
            return f"{shown} is not allowed; it must be {words} {_number(context[key])}{example}"
    if kind in ("too_short", "string_too_short"):
        least = context.get("min_length", 1)
        return f"{shown} is too short; at least {least} {'entry is' if least == 1 else 'entries are'} needed{example}"
    if kind in ("too_long", "string_too_long"):
        return f"{shown} is too long; at most {context.get('max_length')} are allowed{example}"
    if kind in ("literal_error", "enum"):
        near = difflib.get_close_matches(str(value), str(context.get("expected", "")).replace("'", " ").split(), n=1)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        return f"{shown} is not known; allowed: {context.get('expected')}{hint}"
    if kind == "int_parsing_size":  # beyond 64 bits, where pydantic reads numbers of a list of allowed ones
        allowed = " or ".join(", ".join(map(repr, _literals(detail["loc"], model))).rsplit(", ", 1))
        return f"{shown} is not known; allowed: {allowed}" if allowed else f"{shown} is too large{example}"
    if kind in ("value_error", "assertion_error"):
        return detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    needs = [_NEEDS.get(_plain(each)) for each in context.get("kinds", [kind])]
    if need := " or ".join(dict.fromkeys(each for each in needs if each)):
        return f"{shown} is not allowed; it must be {need}{example}"
    return f"{shown} is not allowed: {detail['msg']}{example}"


def _plain(kind: str) -> str:
    """``int_parsing`` and ``int_type`` are both about an ``int``."""
    for ending in ("_from_datetime_parsing", "_from_datetime_inexact", "_type", "_parsing", "_from_float"):
        kind = kind.removesuffix(ending)
    return kind


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if value is None:
        return "an empty value"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _number(value: object) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _unknown_key(key: str, valid: list[str]) -> str:
    near = difflib.get_close_matches(key, valid, n=1, cutoff=0.5)
    if near:
        return f"unknown key `{key}`; did you mean `{near[0]}`?"
    return f"unknown key `{key}`; remove it, or use one of: {', '.join(valid)}" if valid else f"unknown key `{key}`"


def _example(loc: tuple[str | int, ...], model: type[BaseModel]) -> str:
    """``, e.g. ttft_ms: 500`` where the field carries ``examples``."""
    field = _field(loc, model)
    if field is None or not field.examples:
        return ""
    name = next(part for part in reversed(loc) if isinstance(part, str) and not _is_tag(part))
    example = field.examples[0]
    return f", e.g. {name}: {example}"


def _valid_keys(loc: tuple[str | int, ...], model: type[BaseModel]) -> list[str]:
    annotations: list[Any] = [model]
    for part in loc:
        annotations = _inside(annotations, part)
    return [
        field.alias or name
        for kind in _alternatives(annotations)
        if isinstance(kind, type) and issubclass(kind, BaseModel)
        for name, field in kind.model_fields.items()
    ]


def _field(loc: tuple[str | int, ...], model: type[BaseModel]) -> FieldInfo | None:
    annotations: list[Any] = [model]
    found: FieldInfo | None = None
    for part in loc:
        for kind in _alternatives(annotations):
            if isinstance(kind, type) and issubclass(kind, BaseModel) and part in kind.model_fields:
                found = kind.model_fields[str(part)]
        annotations = _inside(annotations, part)
    return found


def _literals(loc: tuple[str | int, ...], model: type[BaseModel]) -> list[Any]:
    """The values a field is limited to, if it is."""
    annotations: list[Any] = [model]
    for part in loc:
        annotations = _inside(annotations, part)
    return [value for kind in _alternatives(annotations) if get_origin(kind) is Literal for value in get_args(kind)]


def _alternatives(annotations: list[Any]) -> list[Any]:
    flat: list[Any] = []
    for annotation in annotations:
        origin = get_origin(annotation)
        if origin is Annotated:
            flat.extend(_alternatives([get_args(annotation)[0]]))
        elif origin in (Union, types.UnionType):
            flat.extend(_alternatives(list(get_args(annotation))))
        else:
            flat.append(annotation)
    return flat


def _inside(annotations: list[Any], part: str | int) -> list[Any]:
    """Annotations one step down; a union's tag keeps the alternative of that name."""
    below: list[Any] = []
    same: list[Any] = []
    for kind in _alternatives(annotations):
        arguments = get_args(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if part in kind.model_fields:
                below.append(kind.model_fields[str(part)].annotation)
            elif part == kind.__name__:
                same.append(kind)
        elif get_origin(kind) in (dict, Mapping) and len(arguments) == 2:
            below.append(arguments[1])
        elif get_origin(kind) in (list, tuple) and arguments and isinstance(part, int):
            below.append(arguments[0])
    return below or same or (annotations if _is_tag(part) else [])
