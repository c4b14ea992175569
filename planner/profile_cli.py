"""The commands on hardware profiles: list, show, fit, check; the validator adds `measure`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hardware_profiles.errors import InputError
from planner.terminal import THRESHOLD_MISSED, console, interruptible

__all__ = ["profile"]

profile = typer.Typer(help="Hardware profiles: what was measured, and how well it is predicted.", no_args_is_help=True)

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
    from planner.output_path import files_in, profile_files, refuse_input, refuse_unwritable
    from planner.profile_view import fit_to_file

    if out.suffix not in (".yaml", ".yml"):
        raise InputError(f"{out} is no .yaml file; --out names the profile to write")
    read = files_in([*inputs, *filter(None, [all_reduce])])
    for file in profile_files(out):
        refuse_input(file, "--out", read)
        refuse_unwritable(file, "--out")
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
    from planner.output_path import files_in, profile_files, refuse_input, refuse_unwritable
    from planner.profile_check import check_profile, error_figures, refuse_not_a_fraction, refuse_not_positive
    from simulator.benchmark_inputs import read_inputs

    refuse_not_a_fraction(max_median_error, "--max-median-error")
    for limit_ms in (*(tpot_limit_ms or ()), ttft_limit_ms):
        refuse_not_positive(limit_ms, "--tpot-limit-ms and --ttft-limit-ms")
    loaded = load_profile(name)
    if json_out is not None:
        refuse_input(json_out, "--json", files_in([*profile_files(loaded.path), *inputs]))
        if json_out.suffix != ".json":
            raise InputError(f"{json_out} does not end in .json; --json writes a JSON file")
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
