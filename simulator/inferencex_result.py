"""Result rows of InferenceX (SemiAnalysis), in the four shapes in which they are published.

1. *Fixed sequence*, `agg_NAME.json` or the list `agg_bmk.json` (`SemiAnalysisAI/InferenceX` @843c625,
   `utils/process_result.py`): configuration and metrics flat, latencies **in seconds** (the client's keys without
   `_ms`), `tput_per_gpu` = input and output tokens/s over all GPUs (tp x pp x pcp). `*_intvty` is 1 / TPOT of the same
   statistic, which tells a row whose units were mixed.
2. *Agentic, flat* (May-June 2026) and 3. *agentic, nested* (`request_metrics`, from July 2026): trace replays without
   nominal ISL and OSL; they are read and counted, but no closed loop of equal requests can predict them.
4. *Published row* of the site's API (`/api/v1/benchmarks`) and of the weekly database dump, where `configs` and
   `benchmark_results` are joined (`inferencex_dump.py`): the same metrics in `metrics`, `hardware`, `spec_method`,
   `decode_tp`, `decode_ep`, `decode_dp_attention`; prefill and decode values are equal unless `disagg`.

The protocol is not in the rows: a closed loop of `conc` requests, lengths uniform in 0.8 to 1.0 x nominal, no prefix
cache. A failed run has no latencies, or says that no request succeeded.
"""

from __future__ import annotations

from collections.abc import Mapping

from simulator.result_json import Record
from simulator.run_facts import NEEDED, merged, model_named

__all__ = ["inferencex_cells", "is_inferencex", "is_published_row", "point_of"]

AGENTIC = "agentic trace replay: no nominal ISL and OSL"
UNIT_TOLERANCE = 0.01


def is_inferencex(record: Record) -> bool:
    """Whether it is a row of any of the shapes."""
    keys = record.data.keys()
    return (
        "request_metrics" in keys
        or {"hw", "conc"} <= keys
        or {"hw", "tput_per_gpu"} <= keys
        or is_published_row(record)
    )


def is_published_row(record: Record) -> bool:
    """Whether it is a row of the site's API or database, of which every run of a point is kept."""
    return "hardware" in record.data and isinstance(record.data.get("metrics"), dict)


def point_of(record: Record) -> tuple[str, ...]:
    """What the runs of one published point have in common."""
    names = ("hardware", "framework", "model", "precision", "spec_method", "disagg", "is_multinode", "benchmark_type")
    topology = [
        f"{role}_{name}" for role in ("prefill", "decode") for name in ("tp", "ep", "dp_attention", "num_workers")
    ]
    return tuple(record.text(key) for key in (*names, *topology, "isl", "osl", "conc", "offload_mode"))


def inferencex_cells(record: Record, beside: Mapping[str, str]) -> dict[str, str] | str:
    """The row's cells, in the tidy CSV's columns, or why it is no row. The command line fills no gaps of such a row."""
    published = is_published_row(record)
    metrics = record.inner("metrics") if published else record
    if reason := _reason(record, metrics):
        return reason
    tp = record.number("decode_tp" if published else "tp")
    gpus = (tp or 0.0) * _parts(metrics, "pp") * _parts(metrics, "pcp_size")
    if gpus != tp:
        return "pipeline or context parallel"
    if published and tp and (record.number("num_decode_gpu") or tp) != tp:
        return "data parallel: more GPUs than TP"
    facts = _facts(record, published)
    if missing := [key for key in NEEDED if not (facts[key] or beside.get(key))]:
        return f"the row does not say {', '.join(missing)}"
    cells = merged(facts, beside, {}, place=record.place)
    cells |= {"max_concurrency": record.text("conc"), "total_tps_per_gpu": metrics.text("tput_per_gpu")}
    for metric in ("tpot", "ttft"):
        for statistic in ("median", "mean"):
            if value := metrics.number(f"{statistic}_{metric}"):
                cells[f"{metric}_{statistic}_ms"] = repr(value * 1e3)
    return cells


def _facts(record: Record, published: bool) -> dict[str, str]:
    side = "decode_" if published else ""
    return {
        "gpu": record.text("hardware" if published else "hw").lower().split("-")[0],
        "model": _model(record),
        "precision": record.text("precision"),
        "framework": record.text("framework"),
        "framework_version": record.text("image").replace("#", "/"),
        "tp": record.text(f"{side}tp"),
        "ep": record.text(f"{side}ep"),
        "dp_attention": record.text(f"{side}dp_attention"),
        "spec_decode": record.text("spec_method" if published else "spec_decoding") or record.text("mtp"),
        "isl": record.text("isl"),
        "osl": record.text("osl"),
        "date": record.text("date")[:10],
    }


def _model(record: Record) -> str:
    """The card that the model's name or InferenceX's prefix for it means; else the name as it stands."""
    prefix, name = record.text("infmax_model_prefix"), record.text("model")
    return next((model_named(text) for text in (prefix, name) if model_named(text) != text), name or prefix)


def _reason(record: Record, metrics: Record) -> str:
    if record.text("error"):
        return "failed run"
    asked, succeeded = record.number("num_requests_total"), record.number("num_requests_successful")
    if asked is not None and succeeded == 0:
        return "failed run: no request succeeded"
    kind = record.text("scenario_type") or record.text("benchmark_type")
    if kind.startswith("agentic") or "request_metrics" in record.data:
        return AGENTIC
    if record.text("disagg") == "true":
        return "disaggregated"
    if record.text("is_multinode") == "true":
        return "several nodes"
    if record.text("offload_mode") == "on":
        return "KV cache offloaded"
    if not any(metrics.number(f"{statistic}_tpot") for statistic in ("median", "mean")):
        mixed = any(metrics.number(f"{statistic}_tpot_ms") for statistic in ("median", "mean"))
        return "mixed units: latencies in ms in a row of seconds" if mixed else "failed run: no latencies"
    if not metrics.number("tput_per_gpu"):
        return "no throughput"
    if not record.number("conc"):
        return "no concurrency"
    return _mixed_units(metrics)


def _mixed_units(metrics: Record) -> str:
    for statistic in ("median", "mean"):
        tpot, speed = metrics.number(f"{statistic}_tpot"), metrics.number(f"{statistic}_intvty")
        if tpot and speed and abs(tpot * speed - 1) > UNIT_TOLERANCE:
            return "mixed units: TPOT in s and its reciprocal disagree"
        stated = metrics.number(f"{statistic}_tpot_ms")
        if tpot and stated and abs(tpot * 1e3 / stated - 1) > UNIT_TOLERANCE:
            return "mixed units: TPOT in s and in ms disagree"
    return ""


def _parts(record: Record, name: str) -> float:
    return max(record.number(key) or 1.0 for key in (name, f"decode_{name}", f"prefill_{name}"))
