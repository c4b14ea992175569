"""Files that ship with goodfleet: a bare name (``mi355x``) is one of them, anything with a slash is the user's own."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from hardware_profiles.errors import InputError

__all__ = ["find_file", "shipped_names"]

PACKAGE = Path(__file__).parent


def shipped_names(folder: str) -> tuple[str, ...]:
    """Names, without ``.yaml``, of the files shipped in ``nodes``, ``models`` or ``prices``, sorted."""
    return tuple(sorted(path.stem for path in (PACKAGE / folder).glob("*.yaml")))


def find_file(name_or_path: str | Path, *, folder: str, relative_to: Path | None, what: str) -> Path:
    """The file meant by a bare name (shipped) or a path (against ``relative_to``, the scenario's folder, if given)."""
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or "/" in text or "\\" in text:
        path = Path(text)
        return path if path.is_absolute() or relative_to is None else relative_to / path
    name = text.removesuffix(".yaml").removesuffix(".yml")
    shipped = shipped_names(folder)
    if name in shipped:
        return PACKAGE / folder / f"{name}.yaml"
    beside = (relative_to or Path()) / text
    if text not in ("", ".", "..") and os.path.exists(beside):
        raise InputError(f"{text!r} is not a shipped {what}; to use the file of that name, write `./{text}`")
    near = difflib.get_close_matches(name.lower(), shipped, n=1, cutoff=0.4)
    hint = f"; did you mean `{near[0]}`?" if near else ";"
    known = ", ".join(shipped)
    own = f"a model folder, e.g. ./{text or 'my-model'}" if folder == "models" else "a file, e.g. ./my.yaml"
    raise InputError(f"unknown {what} {text!r}{hint} shipped: {known}; or give the path of {own}")
