"""The console script `goodfleet`: the top layer, which mounts the planner's commands and turns errors into exit codes.

0 answered, 1 defect or broken environment, 2 bad input, 3 nothing meets the targets, 6 a given threshold is missed,
130 interrupted. A user's mistake is one message on stderr, without a traceback.
"""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from hardware_profiles.errors import InputError
from planner.cli import commands
from planner.profile_cli import profile
from planner.terminal import INTERRUPTED, console
from validator.targets.target import TargetError

__all__ = ["app"]


@profile.command("measure")
def profile_measure(
    model: Annotated[str, typer.Argument(help="Model folder or hub name, as vLLM takes it.", show_default=False)],
    node: Annotated[str, typer.Option(help="Node type, e.g. mi355x, or a node file.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder of the measurement; the same command goes on with it.")],
    tp: Annotated[str, typer.Option(help="Tensor-parallel degrees.")] = "1",
    card: Annotated[
        str | None, typer.Option(help="Model card, e.g. gpt-oss-120b, or a model folder.", show_default="MODEL")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="Precision of the weights.", show_default="the model's own")
    ] = None,
    vllm: Annotated[str, typer.Option(help="What runs vLLM's command line.")] = "vllm",
    server: Annotated[str, typer.Option(help="Use a running server instead of starting one.", show_default="")] = "",
    flags: Annotated[str, typer.Option(help="Further arguments of vllm serve.", show_default="")] = "",
    concurrency: Annotated[str, typer.Option(help="Requests in flight.")] = "1,2,4,8,16,32,64,128",
    shapes: Annotated[str, typer.Option(help="ISL/OSL: one prefill-heavy, one decode-heavy.")] = "1024/128,128/1024",
    repeats: Annotated[int, typer.Option(help="Fresh server sessions per degree.", min=1, max=99)] = 2,
    waves: Annotated[int, typer.Option(help="Requests of a run per request in flight.", min=1, max=100)] = 10,
    range_ratio: Annotated[
        float, typer.Option(help="Lengths are uniform within this share of the nominal ones.", min=0, max=0.99)
    ] = 0.2,
    seed: Annotated[int, typer.Option(help="Seed of the prompts.", min=0, max=399)] = 1,
    open_loop: Annotated[
        str,
        typer.Option(
            help="Then predict Poisson traffic at these shares of capacity, replay it, compare.", show_default="no"
        ),
    ] = "",
    mix: Annotated[
        str, typer.Option(help="Mean ISL/OSL of that traffic; lengths vary by half.", show_default="of the shapes")
    ] = "",
    open_loop_seconds: Annotated[float, typer.Option(help="Length of each such stream.", min=5)] = 120.0,
    open_loop_sessions: Annotated[
        int | None,
        typer.Option(help="Server sessions that replay it.", min=1, max=9, show_default="2; 1 with --server"),
    ] = None,
) -> None:
    """Measure this machine: sweep vLLM over loads and shapes in fresh sessions, then fit a profile to it.

    Takes hours for a large model; whatever stops it, the same command goes on where it was.

    Example: goodfleet profile measure openai/gpt-oss-120b --node mi355x --tp 1,2,4,8 --open-loop 0.5,0.7,0.9
    --out out/measured
    """
    from hardware_profiles.model import load_model_card, precision_name
    from hardware_profiles.node import load_node
    from planner.output_path import refuse_unwritable_folder
    from planner.progress import shown
    from validator.measure import measure, target_source
    from validator.open_loop import open_loop_of
    from validator.sweep_plan import SweepPlan, numbers_of, shapes_of

    signal.signal(signal.SIGTERM, _interrupt)
    client, arguments = _words(vllm, "--vllm"), _words(flags, "--flags")
    loaded, found = load_node(node), load_model_card(card if card is not None else model)
    chosen = precision_name(precision or found.native_precision)
    found.weight_bytes(chosen)
    refuse_unwritable_folder(out, "--out")
    plan = SweepPlan(
        model=model,
        node=loaded.name,
        precision=chosen,
        degrees=numbers_of(tp, "--tp"),
        sessions=repeats,
        shapes=shapes_of(shapes, "--shapes"),
        concurrency=numbers_of(concurrency, "--concurrency"),
        waves=waves,
        range_ratio=range_ratio,
        seed=seed,
        command="" if server else vllm,
        server=server,
        arguments=flags,
    )
    wanted = open_loop_of(open_loop, mix=mix, seconds=open_loop_seconds, sessions=open_loop_sessions, plan=plan)
    try:
        with shown(quiet=False) as progress:
            made = measure(
                plan,
                node=loaded,
                card=found,
                folder=out,
                client=client,
                target_of=target_source(plan, client, arguments),
                command=shlex.join(("goodfleet", *sys.argv[1:])),
                tell=progress,
                console=console(),
                open_loop=wanted,
            )
    except KeyboardInterrupt:
        typer.echo(f"interrupted; {out} keeps what is finished, and the same command goes on from there", err=True)
        raise typer.Exit(INTERRUPTED) from None
    typer.echo(f"rows: {made.measured}")
    typer.echo(f"profile: {made.profile}; look at it with: goodfleet profile show {made.profile}")
    if wanted is not None and not made.open_loop_counts:
        typer.echo(
            "the open loop is not measured: some stream has no replay that counts; run the command again", err=True
        )
        raise typer.Exit(1)


def _words(text: str, option: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:  # a quotation mark without its partner
        raise InputError(f"{text!r} is no list of words ({error}); close its quotation", key=option) from None
    if option == "--vllm" and not words:
        raise InputError("names no command; give one, e.g. vllm", key=option)
    return words


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """SIGTERM ends a measurement as Ctrl-C does: its server is stopped first."""
    raise KeyboardInterrupt


def app() -> None:
    """Run the command line of this process."""
    try:
        commands()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except TargetError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:  # the reader of a pipe has gone; nothing is wrong
        sys.stderr.close()
        sys.exit(0)
