"""The planner's commands. Each parses, calls one function, prints; heavy modules are imported inside the commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hardware_profiles.errors import InputError
from planner.profile_cli import profile
from planner.terminal import Commands, console, interruptible
from planner.trace_cli import trace

__all__ = ["commands"]

commands = typer.Typer(
    name="goodfleet",
    cls=Commands,
    help="Which vLLM configuration, on how many servers, serves this traffic within its targets at the lowest cost?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
recipe = typer.Typer(help="Recipes: one winning configuration, ready to run.", no_args_is_help=True)
commands.add_typer(profile, name="profile")
commands.add_typer(recipe, name="recipe")
commands.add_typer(trace, name="trace")

NOTHING_MEETS = 3

Scenario = Annotated[Path, typer.Argument(help="The scenario file (YAML).", show_default=False)]
Servers = Annotated[int, typer.Option(help="Servers that carry the traffic.", min=1, max=1_000_000, show_default=False)]
AllowOtherEngine = Annotated[
    bool, typer.Option("--allow-other-engine", help="Use profiles of engines other than vLLM that the scenario names.")
]


def version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version as installed

        typer.echo(f"goodfleet {installed('goodfleet')}")
        raise typer.Exit


@commands.callback()
def main(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=version, is_eager=True)
    ] = False,
) -> None:
    """Capacity planning for LLM serving with vLLM, with evidence."""


@commands.command()
@interruptible
def plan(
    scenario: Scenario,
    out: Annotated[Path | None, typer.Option(help="Folder for the results.", show_default="out/NAME")] = None,
    allow_other_engine: AllowOtherEngine = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print plan.json instead of the summary.")] = False,
    quiet: Annotated[bool, typer.Option(help="No progress and no summary.")] = False,
) -> None:
    """Find the cheapest fleet that meets every target, and say what ruled the others out.

    Example: goodfleet plan examples/four-workloads.yaml --out out/four-workloads
    """
    from planner.folder import write_folder
    from planner.output_path import refuse_unwritable_folder
    from planner.progress import shown
    from planner.summary import print_plan
    from planner.write_up import make_plan
    from simulator.scenario import load_scenario

    loaded = load_scenario(scenario, allow_other_engine=allow_other_engine)
    folder = out if out is not None else Path("out") / scenario.stem
    refuse_unwritable_folder(folder, "--out")
    with shown(quiet=quiet or as_json) as progress:
        answer = make_plan(loaded, progress)
    write_folder(answer, folder)
    if as_json:
        typer.echo((folder / "plan.json").read_text(encoding="utf-8"), nl=False)
    elif not quiet:
        print_plan(answer, folder, console())
    if answer.status == "nothing_meets_targets":
        raise typer.Exit(NOTHING_MEETS)


@commands.command()
@interruptible
def capacity(
    scenario: Scenario,
    servers: Servers,
    allow_other_engine: AllowOtherEngine = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a sentence.")] = False,
) -> None:
    """The largest multiple of the demand that N servers carry within the targets, and what binds.

    With the best configuration of the search; `simulate` shows the baseline instead.

    Example: goodfleet capacity examples/four-workloads.yaml --servers 4
    """
    from planner.capacity import capacity_of
    from planner.progress import shown
    from simulator.scenario import load_scenario

    loaded = load_scenario(scenario, allow_other_engine=allow_other_engine)
    with shown(quiet=as_json) as progress:
        found = capacity_of(loaded, servers, progress)
    typer.echo(json.dumps(found.as_dict(), indent=1) if as_json else found.sentence())
    if found.multiplier == 0:
        raise typer.Exit(NOTHING_MEETS)


@commands.command()
@interruptible
def simulate(
    scenario: Scenario,
    servers: Servers,
    multiplier: Annotated[float, typer.Option(help="Times the scenario's rates.", min=1e-6)] = 1.0,
    replications: Annotated[int, typer.Option(help="Independent runs.", min=2, max=100)] = 5,
    requests_out: Annotated[
        Path | None, typer.Option(help="Write the first run's request log (.csv or .parquet).", show_default=False)
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(help="Draw the first run step by step (.json; open it in ui.perfetto.dev).", show_default=False),
    ] = None,
    timeline_events: Annotated[int, typer.Option(help="Most events in that file.", min=100)] = 200_000,
    allow_other_engine: AllowOtherEngine = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """What users would see: the baseline's flags (else vLLM's defaults) on N servers, per workload, with intervals.

    Example: goodfleet simulate examples/four-workloads.yaml --servers 4 --requests-out log.parquet
    """
    from planner.output_path import input_files, refuse_input, refuse_unwritable
    from planner.progress import shown
    from planner.simulation import print_simulation, simulate_fleet, write_first_timeline
    from simulator.log import write_log
    from simulator.scenario import load_scenario

    if requests_out is not None and requests_out.suffix not in (".csv", ".parquet"):
        raise InputError(f"{requests_out} ends in neither .csv nor .parquet; the suffix chooses the format")
    if timeline is not None and timeline.suffix != ".json":
        raise InputError(f"{timeline} does not end in .json; --timeline writes a JSON file")
    loaded = load_scenario(scenario, allow_other_engine=allow_other_engine)
    for path, option in ((timeline, "--timeline"), (requests_out, "--requests-out")):
        if path is not None:
            refuse_input(path, option, input_files(loaded))
            refuse_unwritable(path, option)
    found = simulate_fleet(loaded, servers, multiplier=multiplier, replications=replications)
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=1))
    else:
        print_simulation(found, console())
    if timeline is not None:
        try:
            with shown(quiet=as_json) as progress:
                drawn = write_first_timeline(found, timeline, max_events=timeline_events, progress=progress)
        except OSError as error:
            raise InputError(f"{timeline} cannot be written ({error.strerror}); give --timeline another path") from None
        if not as_json:
            typer.echo(f"timeline of the first run: {timeline} (open it in ui.perfetto.dev or chrome://tracing)")
        if not drawn.complete:
            typer.echo(f"{timeline} is {drawn.sentence}; --timeline-events draws more", err=True)
    if requests_out is not None:
        write_log(found.runs[0].log, requests_out)
        if not as_json:
            typer.echo(f"request log of the first run: {requests_out}")


@recipe.command("export")
def recipe_export(
    path: Annotated[Path, typer.Argument(help="A recipe, e.g. out/NAME/shortlist/01.yaml.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="File to write.", show_default="standard output")] = None,
) -> None:
    """Write a recipe as the file for `vllm serve --config`.

    Example: goodfleet recipe export out/four-workloads/shortlist/01.yaml --out vllm.yaml
    """
    from planner.output_path import refuse_input, refuse_unwritable
    from planner.recipe import export_vllm_config, load_recipe

    text = export_vllm_config(load_recipe(path))
    if out is None:
        typer.echo(text, nl=False)
    else:
        refuse_input(out, "--out", [path])
        refuse_unwritable(out, "--out")
        out.write_text(text, encoding="utf-8")
        typer.echo(f"wrote {out}; start it with: vllm serve --config {out}")


@commands.command()
def schema(
    of: Annotated[str, typer.Argument(help="scenario, plan or recipe.")] = "scenario",
) -> None:
    """Print the JSON Schema of a scenario (for editors), of plan.json or of a recipe.

    Example: goodfleet schema > scenario.schema.json
    """
    from pydantic import BaseModel

    from planner.plan_file import Plan
    from planner.recipe import Recipe
    from simulator.scenario import Scenario as ScenarioFile

    known: dict[str, type[BaseModel]] = {"scenario": ScenarioFile, "plan": Plan, "recipe": Recipe}
    if of not in known:
        raise InputError(f"there is no schema of {of!r}; choose one of {', '.join(known)}")
    typer.echo(json.dumps(known[of].model_json_schema(), indent=1))
