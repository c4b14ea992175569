"""A hardware profile: what was measured for one (node, model, precision, engine), reduced to physical coefficients.

The coefficients are fitted by `simulator.calibration` and read by `simulator.steptime`; this file only says what they
mean and where they come from. Efficiencies are shares, in (0, 1], of a rate of the node. Terms that differ between
tensor-parallel degrees stand under `tensor_parallel`; everything else is shared physics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from hardware_profiles.errors import InputError
from hardware_profiles.strict_yaml import load_model, load_yaml

__all__ = [
    "NOT_STATED",
    "TIERS",
    "AllReduce",
    "ErrorFigures",
    "HardwareProfile",
    "MeasuredRange",
    "ProfileFile",
    "SharedTerms",
    "TensorParallelTerms",
    "Tier",
    "find_profile_name",
    "is_date",
    "list_profiles",
    "load_profile",
    "profile_of",
]

FOLDER = Path(__file__).parent / "profiles"

NOT_STATED = "not stated"


def _ordered(limits: tuple[int, int]) -> tuple[int, int]:
    low, high = limits
    if not 0 <= low <= high or high < 1:
        raise ValueError(f"{low} to {high} is no range; write the least, then the most, both above 0")
    return limits


def _date_or_not_stated(text: str) -> str:
    if text != NOT_STATED and not is_date(text):
        raise ValueError(f"{text!r} is no date; write YYYY-MM-DD, or {NOT_STATED}")
    return text


def is_date(text: str) -> bool:
    """Whether a text is a calendar day, YYYY-MM-DD."""
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


Range = Annotated[tuple[int, int], AfterValidator(_ordered)]
Efficiency = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(ge=0, lt=10)]
Tier = Literal[
    "own measurements", "dated single runs with percentiles", "dated single runs", "pooled medians", "assumed"
]
"""Provenance, the best first."""
TIERS: tuple[Tier, ...] = get_args(Tier)


class _Terms(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class SharedTerms(_Terms):
    """Physics that all tensor-parallel degrees share."""

    smooth_exponent: Annotated[float, Field(ge=1, le=64)]
    """How well reading weights and multiplying hide each other: (a^p + b^p)^(1/p); 1 = not at all, large p = wholly."""
    expert_popularity_shape: Annotated[float, Field(gt=0)] | None = None
    """Shape s of the gamma law of the experts' popularity: n tokens touch E (1 - (1 + k n / (E s))^-s) of E experts.
    Large = all alike; None = a dense model."""
    host_s: Seconds
    """Scheduler and update time of one step, which async scheduling hides behind the GPU; 0 = not identified."""
    host_sequence_s: Seconds
    """The same, per sequence in the step."""
    sync_s: Seconds
    """Time of a step that nothing hides."""
    request_overhead_s: Seconds
    """Front end (HTTP, tokenizer): from arrival to the engine's queue, per request; 0 = not identified."""
    client_gap_s: Seconds = 0.0
    """Benchmark client: from a request's last token to the departure of the next, start-up stalls spread over the run
    included. It belongs to the protocol of the measured rows, so plans leave it out."""


class TensorParallelTerms(_Terms):
    """Coefficients of one tensor-parallel degree."""

    step_floor_s: Seconds
    """Launch and small kernels of every step, whatever its size."""
    prefill_floor_s: Seconds
    """What a step costs on top when it holds a prompt chunk (no full CUDA graph)."""
    sequence_s: Seconds
    """Sampling and attention set-up, per sequence that gives a token in the step."""
    weight_efficiency: Efficiency
    """Share of the HBM rate reached when reading weights."""
    flop_efficiency: Efficiency
    """Share of the matrix rate reached by large batches."""
    kv_efficiency: Efficiency
    """Share of the HBM rate reached when reading the KV cache in decode."""
    attention_efficiency: Efficiency
    """Share of the BF16 matrix rate reached by prefill attention."""


