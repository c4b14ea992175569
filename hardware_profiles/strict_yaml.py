"""YAML as people mean it: scalars of YAML 1.2, no key twice, and every value knows the line it stands on.

YAML 1.1, which PyYAML resolves by default, reads ``22:00`` as 1320, ``1:2`` as 62 and ``no`` as false
(https://github.com/yaml/pyyaml/issues/272), and keeps the last of two equal keys without a word
(https://github.com/yaml/pyyaml/issues/165). Here only PyYAML's scanner and parser are used; scalars follow the core
schema of YAML 1.2 (section 10.3.2), with one addition: integers may carry underscores (``2_000_000``). Dates and times
stay text. Mapping keys are always text, as written. Tags other than the core ones are refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from yaml.composer import Composer
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from hardware_profiles.errors import InputError
from hardware_profiles.schema_errors import KeyPath, key_text, problems_of

__all__ = ["Document", "YamlValue", "load_model", "load_yaml", "parse_yaml"]

YamlValue: TypeAlias = "bool | int | float | str | list[YamlValue] | dict[str, YamlValue] | None"
Model = TypeVar("Model", bound=BaseModel)

_MAX_VALUES = 200_000
_MAX_DEPTH = 100
_TAG = "tag:yaml.org,2002:"


class _Yaml12Loader(Reader, Scanner, Parser, Composer, BaseResolver):
    """PyYAML's parser with the scalar types of YAML 1.2's core schema instead of 1.1's."""

    def __init__(self, text: str):
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)


_INT = re.compile(r"[-+]?[0-9]+(_[0-9]+)*|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
for _name, _pattern, _first in (
    ("null", re.compile(r"~|null|Null|NULL|"), ["~", "n", "N", ""]),
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE"), list("tTfF")),
    ("int", _INT, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
):
    _Yaml12Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern.pattern})\Z"), _first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One YAML file, read: its values, and where each of them stands."""

    path: Path
    "The file as the user named it."
    data: dict[str, YamlValue]
    "The file's mapping as plain dicts, lists and scalars."
    root: MappingNode
    "PyYAML's node tree, kept for the line numbers."

    def line(self, key_path: tuple[str | int, ...]) -> int | None:
        """Line (from 1) of the key or list item at ``key_path``, else of its nearest parent; None for the top level."""
        found: int | None = None
        node: Node = self.root
        for part in key_path:
            step = _step(node, part)
            if step is None:
                break
            found, node = step
        return found


