"""A hardware profile as people ask for it: rates per tensor-parallel degree, errors, every residual, sources."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from hardware_profiles.errors import InputError
from hardware_profiles.fit_evidence import load_residuals
from hardware_profiles.model import load_model_card, precision_name
from hardware_profiles.node import load_node
from hardware_profiles.profile import HardwareProfile, load_profile
from hardware_profiles.profile_subject import node_and_card
from hardware_profiles.server_split import split_comparisons
from simulator.steptime import StepTimeModel, all_reduce_s, step_time_model

__all__ = ["fit_to_file", "print_profile"]

DECODE_BATCHES = (1, 8, 32, 128)
DECODE_CONTEXT_TOKENS = 2048
PREFILL_CHUNK_TOKENS = 8192


def print_profile(name: str, console: Console) -> None:
    """Print one profile; an unknown or ambiguous name is an `InputError`."""
    profile = load_profile(name)
    node, card = node_and_card(profile)
    console.print(f"{profile.name}: {profile.tier}, {profile.engine} {profile.engine_version}, as of {profile.as_of}")
    rates = Table(
        title=(
            f"Per replica, from the fitted step times: prefill in steps of {PREFILL_CHUNK_TOKENS:,} tokens, decode "
            f"(b = batch) at {DECODE_CONTEXT_TOKENS:,} tokens of context, all-reduce (AR) of 32 and, extrapolated, of "
            f"{PREFILL_CHUNK_TOKENS:,} tokens with its share of a prefill step"
        ),
        title_justify="left",
    )
    rates.add_column("TP")
    rates.add_column("prefill tok/s", justify="right")
    for batch in DECODE_BATCHES:
        rates.add_column(f"b{batch} tok/s (ms)", justify="right")
    for column in ("AR 32, us", "AR 8192, us", "share"):
        rates.add_column(column, justify="right")
    for degree in profile.tensor_parallel:
        model = step_time_model(
            profile, node=node, card=card, tensor_parallel_size=degree, max_tokens=PREFILL_CHUNK_TOKENS
        )
        rates.add_row(str(degree), *_rates(model), *_all_reduce(profile, degree, card.hidden, card.layers, model))
    console.print(rates)
    _print_errors(profile, console)
    _print_residuals(profile, console)
    _print_split(profile, node.gpus_per_server, console)
    measured = profile.measured
    console.print(
        f"Measured at TP {', '.join(map(str, measured.tensor_parallel_size))}, {measured.concurrency[0]}-"
        f"{measured.concurrency[1]} requests in flight, ISL {measured.isl[0]}-{measured.isl[1]}, "
        f"OSL {measured.osl[0]}-{measured.osl[1]}; "
        "outside, results say extrapolated.",
        highlight=False,
    )
    console.print(f"Assumed flags of the measured rows: {profile.assumed_flags}", highlight=False)
    console.print(f"KV sensitivity: {profile.kv_sensitivity}", highlight=False)
    for source in profile.sources:
        console.print(f"source: {source}", highlight=False)
    for caveat in profile.caveats:
        console.print(f"caveat: {caveat}", highlight=False)
    console.print(f"made by: {profile.command}", highlight=False)


def _rates(model: StepTimeModel) -> list[str]:
    chunk = PREFILL_CHUNK_TOKENS
    window = model.window_tokens
    prefill_s = model.step_s(
        decodes=0,
        decode_tokens=0,
        prefill_tokens=chunk,
        prefills=1,
        sampled=1,
        context=0,
        window_context=0,
        pairs=0.5 * chunk * chunk,
        window_pairs=float(chunk * window) if window else 0.0,
    )
    cells = [f"{chunk / prefill_s:,.0f}"]
    for batch in DECODE_BATCHES:
        step_s = model.step_s(
            decodes=batch,
            decode_tokens=batch,
            prefill_tokens=0,
            prefills=0,
            sampled=batch,
            context=batch * DECODE_CONTEXT_TOKENS,
            window_context=batch * min(window, DECODE_CONTEXT_TOKENS),
            pairs=0.0,
            window_pairs=0.0,
        )
        cells.append(f"{batch / step_s:,.0f} ({step_s * 1e3:.2f})")
    return cells


def _all_reduce(profile: HardwareProfile, degree: int, hidden: int, layers: int, model: StepTimeModel) -> list[str]:
    curve = profile.all_reduce.get(degree)
    if curve is None:
        return ["-", "-", "-"]
    small, large = (float(s) for s in all_reduce_s(curve, np.array([32.0, PREFILL_CHUNK_TOKENS]) * hidden * 2))
    share = (2 * layers + 1) * large / float(model.mixed_s[PREFILL_CHUNK_TOKENS])
    return [f"{small * 1e6:.1f}", f"{large * 1e6:,.0f}", f"{share:.0%}"]


def _print_errors(profile: HardwareProfile, console: Console) -> None:
    table = Table(title="Absolute error of predictions against measurements", title_justify="left")
    for column in ("evaluation", "metric", "rows", "median", "p95", "worst", "bias"):
        table.add_column(column, justify="left" if column in ("evaluation", "metric") else "right")
    for evaluation, metrics in profile.errors.items():
        for metric, row in metrics.items():
            table.add_row(
                evaluation,
                metric,
                str(row.rows),
                f"{row.median:.2%}",
                f"{row.p95:.2%}",
                f"{row.worst:.2%}",
                f"{row.bias:+.2%}",
            )
    console.print(table)
    console.print(
        "Rows left out were not seen by their refit, but the model's form and starting values were chosen with all "
        "rows in view: these errors are flattered.",
        highlight=False,
    )


def _print_residuals(profile: HardwareProfile, console: Console) -> None:
    rows = load_residuals(profile)
    table = Table(title=f"Residual of each of {len(rows)} rows (predicted / measured − 1)", title_justify="left")
    ttft = any(row.measured_ttft_s is not None for row in rows)
    columns = ["TP", "ISL/OSL", "concurrency", "TPOT ms", "residual", "tok/s", "residual"]
    for column in (*columns, *(["TTFT ms", "residual"] if ttft else []), "note"):
        table.add_column(column, justify="left" if column == "note" else "right")
    for row in rows:
        table.add_row(
            str(row.tensor_parallel_size),
            f"{row.isl}/{row.osl}",
            str(row.concurrency) if row.request_rate_rps is None else f"{row.request_rate_rps:g}/s",
            f"{row.measured_tpot_s * 1e3:.2f}",
            _residual(row.predicted_tpot_s, row.measured_tpot_s),
            "" if row.measured_tokens_per_s is None else f"{row.measured_tokens_per_s:,.0f}",
            _residual(row.predicted_tokens_per_s, row.measured_tokens_per_s),
            *(
                [_milliseconds(row.measured_ttft_s), _residual(row.predicted_ttft_s, row.measured_ttft_s)]
                if ttft
                else []
            ),
            row.note if row.weight == 1 else f"weight {row.weight:g}: {row.note}",
        )
    console.print(table)


def _residual(predicted: float | None, measured: float | None) -> str:
    return "" if predicted is None or measured is None else f"{predicted / measured - 1:+.1%}"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:,.0f}"


def _print_split(profile: HardwareProfile, gpus: int, console: Console) -> None:
    found = split_comparisons(load_residuals(profile), gpus)
    if not found:
        return
    table = Table(title=f"One server of {gpus} GPUs split in two ways, same requests in flight", title_justify="left")
    for column in ("ISL/OSL", "in flight", "compared", "measured ratio of tok/s", "predicted", "error"):
        table.add_column(column, justify="right")
    for row in found:
        table.add_row(
            f"{row.isl}/{row.osl}",
            str(row.concurrency),
            f"{gpus // row.many} × TP{row.many} over {gpus // row.few} × TP{row.few}",
            f"{row.measured_ratio:.3f}",
            f"{row.predicted_ratio:.3f}",
            f"{row.predicted_ratio / row.measured_ratio - 1:+.1%}",
        )
    console.print(table)


def fit_to_file(
    inputs: list[Path],
    *,
    node: str,
    model: str,
    tp: int | None,
    precision: str | None,
    engine: str,
    variant: str,
    all_reduce: Path | None,
    out: Path,
    seed: int,
    leave_out: bool,
) -> None:
    """`profile fit`: read results, say what was read, fit, write the profile and its residuals."""
    from planner.progress import shown
    from planner.terminal import console
    from simulator.benchmark_inputs import read_inputs
    from simulator.benchmark_rows import only_precision
    from simulator.calibration import fit_profile, write_profile

    machine, card = load_node(node), load_model_card(model)
    given = {"gpu": machine.name, "framework": engine, "tp": str(tp or ""), "precision": precision or ""}
    found = read_inputs(inputs, given=given)
    if not found.rows:
        reasons = "; ".join(f"{count:,} left out: {reason}" for reason, count in found.left_out)
        raise InputError(f"none of {found.read:,} rows can be used: {reasons}")
    served = precision_name(precision or only_precision(found.rows, card=card, engine=engine))
    used = found.used_for(node=machine, card=card, precision=served, engine=engine, variant=variant)
    for line in (*used.account(), *used.doubts()):
        console().print(line, highlight=False, markup=False, soft_wrap=True)
    with shown(quiet=False) as progress:
        fitted = fit_profile(
            found.rows,
            node=machine,
            card=card,
            precision=served,
            engine=engine,
            variant=variant,
            all_reduce=all_reduce,
            node_option=node,
            seed=seed,
            leave_out=leave_out,
            progress=progress,
        )
    write_profile(fitted, out)
    told = f"wrote {out}; look at it with: goodfleet profile show {out}"
    console().print(told, highlight=False, markup=False, soft_wrap=True)
