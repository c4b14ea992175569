"""A recipe: one configuration of a plan, ready to run on one server; `shortlist/01.yaml` is the best of the plan.

It says what vLLM is started with, and how often per server. `export_vllm_config` writes the same as the file for
`vllm serve --config`. Flags follow vLLM 0.32 `vllm/utils/argparse_utils.py: FlexibleArgumentParser.load_config_file`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from hardware_profiles.errors import InputError
from hardware_profiles.model import load_model_card
from hardware_profiles.node import load_node
from hardware_profiles.strict_yaml import load_model, load_yaml
from planner.plan_file import Candidate, EngineFlagValues, Plan, plan_sha256
from planner.server_count import servers_text
from simulator.engine import flag_value
from simulator.flags import FlagValue, flag_text

__all__ = ["Recipe", "export_vllm_config", "load_recipe", "shortlisted", "write_shortlist"]

SHORTLIST = 5
"""Recipes in a shortlist, at most."""
IMAGES = {"rocm": "vllm/vllm-openai-rocm", "cuda": "vllm/vllm-openai"}

Text = Annotated[str, StringConstraints(min_length=1)]
FlagName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Recipe(BaseModel):
    """One replica's start and how many of them fill a server."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    schema_version: Literal[1] = 1
    model: Text
    """What vLLM loads: a name on Hugging Face or a folder; also an alias of the model card."""
    precision: Text
    """Of the weights."""
    node: Text
    """The server type the plan chose it for."""
    engine: Text
    """`vllm`, or the engine word of another build."""
    image: Text
    """Container image."""
    env: dict[VariableName, str] = {}
    """Environment variables of every replica; none by default: measured rows differ in theirs, and none was fitted."""
    vllm: dict[FlagName, FlagValue] = Field(min_length=1, examples=[{"tensor_parallel_size": 1}])
    """vLLM's flags in its Python spelling. Flags that are left out have vLLM's defaults."""
    replicas_per_server: Annotated[int, Field(ge=1, le=1024)]
    plan_sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    """The plan it comes from, recorded times apart."""


