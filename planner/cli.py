"""The planner's commands. Each parses, calls one function, prints; heavy modules are imported inside the commands."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from hardware_profiles.errors import InputError

__all__ = ["commands"]

commands = typer.Typer(
    name="goodfleet",
    help="Which vLLM configuration, on how many servers, serves this traffic within its targets at the lowest cost?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
profile = typer.Typer(help="Hardware profiles: what was measured, and how well it is predicted.", no_args_is_help=True)
recipe = typer.Typer(help="Recipes: one winning configuration, ready to run.", no_args_is_help=True)
commands.add_typer(profile, name="profile")
commands.add_typer(recipe, name="recipe")

NOTHING_MEETS = 3
THRESHOLD_MISSED = 6
INTERRUPTED = 130

Scenario = Annotated[Path, typer.Argument(help="The scenario file (YAML).", show_default=False)]
Servers = Annotated[int, typer.Option(help="Servers that carry the traffic.", min=1, max=1_000_000, show_default=False)]
AllowOtherEngine = Annotated[
    bool, typer.Option("--allow-other-engine", help="Use profiles of engines other than vLLM that the scenario names.")
]
Inputs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RESULTS",
        help="Tidy CSV, JSON of `vllm bench serve --save-result`, InferenceX results or dump, or folders of these.",
        show_default=False,
    ),
]
TensorParallel = Annotated[
    int | None, typer.Option(help="Tensor-parallel size, for results that do not say it.", min=1, show_default=False)
]
Function = TypeVar("Function", bound=Callable[..., None])


def console() -> Console:
    """Standard output; 120 columns when it is piped, so that tables do not wrap."""
    found = Console()
    return found if found.is_terminal else Console(width=120)


def interruptible(function: Function) -> Function:
    """Ctrl-C ends a command with exit code 130 and one line."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except KeyboardInterrupt:
            Console(stderr=True).print("interrupted; nothing was written", style="yellow")
            raise typer.Exit(INTERRUPTED) from None

    return wrapped  # type: ignore[return-value]


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


@profile.command("list")
def profile_list(
    markdown: Annotated[bool, typer.Option("--markdown", help="All errors of all profiles, as a table.")] = False,
    choices: Annotated[
        bool, typer.Option("--choices", help="Choices made by predictions of rows left out, as a table.")
    ] = False,
) -> None:
    """List the shipped profiles with their typical error."""
    from hardware_profiles.profile import list_profiles, load_profile
    from planner.profile_table import as_markdown, choices_as_markdown

    profiles = [load_profile(name) for name in list_profiles()]
    if markdown or choices:
        typer.echo(choices_as_markdown(profiles) if choices else as_markdown(profiles), nl=False)
        return
    for held in profiles:
        errors = held.errors.get("in sample", {})
        figures = ", ".join(f"{metric} {row.median:.1%}" for metric, row in errors.items())
        degrees = ", ".join(str(degree) for degree in held.tensor_parallel)
        typer.echo(f"{held.name}  TP {degrees}  median error in sample: {figures or 'none stated'}  ({held.tier})")


@profile.command("show")
def profile_show(name: Annotated[str, typer.Argument(help="Name, prefix, or file.", show_default=False)]) -> None:
    """Prefill and decode rates, all-reduce cost, range, residuals and sources of one profile.

    Example: goodfleet profile show mi355x/gpt-oss-120b
    """
    from planner.profile_view import print_profile

    print_profile(name, console())