class AllReduce(_Terms):
    """Time of one all-reduce against message size, in two regimes (design 4.3)."""

    floor_s: Seconds
    """Latency of vLLM's custom all-reduce inside a captured graph."""
    bytes_per_s: Annotated[float, Field(gt=0)]
    """Its bandwidth up to `to_bytes`."""
    to_bytes: Annotated[float, Field(gt=0)]
    """Largest message that was measured."""
    large_bytes_per_s: Annotated[float, Field(gt=0)]
    """Message bytes per second above `large_from_bytes` (RCCL); fitted, bounded by TP/2 x link rate."""
    large_from_bytes: Annotated[float, Field(gt=0)]
    """From here on `large_bytes_per_s` holds; between the two the time is interpolated."""
    how_known: str
    """Measured, fitted or assumed, and from what."""

    @model_validator(mode="after")
    def _the_regimes_follow_each_other(self) -> AllReduce:
        if self.large_from_bytes <= self.to_bytes:
            raise ValueError(f"large_from_bytes {self.large_from_bytes:g} must be above to_bytes {self.to_bytes:g}")
        return self


class MeasuredRange(_Terms):
    """Where the measured rows lie; a result outside is *extrapolated*."""

    tensor_parallel_size: tuple[Annotated[int, Field(ge=1)], ...]
    concurrency: Range
    isl: Range
    osl: Range
    context: Range
    """Tokens held by one sequence."""


class ErrorFigures(_Terms):
    """Errors predicted / measured - 1 of one metric, as fractions: absolute, but for the bias."""

    rows: int
    median: float
    p95: float
    worst: float
    bias: float
    """Mean signed error."""