def _step(node: Node, part: str | int) -> tuple[int, Node] | None:
    if isinstance(node, MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return key.start_mark.line + 1, value
    elif isinstance(node, SequenceNode) and isinstance(part, int) and 0 <= part < len(node.value):
        item = node.value[part]
        return item.start_mark.line + 1, item
    return None


def load_yaml(path: Path) -> Document:
    """Read a YAML file whose top level is a mapping. A byte order mark and CRLF line ends are harmless."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise InputError("there is no such file; check the spelling and the folder", file=str(path)) from None
    except IsADirectoryError:
        raise InputError("this is a folder; name a YAML file", file=str(path)) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"the file cannot be read ({reason}); check its permissions", file=str(path)) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        problem = f"byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise InputError(problem, file=str(path), line=line) from None
    return parse_yaml(text, path)


def parse_yaml(text: str, path: Path) -> Document:
    """`load_yaml` for text already read; ``path`` is only used in messages."""
    file = str(path)
    try:
        root = _Yaml12Loader(text.removeprefix("\ufeff")).get_single_node()
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problem = f"character U+{error.character:04X} is not allowed in YAML; remove it"
        raise InputError(problem, file=file, line=line) from None
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text, file) from None
    except RecursionError:
        raise InputError("the lists and mappings are nested too deeply; flatten them", file=file) from None
    if root is None:
        raise InputError("the file is empty; write at least one `key: value`", file=file)
    if not isinstance(root, MappingNode):
        kind = "a list" if isinstance(root, SequenceNode) else f"the single value {root.value!r}"
        line = root.start_mark.line + 1
        raise InputError(f"the file holds {kind}; a mapping of `key: value` lines is needed", file=file, line=line)
    data = _Construction(file).mapping(root, ())
    return Document(path=path, data=data, root=root)


def _syntax_error(error: yaml.MarkedYAMLError, text: str, file: str) -> InputError:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return InputError(f"not valid YAML: {error.problem}", file=file)
    lines = text.splitlines()
    written = lines[mark.line] if mark.line < len(lines) else ""
    indent = written[: len(written) - len(written.lstrip())]
    if "\t" in indent or written[mark.column : mark.column + 1] == "\t":
        problem = "a tab stands where YAML needs spaces; replace the tab by spaces"
        return InputError(problem, file=file, line=mark.line + 1)
    detail = ", ".join(part for part in (error.context, error.problem) if part)
    if error.context and error.context_mark is not None and error.context_mark.line != mark.line:
        detail += f" (begun in line {error.context_mark.line + 1})"
    return InputError(f"not valid YAML: {detail}", file=file, line=mark.line + 1)


class _Construction:
    """Nodes into values. State: how many were made (aliases of aliases must not fill the memory), and what is open."""

    def __init__(self, file: str):
        self.file = file
        self.made = 0
        self.inside: list[Node] = []

    def error(self, problem: str, node: Node, path: KeyPath) -> InputError:
        return InputError(problem, file=self.file, line=node.start_mark.line + 1, key=key_text(path) or None)

    def value(self, node: Node, path: KeyPath) -> YamlValue:
        self.made += 1
        if self.made > _MAX_VALUES:
            raise self.error(f"more than {_MAX_VALUES} values; do aliases (*name) multiply them?", node, path[:1])
        if isinstance(node, ScalarNode):
            return self.scalar(node, path)
        if node in self.inside:
            raise self.error("an alias (*name) stands inside the value it names; write the value out", node, path)
        if len(path) > _MAX_DEPTH:
            raise self.error(f"nested more than {_MAX_DEPTH} levels deep; flatten it", node, path[:1])
        self.inside.append(node)
        made = self.mapping(node, path) if isinstance(node, MappingNode) else self.sequence(node, path)
        self.inside.pop()
        return made

    def sequence(self, node: Node, path: KeyPath) -> list[YamlValue]:
        if not isinstance(node, SequenceNode) or node.tag != _TAG + "seq":
            raise self.error(f"the tag {_short(node.tag)} is not known here; remove it", node, path)
        return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]

    def mapping(self, node: MappingNode, path: KeyPath) -> dict[str, YamlValue]:
        if node.tag != _TAG + "map":
            raise self.error(f"the tag {_short(node.tag)} is not known here; remove it", node, path)
        lines_of: dict[str, list[int]] = {}
        for key, _ in node.value:
            if not isinstance(key, ScalarNode):
                raise self.error("a key must be plain text, not a list or mapping", key, path)
            lines_of.setdefault(key.value, []).append(key.start_mark.line + 1)
        for name, lines in lines_of.items():
            if len(lines) > 1:
                where = "lines " + ", ".join(str(line) for line in lines[:-1]) + f" and {lines[-1]}"
                problem = f"duplicate key {key_text((*path, name))}, {where}; rename or remove one"
                raise InputError(problem, file=self.file, line=lines[1])
        return {key.value: self.value(value, (*path, key.value)) for key, value in node.value}

    def scalar(self, node: ScalarNode, path: KeyPath) -> YamlValue:
        kind, text = node.tag.removeprefix(_TAG), node.value
        if kind == "str":
            return str(text)
        if kind == "null" and text in ("", "~", "null", "Null", "NULL"):
            return None
        if kind == "bool" and text.lower() in ("true", "false"):
            return bool(text.lower() == "true")
        if kind == "int" and _INT.fullmatch(text):
            if len(text) > 100:
                raise self.error(f"a number of {len(text)} digits is too long; write it as 1.0e9", node, path)
            return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
        if kind == "float" and (_FLOAT.fullmatch(text) or _INT.fullmatch(text)):
            return _float(text.lower())
        raise self.error(f"{text!r} with the tag {_short(node.tag)} is not readable here; remove the tag", node, path)


def _short(tag: str) -> str:
    return tag.replace(_TAG, "!!")


def _float(text: str) -> float:
    if text.endswith((".inf", ".nan")):
        return {".nan": math.nan, "-.inf": -math.inf}.get(text, math.inf)
    return float(text)


def load_model(document: Document, pydantic_type: type[Model], *, what: str) -> Model:
    """Check a document against a pydantic model and return the instance; ``what`` names the file's kind ("a scenario").

    Types are strict as in JSON: ``"512"`` is not a number, ``true`` is not 1, and 1.0 is not an integer; lists become
    tuples and text becomes dates and decimals. Non-finite numbers are refused everywhere. All problems come back in one
    InputError: the first in full, the others listed below it.
    """
    for path, value in _leaves(document.data, ()):
        if isinstance(value, float) and not math.isfinite(value):
            problem = f"{value} is not allowed; write a finite number"
            raise _input_error(document, [(path, problem)])
    try:
        return pydantic_type.model_validate_json(json.dumps(document.data), strict=True)
    except ValidationError as error:
        raise _input_error(document, problems_of(error, pydantic_type, document.data, what)) from None


def _leaves(value: YamlValue, path: KeyPath) -> Iterator[tuple[KeyPath, YamlValue]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*path, index))
    else:
        yield path, value


def _input_error(document: Document, problems: list[tuple[KeyPath, str]]) -> InputError:
    path, first = problems[0]
    others = problems[1:]
    if others:
        first += f"\nand {len(others)} more problem{'s' if len(others) > 1 else ''}:"
        for other_path, problem in others[:20]:
            line = document.line(other_path)
            place = "" if line is None else f"line {line}: "
            key = key_text(other_path)
            first += f"\n  {place}{key + ': ' if key else ''}{problem}"
    return InputError(first, file=str(document.path), line=document.line(path), key=key_text(path) or None)
