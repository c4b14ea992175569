"""The result of one `vllm bench serve --save-result` run (vLLM 0.32, `vllm/benchmarks/serve.py`: `main_async`).

The raw client file of InferenceX (`NAME.json`, `utils/bench_serving/benchmark_serving.py`) has the same keys. All
latencies are in milliseconds and end in `_ms`; throughput counts the requests that succeeded, over the whole run.
The file holds no GPU, TP, precision or server flag, and no length range (`run_facts.py`). Prompt and answer lengths
are the run's own means (`total_input_tokens / completed`), or those in `run.yaml`, which must agree with the means;
`--save-detailed` lists every length, so the range is read from them.

Without a rate and a concurrency all N requests are sent at once: a closed loop of N requests, N in flight.

Left out, with the reason: runs in which nothing or less than 95 % of the requests succeeded, ramps, arrivals that are
not Poisson, endpoints that do not stream, answers of one token, and lengths that are not uniform.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hardware_profiles.errors import InputError
from simulator.result_json import JsonValue, Record
from simulator.run_facts import FACTS, merged, model_named

__all__ = ["bench_serve_cells", "is_bench_serve"]

SUCCESS = 0.95
"""Least share of the requests that must have succeeded."""
SKEW = 0.15
"""Largest distance of the mean length from the middle of its range, as a share of the middle."""
AGREES = 0.2
"""Largest relative difference between a stated mean length and the run's own."""


def is_bench_serve(record: Record) -> bool:
    """Whether it has the keys that every such run writes."""
    return {"total_token_throughput", "completed", "total_input_tokens"} <= record.data.keys()


def bench_serve_cells(record: Record, beside: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str] | str:
    """The row's cells, in the tidy CSV's columns, or why the run is no row."""
    reason = _reason(record)
    if reason:
        return reason
    lengths = _lengths(record)
    if isinstance(lengths, str):
        return lengths
    own = {key: record.text(key) for key in FACTS if key in record.data}
    own |= {"model": model_named(own.get("model") or record.text("model_id"))}
    if "spec_decode_acceptance_rate" in record.data:
        own |= {"spec_decode": own.get("spec_decode") or beside.get("spec_decode") or "spec"}
    for key in ("isl", "osl", "length_low", "length_high"):
        if key not in beside and not own.get(key):
            own[key] = lengths[key]
    own["date"] = _date(record.text("date"))
    own["num_requests"] = record.text("completed")
    cells = merged(own, beside, given, place=record.place)
    _check_lengths(record, cells)
    throughput, tp = record.number("total_token_throughput") or 0.0, _whole(cells["tp"], record)
    cells |= {
        "max_concurrency": record.text("max_concurrency") or ("" if _is_open(record) else record.text("completed")),
        "request_rate": record.text("request_rate"),
        "total_tps_per_gpu": repr(throughput / tp),
    }
    for metric in ("tpot", "ttft"):
        for statistic in ("median", "mean"):
            if value := record.number(f"{statistic}_{metric}_ms"):
                cells[f"{metric}_{statistic}_ms"] = repr(value)
    return cells


def _reason(record: Record) -> str:
    completed, asked = record.number("completed") or 0.0, record.number("num_prompts") or 0.0
    failed = record.number("failed") or max(asked - completed, 0.0)
    if completed == 0:
        return "failed run: no request succeeded"
    if completed < SUCCESS * (completed + failed):
        return f"failed run: less than {SUCCESS:.0%} of the requests succeeded"
    if record.text("ramp_up_strategy"):
        return "the request rate ramps up"
    if _is_open(record) and (record.number("burstiness") or 1.0) != 1.0:
        return "arrivals are not Poisson (burstiness)"
    if not any(record.number(f"{statistic}_ttft_ms") for statistic in ("median", "mean")):
        return "the endpoint did not stream: no TTFT"
    if not any(record.number(f"{statistic}_tpot_ms") for statistic in ("median", "mean")):
        return "answers of one token have no TPOT"
    return ""


def _is_open(record: Record) -> bool:
    return record.text("request_rate").lower() not in ("", "inf", "infinity")


def _lengths(record: Record) -> dict[str, str] | str:
    """Mean lengths and their range as shares of the means; fixed lengths where the run does not list them."""
    completed = record.number("completed") or 0.0
    means = [(record.number(f"total_{kind}_tokens") or 0.0) / completed for kind in ("input", "output")]
    isl, osl = (max(round(mean), 1) for mean in means)
    low = high = 1.0
    for key, mean in zip(("input_lens", "output_lens"), means, strict=True):
        listed = _listed(record.data.get(key))
        if not listed or mean <= 0:
            continue
        middle = (min(listed) + max(listed)) / 2
        if abs(mean - middle) > SKEW * middle:
            return "prompt or answer lengths are not uniform"
        low, high = min(low, min(listed) / mean), max(high, max(listed) / mean)
    return {"isl": str(isl), "osl": str(osl), "length_low": repr(low), "length_high": repr(high)}


def _listed(value: JsonValue) -> Sequence[float]:
    if not isinstance(value, list):
        return ()
    return [item for item in value if isinstance(item, int | float) and item > 0]


def _check_lengths(record: Record, cells: Mapping[str, str]) -> None:
    """A stated nominal length whose mean is far from the run's own belongs to another run."""
    completed = record.number("completed") or 1.0
    for key, kind in (("isl", "input"), ("osl", "output")):
        mean = (record.number(f"total_{kind}_tokens") or 0.0) / completed
        try:
            stated = float(cells[key]) * (float(cells["length_low"]) + float(cells["length_high"])) / 2
        except ValueError:
            raise InputError(f"{cells[key]!r} with its length range is no number", file=record.place, key=key) from None
        if abs(stated - mean) > AGREES * max(stated, mean):
            problem = f"a mean of {stated:g} tokens is stated, but the run had {mean:,.0f}; correct {key} or its range"
            raise InputError(problem, file=record.place, key=key)


def _date(text: str) -> str:
    """vLLM writes 20261130-101500."""
    digits = text[:8]
    return f"{digits[:4]}-{digits[4:6]}-{digits[6:]}" if len(digits) == 8 and digits.isdigit() else text[:10]


def _whole(text: str, record: Record) -> int:
    if not text.removesuffix(".0").isdigit() or not 0 < float(text) < 1e4:
        raise InputError(f"{text!r} is not allowed; it must be a whole number from 1", file=record.place, key="tp")
    return int(float(text))
