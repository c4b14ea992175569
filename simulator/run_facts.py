"""What a result file does not say about its run, and where people say it instead.

`vllm bench serve` knows the client's side only: not the GPU, nor its number, nor the precision, nor the server's flags.
These facts have the names of the tidy CSV's columns and come, the nearest first, from

1. `NAME.flags.yaml` beside `NAME.json`;
2. `run.yaml` in the same folder, then in the folders above it up to the one that was given;
3. the result itself: InferenceX rows hold most of them, and `vllm bench serve --metadata tp=4 gpu=mi355x` adds them;
4. the command line (node, precision, engine, TP), for what is still missing.

A file beside a result may not contradict it, except for `model`, where it names the card that a path or prefix means.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from hardware_profiles.errors import InputError
from hardware_profiles.model import load_model_card, precision_name
from hardware_profiles.strict_yaml import YamlValue, load_yaml

__all__ = ["FACTS", "NEEDED", "facts_beside", "is_facts_file", "merged", "model_named"]

FACTS = (
    "gpu",
    "model",
    "precision",
    "framework",
    "framework_version",
    "tp",
    "isl",
    "osl",
    "length_low",
    "length_high",
    "num_requests",
    "max_num_batched_tokens",
    "max_num_seqs",
    "gpu_memory_utilization",
    "block_size",
    "kv_cache_dtype",
    "kv_cache_tokens",
    "async_scheduling",
    "all_reduce_quantization",
    "spec_decode",
    "disagg",
    "multinode",
    "ep",
    "dp_attention",
    "date",
    "quality_flag",
    "weight",
    "weight_note",
)
RANGE_RATIO = "random_range_ratio"
"""vLLM's `--random-range-ratio` r: lengths uniform in 1 - r to 1 + r; the client does not save it."""
FOLDER_FILE = "run.yaml"
SUFFIX = ".flags.yaml"
NEEDED = ("gpu", "model", "precision", "framework", "tp", "isl", "osl")


def is_facts_file(path: Path) -> bool:
    """Whether a file describes results rather than being one."""
    return path.name == FOLDER_FILE or path.name.endswith(SUFFIX)


def facts_beside(result: Path, root: Path) -> dict[str, str]:
    """The facts in files beside a result, the nearest file first; `root` is the file or folder that was given."""
    found: dict[str, str] = {}
    for path in _files(result, root):
        if path.is_file():
            found = _facts(path) | found
    return found


def _files(result: Path, root: Path) -> Iterator[Path]:
    yield result.with_name(result.stem + SUFFIX)
    folder = result.parent
    yield folder / FOLDER_FILE
    while folder != root and root in folder.parents:
        folder = folder.parent
        yield folder / FOLDER_FILE


def _facts(path: Path) -> dict[str, str]:
    document = load_yaml(path)
    found: dict[str, str] = {}
    for key, value in document.data.items():
        line = document.line((key,))
        if key not in (*FACTS, RANGE_RATIO):
            near = difflib.get_close_matches(key, (*FACTS, RANGE_RATIO), n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; it must be one of: {', '.join((*FACTS, RANGE_RATIO))}"
            raise InputError(f"is no fact of a run{hint}", file=str(path), line=line, key=key)
        if isinstance(value, dict | list):
            raise InputError("must be a single value", file=str(path), line=line, key=key)
        found[key] = _text(value)
    if ratio := found.pop(RANGE_RATIO, ""):
        share = _share(ratio)
        if share is None or {"length_low", "length_high"} & found.keys():
            rule = "must be a number from 0 up to below 1, without length_low and length_high beside it"
            raise InputError(f"{ratio} is not allowed; it {rule}", file=str(path), key=RANGE_RATIO)
        found |= {"length_low": repr(1 - share), "length_high": repr(1 + share)}
    return {key: text for key, text in found.items() if text}


def _text(value: YamlValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _share(text: str) -> float | None:
    try:
        share = float(text)
    except ValueError:
        return None
    return share if 0 <= share < 1 else None


@cache
def model_named(name: str) -> str:
    """The shipped model card with this name or alias, or with that of a path's last folder; else the name itself."""
    for text in (name, name.rstrip("/").rpartition("/")[2]):
        try:
            return load_model_card(text).name if text else ""
        except InputError:
            continue
    return name


def merged(
    own: Mapping[str, str], beside: Mapping[str, str], given: Mapping[str, str], *, place: str
) -> dict[str, str]:
    """A row's cells: the result's own, those of files beside it, and the command line's for what is missing."""
    for key, text in beside.items():
        mine = own.get(key, "")
        if mine and key != "model" and not _equal(key, mine, text):
            raise InputError(f"{text} beside the result, but {mine} in it; correct one of them", file=place, key=key)
    cells = dict(given) | {key: text for key, text in own.items() if text} | dict(beside)
    missing = [key for key in NEEDED if not cells.get(key)]
    if missing:
        flags = {"gpu": "--node", "precision": "--precision", "framework": "--engine", "tp": "--tp"}
        options = [flags[key] for key in missing if key in flags]
        on_line = f", or give {' and '.join(options)}" if len(options) == len(missing) else ""
        cure = f"write it into {FOLDER_FILE} or NAME{SUFFIX} beside the result (`{missing[0]}: …`){on_line}"
        raise InputError(f"the result does not say {', '.join(missing)}; {cure}", file=place)
    return cells


def _equal(key: str, own: str, beside: str) -> bool:
    if key == "precision":
        return precision_name(own) == precision_name(beside)
    try:
        return float(own) == float(beside)
    except ValueError:
        return own.lower() == beside.lower()
