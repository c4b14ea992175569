"""The user's file: which model on which machines, for which traffic, with which targets, at which price.

One scenario serves planning, simulation and validation. It is checked whole when it is loaded: unknown and duplicate
keys, types and ranges first, then what only several keys together can get wrong. What needs a model card or a node is
checked by `hardware_check`. Whatever passes can still be infeasible; that is a result of planning, not an error.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from hardware_profiles.errors import InputError
from hardware_profiles.schema_errors import key_text
from hardware_profiles.strict_yaml import Document, load_model, load_yaml
from simulator.flags import Baseline, EngineFlags, FlagValue, Search, flag_text
from simulator.lengths import typical_tokens
from simulator.traces import Trace, read_trace
from simulator.traffic import ClosedTraffic, TraceTraffic, Workload

__all__ = [
    "Cost",
    "Fleet",
    "LoadedScenario",
    "Scenario",
    "load_scenario",
    "overlong",
]


def _one_or_more(value: object) -> object:
    """``mi355x`` is read as ``[mi355x]``."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


_EXAMPLES = {"precision": "[mxfp4]", "hardware": "[mi355x]", "profiles": "[mi355x/gpt-oss-120b-mxfp4-vllm]"}


def _distinct_names(names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    if not names or not all(name.strip() for name in names):
        raise ValueError(f"a name is missing; list at least one, e.g. {_EXAMPLES[info.field_name or 'hardware']}")
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise ValueError(f"{repeated[0]} is listed twice; list each name once")
    return names


_Names: TypeAlias = Annotated[
    tuple[str, ...],
    BeforeValidator(_one_or_more, json_schema_input_type=str | list[str]),
    AfterValidator(_distinct_names),
]


def _named_workloads(workloads: dict[str, Workload]) -> dict[str, Workload]:
    if not workloads:
        raise ValueError(
            "there are no workloads; describe at least one, "
            "e.g. chat: {traffic: {rate_rps: 40}, isl: 256, osl: 256, slo: {ttft_ms: 500}}"
        )
    for name in workloads:
        if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9 ._-]{0,62}[A-Za-z0-9])?", name):
            raise ValueError(f"the workload name {name!r} is not allowed; use letters, digits, '-', '_' and '.'")
    return workloads


def _calendar_month(month: str | None) -> str | None:
    if month is not None and not re.fullmatch(r"[0-9]{4}-(0[1-9]|1[0-2])", month):
        raise ValueError(f"{month!r} is not a month; write year and month, e.g. start: 2027-01")
    return month


class Fleet(BaseModel):
    """How many servers there may be, and how requests are spread over them."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    routing: Literal["round_robin", "least_outstanding"] = "least_outstanding"
    "How the router picks a replica for each request."
    spare_servers: Annotated[int, Field(ge=0, le=1_000_000, examples=[1])] = 1
    "Servers beyond what the traffic needs, so that one may fail or be maintained."
    headroom: Annotated[float, Field(ge=0, le=4, examples=[0.2])] = 0.2
    "The fleet is sized for demand x (1 + headroom); 0.2 is 20 %."
    max_servers: Annotated[int, Field(ge=1, le=1_000_000, examples=[64])] = 64
    "More servers than this, spares apart, are no answer: spare_servers come on top."


class Cost(BaseModel):
    """Which price book, which terms, over which months."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    prices: Annotated[str, Field(min_length=1, examples=["example.yaml"])] = "example.yaml"
    "A price book: a shipped name, or a path from the scenario's folder."
    term: Annotated[str, Field(min_length=1, examples=["on_demand"])] = "on_demand"
    "Which of the book's terms applies."
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$", examples=["USD"])] = "USD"
    "ISO 4217 code."
    start: Annotated[str | None, AfterValidator(_calendar_month), Field(examples=["2027-01"])] = None
    "First calendar month of the cost, YYYY-MM; default: the month of as_of."
    horizon_months: Annotated[int, Field(ge=1, le=120, examples=[12])] = 12
    "How many months are added up."