class ProfileFile(_Terms):
    """A profile as it stands in its YAML file; the fields mean what they mean in `HardwareProfile`."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9.-]+/[a-z0-9_.-]+$")]
    node: str
    model: str
    serves: tuple[str, ...] = ()
    precision: str
    engine: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    engine_version: str
    as_of: Annotated[str, AfterValidator(_date_or_not_stated)]
    variant: Annotated[str, Field(pattern=r"^[a-z0-9-]*$")] = ""
    """What sets its rows apart from plain tensor-parallel runs (`mtp`, `ep8`): a suffix of the name; empty = plain."""
    tier: Tier
    command: str
    sources: tuple[str, ...]
    caveats: tuple[str, ...]
    assumed_flags: dict[str, int | float | str | bool]
    kv_sensitivity: str
    measured: MeasuredRange
    shared: SharedTerms
    all_reduce: dict[int, AllReduce]
    tensor_parallel: Annotated[dict[int, TensorParallelTerms], Field(min_length=1)]
    typical: TensorParallelTerms | None = None
    deviation_sd: dict[str, Annotated[float, Field(ge=0)]] = {}
    residual_sd: Annotated[float, Field(ge=0)]
    """Root mean square of log(predicted / measured) of TPOT and throughput: the lack of fit that plans draw."""
    ttft_residual_sd: Annotated[float, Field(ge=0)] | None = None
    """The same of TTFT; None = no row has one."""
    interval_scale: Annotated[float, Field(gt=0)] = 1.0
    """Factor on the standard deviations with which 80 % intervals cover 80 % of the rows left out, by concurrency
    and by shape."""
    degree_interval_scale: Annotated[float, Field(gt=0)] = 1.0
    """The same of rows at a tensor-parallel degree left out: the factor for a degree that nobody measured."""
    coverage: dict[str, dict[str, float]] = {}
    """By evaluation and metric, the share of rows left out inside their 80 % interval, its factor taken from the other
    groups left out."""
    errors: dict[str, dict[str, ErrorFigures]]
    """By evaluation (in sample, leave one ... out), then by metric (tpot, throughput, ttft)."""

    @model_validator(mode="after")
    def _the_parts_agree(self) -> ProfileFile:
        for tp in self.tensor_parallel:
            if tp > 1 and tp not in self.all_reduce:
                raise ValueError(f"tensor_parallel {tp} has no all_reduce entry")
        held, measured = set(self.tensor_parallel), set(self.measured.tensor_parallel_size)
        if without := sorted(measured - held):
            raise ValueError(f"measured.tensor_parallel_size {without[0]} has no entry under tensor_parallel")
        if unmeasured := sorted(held - measured):
            raise ValueError(f"tensor_parallel {unmeasured[0]} is not in measured.tensor_parallel_size")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareProfile:
    """What was measured for (node, model, precision, engine), per tensor-parallel degree."""

    name: str
    """<node>/<model>-<precision>-<engine>."""
    node: str
    model: str
    serves: tuple[str, ...]
    """Other model cards of the same shape that it holds for."""
    precision: str
    engine: str
    variant: str
    """What sets its rows apart from plain tensor-parallel runs; empty = plain."""
    engine_version: str
    as_of: str
    tier: str
    """Provenance tier."""
    command: str
    """The command that made it."""
    sources: tuple[str, ...]
    caveats: tuple[str, ...]
    assumed_flags: Mapping[str, int | float | str | bool]
    """vLLM flags assumed for the measured rows, which do not state theirs."""
    kv_sensitivity: str
    """What 10 % more or fewer KV blocks change in the fit."""
    measured: MeasuredRange
    shared: SharedTerms
    all_reduce: Mapping[int, AllReduce]
    tensor_parallel: Mapping[int, TensorParallelTerms]
    typical: TensorParallelTerms | None
    """The shared values that each degree deviates from: the best guess for a degree that was not measured."""
    deviation_sd: Mapping[str, float]
    """By term, the standard deviation of ln(value of a degree / shared value), as assumed in the fit."""
    residual_sd: float
    ttft_residual_sd: float | None
    interval_scale: float
    degree_interval_scale: float
    coverage: Mapping[str, Mapping[str, float]]
    errors: Mapping[str, Mapping[str, ErrorFigures]]
    path: Path
    step_factor: float = 1.0
    """Every step is this many times as long as the terms say: 1, but in draws of the lack of fit."""


def list_profiles() -> tuple[str, ...]:
    """Names of the shipped profiles, sorted."""
    return tuple(sorted(f"{path.parent.name}/{path.stem}" for path in FOLDER.glob("*/*.yaml")))


def find_profile_name(name: str) -> str:
    """The one profile meant by a full name or by a prefix ending at a "-" (design 6).

    A prefix means a plain-vLLM profile only: other engines and variants (`-mtp`, `-ep8`) need their full name. A model
    that a profile serves beside its own may stand in the name.
    """
    known = list_profiles()
    if name in known:
        return name
    plain = [full for full in known if full.endswith("-vllm")]
    matches = [full for full in plain if full.startswith(f"{name}-")]
    if not matches:
        matches = [full for full in plain if any(f"{other}-".startswith(f"{name}-") for other in _other_names(full))]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise InputError(f"profile {name!r} is ambiguous: {', '.join(matches)}; give more of the name")
    others = [full for full in known if full.startswith(f"{name}-")]
    if others:
        raise InputError(f"{name!r} names no profile of plain vLLM; give the full name of one of: {', '.join(others)}")
    raise InputError(f"unknown profile {name!r}; shipped: {', '.join(known)}; or fit one with `goodfleet profile fit`")


def _other_names(full: str) -> list[str]:
    """What a shipped profile would be called for each further model that it serves."""
    profile = load_profile(FOLDER / f"{full}.yaml")
    return [full.replace(profile.model, other) for other in profile.serves]


def load_profile(name_or_path: str | Path) -> HardwareProfile:
    """A shipped profile by name or prefix, or a profile file by path (anything that ends in .yaml)."""
    text = str(name_or_path)
    if not text.endswith((".yaml", ".yml")) and (text.startswith(("/", "./", "../")) or Path(text).is_file()):
        raise InputError("is no .yaml file; name a profile that `goodfleet profile fit` wrote", file=text)
    path = Path(text) if text.endswith((".yaml", ".yml")) else FOLDER / f"{find_profile_name(text)}.yaml"
    return profile_of(load_model(load_yaml(path), ProfileFile, what="a hardware profile"), path)


def profile_of(file: ProfileFile, path: Path) -> HardwareProfile:
    """The profile that a file holds."""
    return HardwareProfile(path=path, **{field: getattr(file, field) for field in ProfileFile.model_fields})