def shortlisted(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """What to confirm on hardware: the confirmed best, its ties, then the next whose fleet was simulated; at most 5.

    Candidates come in the plan's order, the best in front. Nothing is shortlisted when nothing meets the targets.
    """
    if not candidates or candidates[0].evidence != "confirmed":
        return ()
    rest = [c for c in candidates[1:] if c.evidence != "rank run"]
    tied, others = [c for c in rest if c.tied], [c for c in rest if not c.tied]
    return (candidates[0], *tied, *others)[:SHORTLIST]


def recipe_of(plan: Plan, candidate: Candidate) -> Recipe:
    """The recipe of one row of the plan."""
    engines = [
        p.engine for p in plan.profiles.values() if (p.node, p.precision) == (candidate.node, candidate.precision)
    ]
    return Recipe(
        model=_checkpoint(str(plan.scenario["model"]), candidate.precision),
        precision=candidate.precision,
        node=candidate.node,
        engine=engines[0] if engines else "vllm",
        image=f"{IMAGES[load_node(candidate.node).platform]}:v{plan.vllm_version}",
        vllm=_flags(candidate.engine),
        replicas_per_server=candidate.replicas_per_server,
        plan_sha256=plan_sha256(plan),
    )


def _flags(engine: EngineFlagValues) -> EngineFlagValues:
    """A plan leaves out what is vLLM's default; what it counts on most is written all the same."""
    counted_on = "enable_prefix_caching"
    return engine | ({counted_on: True} if flag_value(engine, counted_on) is True else {})


def write_shortlist(plan: Plan, folder: Path) -> tuple[Path, ...]:
    """Write `01.yaml`, `02.yaml` … into an existing folder, best first, as the plan's `shortlist` names them."""
    rows = shortlisted(plan.candidates)
    paths = tuple(folder / f"{number:02d}.yaml" for number in range(1, len(rows) + 1))
    for path, row in zip(paths, rows, strict=True):
        path.write_text(_recipe_text(recipe_of(plan, row), row, path.stem), encoding="utf-8")
    return paths


def load_recipe(path: Path) -> Recipe:
    """Read a recipe; what is wrong with the file is an `InputError` with its line."""
    recipe = load_model(load_yaml(path), Recipe, what="a recipe")
    size = recipe.vllm.get("tensor_parallel_size")
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        problem = "missing or no whole number; say how many GPUs one replica takes, e.g. tensor_parallel_size: 1"
        raise InputError(problem, file=str(path), key="vllm.tensor_parallel_size")
    return recipe


def export_vllm_config(recipe: Recipe) -> str:
    """The recipe as the YAML file for `vllm serve --config`: flags in kebab case, notes on what the file cannot say.

    A switch that is off is written `no-…: true`. vLLM 0.32 turns `…: false` into `--no-…` only if the parser that
    reads the file knows that flag; the `vllm` command reads it with its top parser, which does not and drops the line.
    """
    if recipe.engine != "vllm":
        raise InputError(f"engine {recipe.engine!r} is not plain vLLM; `vllm serve --config` cannot start it")
    lines = [*_start_notes(recipe), f"model: {_quoted(recipe.model)}"]
    for flag, value in recipe.vllm.items():
        key = flag.replace("_", "-")
        if flag == "enable_prefix_caching" and value is False:
            lines.append("# The plan counts on no prefix cache: what is found in one comes on top of it.")
            lines.append("# `enable-prefix-caching: false` would be ignored (vLLM 0.32 vllm/utils/argparse_utils.py).")
        if flag == "scheduling_policy" and value == "priority":
            lines.append(
                "# Lower first: clients send `priority` with each request, as the scenario's workloads have it."
            )
        if value is False:
            lines.append(f"no-{key}: true")
        else:
            lines.append(f"{key}: {_scalar(value)}")
    return "\n".join(lines) + "\n"


def _start_notes(recipe: Recipe) -> list[str]:
    """Comments: the image, the environment, and how several replicas share a server."""
    size = int(recipe.vllm.get("tensor_parallel_size", 1))
    notes = [
        "vLLM server of a goodfleet plan. Start it with: vllm serve --config THIS_FILE (named .yaml or .yml)",
        f"image: {recipe.image}",
        f"weights: {recipe.precision}; check that the model below is a checkpoint in that precision",
        *(f"environment: {name}={value}" for name, value in recipe.env.items()),
    ]
    if recipe.replicas_per_server > 1:
        last = recipe.replicas_per_server - 1
        gpus = ["" if size == 1 else f"-{first + size - 1}" for first in (0, last * size)]
        notes += [
            f"{recipe.replicas_per_server} of these on every {recipe.node} server, each with its own "
            f"{'GPU' if size == 1 else f'{size} GPUs'} (CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES) and --port:",
            f"the first on GPU{'s' if size > 1 else ''} 0{gpus[0]}, the last on {last * size}{gpus[1]}",
        ]
    notes.append(f"plan: {recipe.plan_sha256}")
    return [f"# {' '.join(note.split())}" for note in notes]


def _recipe_text(recipe: Recipe, row: Candidate, number: str) -> str:
    servers = f"{servers_text(row.servers)} with spares"
    known = {
        "confirmed": f"{servers}: confirmed by full simulations",
        "fleet": f"{servers}: simulated as a fleet",
        "rank run": f"{servers}: estimated from one server",
    }[row.evidence]
    lines = [
        f"# {' '.join(row.label.split())}",
        f"# {known}{', tied with the best' if row.tied else ''}; not validated on hardware.",
        f"# For vLLM: goodfleet recipe export {number}.yaml --out vllm.yaml, then vllm serve --config vllm.yaml",
    ]
    for name, value in recipe.model_dump().items():
        if isinstance(value, dict):
            lines += [f"{name}:{'' if value else ' {}'}", *_mapping(value.items())]
        else:
            lines.append(f"{name}: {_scalar(value)}")
    return "\n".join(lines) + "\n"


def _mapping(items: Iterable[tuple[str, FlagValue]]) -> list[str]:
    return [f"  {name}: {_scalar(value)}" for name, value in items]


def _scalar(value: FlagValue) -> str:
    if isinstance(value, bool):
        return flag_text(value)
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    """Always quoted: a digest such as 12e34… is a number to YAML 1.2, `no` is false to vLLM's YAML 1.1."""
    return yaml.safe_dump(text, default_style='"', allow_unicode=True, width=1_000_000).strip()


def _checkpoint(model: str, precision: str) -> str:
    """What vLLM can load: the user's own path or repository, else the card's repository in that precision."""
    path = Path(model)
    if path.name == "config.json":
        return str(path.parent)
    if "/" in model or path.suffix in (".yaml", ".yml"):
        return model
    card = load_model_card(model)
    repositories = [alias for alias in card.aliases if "/" in alias]
    named = [name for name in repositories if precision in name.lower()]
    native = repositories if precision == card.native_precision else []
    return next(iter([*named, *native, *repositories]), model)