class Scenario(BaseModel):
    """The file's top level."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: Annotated[str, Field(min_length=1, max_length=100, examples=["four-workloads"])]
    "What reports call it."
    model: Annotated[str, Field(min_length=1, examples=["gpt-oss-120b"])]
    "A model card's name or alias, or a path to a model's folder."
    precision: Annotated[_Names | None, Field(examples=["mxfp4"])] = None
    "One precision of the weights, or several to search; default: the card's native one."
    hardware: Annotated[_Names, Field(examples=["[mi355x]"])]
    "Node types to consider."
    profiles: Annotated[_Names | None, Field(examples=["mi355x/gpt-oss-120b-mxfp4-vllm"])] = None
    "Profiles to use in place of the shipped plain vLLM ones: names, or files that `goodfleet profile fit` wrote."
    workloads: Annotated[dict[str, Workload], AfterValidator(_named_workloads)]
    "What the fleet serves, by name."
    baseline: Baseline | None = None
    "What runs today."
    engine: EngineFlags = EngineFlags()
    "Flags held fixed, in the search and in the baseline."
    search: Search | None = None
    "The space to search; default: a good one for the model and the node."
    fleet: Fleet = Fleet()
    "Size and routing."
    cost: Cost | None = None
    "Prices; without it the shipped example prices apply."
    seed: Annotated[int, Field(ge=0, le=2**63 - 1, examples=[1])] = 1
    "Equal seeds give equal results."
    as_of: Annotated[date | None, Field(examples=["2026-12-01"])] = None
    "The date prices and months are looked up for; default: today, recorded in the plan."

    def baseline_flags(self) -> dict[str, FlagValue]:
        """The baseline's flags with those of ``engine:`` filled in; vLLM's defaults are not."""
        return self.engine.given() | (self.baseline.given() if self.baseline is not None else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedScenario:
    """A scenario with all that its file brings along."""

    scenario: Scenario
    "What the user wrote, checked."
    path: Path
    "The file as it was named; relative paths inside it start at its folder."
    sha256: str
    "Of the file's bytes, hexadecimal."
    document: Document
    "The raw file, for the line of a key."
    traces: Mapping[str, Trace]
    "The recorded requests of each workload that replays a trace, by workload name."
    allow_other_engine: bool = False
    "Whether profiles of engines whose scheduler is not the simulated one may be used."

    def error(self, problem: str, key: tuple[str | int, ...]) -> InputError:
        """An `InputError` that points at ``key`` in this file."""
        return _error(self.document, problem, key)


def _error(document: Document, problem: str, key: tuple[str | int, ...]) -> InputError:
    return InputError(problem, file=str(document.path), line=document.line(key), key=key_text(key) or None)


def load_scenario(path: str | Path, *, allow_other_engine: bool = False) -> LoadedScenario:
    """Read and check a scenario and the traces it names; a mistake is an `InputError`."""
    path = Path(path)
    document = load_yaml(path)
    scenario = load_model(document, Scenario, what="a scenario")
    _check_flags(scenario, document)
    _check_closed_loop(scenario, document)
    _check_priorities(scenario, document)
    traces = _read_traces(scenario, document)
    for name, workload in scenario.workloads.items():
        _check_lengths(scenario, document, name, workload, traces.get(name))
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return LoadedScenario(
        scenario=scenario,
        path=path,
        sha256=sha256,
        document=document,
        traces=traces,
        allow_other_engine=allow_other_engine,
    )


def _check_flags(scenario: Scenario, document: Document) -> None:
    engine = scenario.engine.given()
    baseline = scenario.baseline.given() if scenario.baseline is not None else {}
    searched = scenario.search.lists() if scenario.search is not None else {}
    for name, value in engine.items():
        if name in searched:
            line = document.line(("engine", name))
            problem = f"{name} is held fixed at {flag_text(value)} in engine (line {line}), so it cannot be searched"
            raise _error(document, f"{problem}; remove one of the two", ("search", name))
        if name in baseline and baseline[name] != value:
            problem = f"{flag_text(baseline[name])} contradicts engine.{name}: {flag_text(value)}"
            problem += ", which holds for the baseline too"
            raise _error(document, f"{problem}; use one value, or search the flag instead", ("baseline", name))
    _check_idle_flags(scenario, document)
    for section, flags in (("engine", engine), ("baseline", engine | baseline)):
        tokens, seqs = flags.get("max_num_batched_tokens"), flags.get("max_num_seqs")
        if isinstance(tokens, int) and isinstance(seqs, int) and tokens < seqs:
            problem = f"{tokens} is below max_num_seqs ({seqs}), which vLLM refuses; raise it to at least {seqs}"
            where = section if "max_num_batched_tokens" in getattr(scenario, section).given() else "engine"
            raise _error(document, problem, (where, "max_num_batched_tokens"))


def _check_idle_flags(scenario: Scenario, document: Document) -> None:
    """A flag that can change nothing is a mistake in ``engine:``; in ``baseline:`` it is what somebody runs."""
    flags, searched = scenario.engine, scenario.search.lists() if scenario.search is not None else {}
    cap, tokens = flags.long_prefill_token_threshold, flags.max_num_batched_tokens
    if cap is not None and tokens is not None and cap >= tokens:
        problem = f"{cap} caps nothing, since a step has at most max_num_batched_tokens ({tokens}) tokens"
        raise _error(document, f"{problem}; lower it, or leave it out", ("engine", "long_prefill_token_threshold"))
    if flags.long_prefill_token_threshold_adaptive and not cap and "long_prefill_token_threshold" not in searched:
        problem = "true raises a cap that is not there; add long_prefill_token_threshold, e.g. 2048"
        raise _error(document, problem, ("engine", "long_prefill_token_threshold_adaptive"))


def _check_priorities(scenario: Scenario, document: Document) -> None:
    given = (scenario.engine, scenario.baseline)
    policies = [flags.scheduling_policy for flags in given if flags is not None]
    policies += (scenario.search.scheduling_policy or ()) if scenario.search is not None else ()
    for name, workload in scenario.workloads.items():
        if workload.priority != 0 and "priority" not in policies:
            problem = f"{workload.priority} changes nothing while requests are served in order of arrival"
            cure = "add scheduling_policy: priority to engine, or list it in search"
            raise _error(document, f"{problem}; {cure}", ("workloads", name, "priority"))


def _check_closed_loop(scenario: Scenario, document: Document) -> None:
    for name, workload in scenario.workloads.items():
        if isinstance(workload.traffic, ClosedTraffic) and len(scenario.workloads) > 1:
            problem = "a closed loop cannot share the fleet with other workloads; give it a scenario of its own"
            raise _error(document, problem, ("workloads", name, "traffic", "concurrency"))


def _read_traces(scenario: Scenario, document: Document) -> dict[str, Trace]:
    traces: dict[str, Trace] = {}
    for name, workload in scenario.workloads.items():
        if not isinstance(workload.traffic, TraceTraffic):
            continue
        key = ("workloads", name, "traffic", "trace")
        path = document.path.parent / workload.traffic.trace
        if not path.is_file():
            problem = f"there is no trace file {workload.traffic.trace!r} (looked for {path}); correct the path"
            raise _error(document, f"{problem}, which starts at the scenario's folder", key)
        written = workload.traffic
        trace = read_trace(path, format=written.format, time_unit=written.time_unit, block_tokens=written.block_tokens)
        if trace.output_tokens.max() == 1 and not workload.slo.judges_one_token_answers():
            problem = f"every answer in {path.name} has one token, so a target on gaps between tokens never applies"
            raise _error(document, f"{problem}; give one that does, e.g. ttft_ms: 500", ("workloads", name, "slo"))
        traces[name] = trace
    return traces


def _check_lengths(scenario: Scenario, document: Document, name: str, workload: Workload, trace: Trace | None) -> None:
    for section, limit in (
        ("engine", scenario.engine.max_model_len),
        ("baseline", scenario.baseline.max_model_len if scenario.baseline is not None else None),
    ):
        if limit is not None and workload.prefix is not None and workload.prefix.tokens > limit:
            beyond = f"{workload.prefix.tokens} do not fit {section}.max_model_len: {limit}; shorten the documents"
            raise _error(document, beyond, ("workloads", name, "prefix", "tokens"))
        problem = None if limit is None else overlong(workload, trace, limit)
        if problem is not None:
            key = ("workloads", name, "isl") if trace is None else ("workloads", name, "traffic", "trace")
            limit_text = f"{section}.max_model_len: {limit} (line {document.line((section, 'max_model_len'))})"
            raise _error(document, f"{problem} {limit_text}; raise that limit or shorten the lengths", key)


def overlong(workload: Workload, trace: Trace | None, limit_tokens: int) -> str | None:
    """What does not fit ``limit_tokens``: fixed lengths, upper bounds, the means of lognormals and traces; else None.

    Single requests of a spread that are longer are cut, and their share is reported (`lengths.clip_lengths`).
    """
    if trace is not None:
        prompt, output = float(trace.prompt_tokens.mean()), float(trace.output_tokens.mean())
    elif workload.isl is not None and workload.osl is not None:
        prompt, output = typical_tokens(workload.isl), typical_tokens(workload.osl)
    else:
        return None
    if prompt + output <= limit_tokens:
        return None
    return f"{prompt:g} prompt and {output:g} answer tokens do not fit"