@profile.command("fit")
@interruptible
def profile_fit(
    inputs: Inputs,
    node: Annotated[str, typer.Option(help="Node type, e.g. mi355x.", show_default=False)],
    model: Annotated[str, typer.Option(help="Model card, e.g. gpt-oss-120b.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Profile to write (.yaml).", show_default=False)],
    tp: TensorParallel = None,
    precision: Annotated[
        str | None, typer.Option(help="Precision of the weights, e.g. mxfp4.", show_default="the rows' only one")
    ] = None,
    engine: Annotated[str, typer.Option(help="Engine of the rows: vllm, vllm_atom, sglang, ….")] = "vllm",
    variant: Annotated[
        str, typer.Option(help="Rows that are no plain tensor-parallel runs: mtp, ep8, dpa, ….", show_default="plain")
    ] = "",
    all_reduce: Annotated[
        Path | None, typer.Option(help="All-reduce curves measured on the node (CSV).", show_default="the node's own")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the simulated streams.", min=0, max=2**63 - 1)] = 1,
    leave_out: Annotated[bool, typer.Option(help="Also compute the held-out errors.")] = True,
) -> None:
    """Fit a profile by running the simulator inside bounded least squares, under each row's own protocol.

    Example: goodfleet profile fit hardware_profiles/measurements/mi355x-gpt-oss-120b-mxfp4.csv --node mi355x
    --model gpt-oss-120b --precision mxfp4 --out out/profile.yaml
    """
    from planner.output_path import files_in, refuse_input, refuse_unwritable
    from planner.profile_view import fit_to_file

    refuse_input(out, "--out", files_in([*inputs, *filter(None, [all_reduce])]))
    refuse_unwritable(out, "--out")
    fit_to_file(
        inputs,
        node=node,
        model=model,
        tp=tp,
        precision=precision,
        engine=engine,
        variant=variant,
        all_reduce=all_reduce,
        out=out,
        seed=seed,
        leave_out=leave_out,
    )


@profile.command("check")
@interruptible
def profile_check(
    name: Annotated[str, typer.Argument(metavar="PROFILE", help="Name, prefix, or file.", show_default=False)],
    inputs: Inputs,
    tp: TensorParallel = None,
    unused_only: Annotated[bool, typer.Option("--unused-only", help="Leave out rows used in the fit.")] = False,
    max_median_error: Annotated[
        float | None,
        typer.Option(help="Exit 6 where the median error of TPOT is above this fraction.", show_default=False),
    ] = None,
    tpot_limit_ms: Annotated[
        list[float] | None,
        typer.Option(help="Limit on TPOT for capacities and choices; may be repeated.", show_default="round ones"),
    ] = None,
    ttft_limit_ms: Annotated[
        float | None, typer.Option(help="Limit on TTFT beside it in the capacities.", show_default="none")
    ] = None,
    json_out: Annotated[
        Path | None, typer.Option("--json", help="Also write everything to this file (.json).", show_default=False)
    ] = None,
) -> None:
    """Predict measured rows, and judge errors, capacities and the choices that a planner would make by them.

    The last lines are one per metric: `tpot median 1.23 % p95 4.56 % bias +0.12 %`.

    Example: goodfleet profile check mi355x/gpt-oss-120b rows.csv --unused-only --max-median-error 0.05
    """
    from hardware_profiles.profile import load_profile
    from planner.check_file import write_check
    from planner.check_points import judge
    from planner.check_view import metric_lines, print_check
    from planner.output_path import files_in, refuse_input, refuse_unwritable
    from planner.profile_check import check_profile, error_figures, refuse_not_a_fraction, refuse_not_positive
    from simulator.benchmark_inputs import read_inputs

    refuse_not_a_fraction(max_median_error, "--max-median-error")
    for limit_ms in (*(tpot_limit_ms or ()), ttft_limit_ms):
        refuse_not_positive(limit_ms, "--tpot-limit-ms and --ttft-limit-ms")
    loaded = load_profile(name)
    if json_out is not None:
        refuse_input(json_out, "--json", files_in([loaded.path, *inputs]))
        refuse_unwritable(json_out, "--json")
    given = {"gpu": loaded.node, "model": loaded.model, "precision": loaded.precision, "framework": loaded.engine}
    read = read_inputs(inputs, given=given | {"tp": str(tp or "")})
    for line in read.account():
        typer.echo(line)
    found = check_profile(loaded, read.rows, unused_only=unused_only)
    limits_s = [limit_ms / 1e3 for limit_ms in tpot_limit_ms or ()]
    judgement = judge(found.rows, limits_s, None if ttft_limit_ms is None else ttft_limit_ms / 1e3)
    if json_out is not None:
        write_check(found, judgement, json_out, read=read)
    print_check(found, judgement, console())
    figures = error_figures(found.rows)
    for line in metric_lines(figures):
        typer.echo(line)
    if max_median_error is not None and figures["tpot"].median > max_median_error:
        typer.echo(f"the median error of TPOT is above --max-median-error {max_median_error:g}", err=True)
        raise typer.Exit(THRESHOLD_MISSED)


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
