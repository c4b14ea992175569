"""The commands on traces: convert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.terminal import interruptible

__all__ = ["trace"]

trace = typer.Typer(help="Recorded requests: from one format to another.", no_args_is_help=True)


@trace.callback()
def main() -> None:
    """Recorded requests."""


@trace.command("convert")
@interruptible
def trace_convert(
    file: Annotated[Path, typer.Argument(help="The trace.", show_default=False)],
    out: Annotated[Path, typer.Argument(help="The file to write: Mooncake JSON lines.", show_default=False)],
    format: Annotated[str | None, typer.Option(help="mooncake, bailian, vllm_timed, azure, burstgpt, csv.")] = None,
    time_unit: Annotated[str | None, typer.Option(help="s or ms, where the format does not say it.")] = None,
    block_tokens: Annotated[int | None, typer.Option(help="Tokens of a block of hash_ids.", min=1)] = None,
) -> None:
    """Write a trace as Mooncake JSON lines, which AIPerf, GuideLLM and vLLM read.

    Example: goodfleet trace convert calls.csv calls.jsonl
    """
    from typing import get_args

    from hardware_profiles.errors import InputError
    from simulator.mooncake_writer import mooncake_lines, sessions_lost
    from simulator.traces import TimeUnit, TraceFormat, read_trace

    for option, value, allowed in (
        ("--format", format, get_args(TraceFormat)),
        ("--time-unit", time_unit, get_args(TimeUnit)),
    ):
        if value is not None and value not in allowed:
            raise InputError(f"{option} {value!r} is not known; it is one of {', '.join(allowed)}")
    if out.exists():
        raise InputError(f"{out} exists and would be replaced; give another name, or remove it", file=str(out))
    read = read_trace(file, format=format, time_unit=time_unit, block_tokens=block_tokens)  # type: ignore[arg-type]
    lines = list(mooncake_lines(read))
    out.write_text("".join(lines), encoding="utf-8")
    left = ", ".join(f"{count} dropped: {reason}" for reason, count in read.dropped.items()) or "none dropped"
    typer.echo(f"{read.rows_read} rows read = {len(lines)} kept, {left}; {read.out_of_order} were out of order")
    if sessions_lost(read):
        typer.echo(f"the format has no sessions: {sessions_lost(read)} are no longer told apart")
