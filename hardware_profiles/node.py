"""A node is one server: eight equal GPUs, their memory and arithmetic rates, and the links between them.

Vendor rates are peaks nobody reaches; where a rate was measured it stands beside the vendor's, and the simulator uses
the measured one. ``hbm_bytes`` is the total that the driver reports to vLLM, not the number on the box: an AMD
"288 GB" GPU reports 287.98 GiB, an NVIDIA "141 GB" GPU 139.72 GiB. On a machine without GPUs (``platform: cpu``) a
"GPU" is what one vLLM worker computes on, a NUMA node or a set of cores, with its share of the memory and its rates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hardware_profiles.shipped import find_file, shipped_names
from hardware_profiles.source import Source, SourceEntry
from hardware_profiles.strict_yaml import load_model, load_yaml

__all__ = ["Node", "list_nodes", "load_node"]

Platform = Literal["rocm", "cuda", "cpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One server type."""

    name: str
    "Short name, as in a scenario's ``hardware``."
    gpu: str
    "The vendor's name of the GPU."
    platform: Platform
    "Which of vLLM's builds runs on it; it decides weight padding and the runtime reserve."
    gpus_per_server: int
    "GPUs in one server."
    hbm_bytes: int
    "Memory of one GPU as the driver reports it, in bytes."
    hbm_bytes_per_s: float
    "Memory bandwidth of one GPU, vendor's peak, in bytes/s."
    hbm_measured_bytes_per_s: float | None
    "Memory bandwidth of one GPU as measured, in bytes/s."
    flops: Mapping[str, float]
    "Dense matrix rate of one GPU, vendor's peak, in FLOP/s, by precision (fp4, fp8, bf16); absent where unsupported."
    measured_flops: Mapping[str, float]
    "Dense matrix rate of one GPU as measured, in FLOP/s, by precision."
    link_bytes_per_s: float | None
    "One direction between two GPUs, in bytes/s: one xGMI link of a full mesh, or a GPU's whole port to the switch."
    scaleup_bytes_per_s: float
    "One direction of all links of one GPU together, in bytes/s."
    scaleup_topology: Literal["full_mesh", "switched"]
    "How the GPUs of the server are joined."
    tdp_w: float
    "Board power of one GPU, in watts."
    sources: Mapping[str, Source]
    "Provenance by field name."

    @property
    def hbm_rate_bytes_per_s(self) -> float:
        """Measured memory bandwidth where there is one, else the vendor's."""
        return self.hbm_bytes_per_s if self.hbm_measured_bytes_per_s is None else self.hbm_measured_bytes_per_s


class _NodeFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$", examples=["mi355x"])
    gpu: str = Field(min_length=1)
    platform: Platform
    gpus_per_server: int = Field(default=8, ge=1)
    hbm_bytes: int = Field(gt=0)
    hbm_bytes_per_s: float = Field(gt=0)
    hbm_measured_bytes_per_s: float | None = Field(default=None, gt=0)
    flops: dict[Literal["fp4", "fp8", "bf16"], float] = Field(min_length=1)
    measured_flops: dict[Literal["fp4", "fp8", "bf16"], float] = {}
    link_bytes_per_s: float | None = Field(default=None, gt=0)
    scaleup_bytes_per_s: float = Field(gt=0)
    scaleup_topology: Literal["full_mesh", "switched"]
    tdp_w: float = Field(gt=0)
    sources: dict[str, SourceEntry]

    @model_validator(mode="after")
    def _every_number_has_a_source(self) -> _NodeFile:
        numbers = set(self.model_fields_set) - {"name", "gpu", "platform", "sources"}
        if missing := sorted(numbers - set(self.sources)):
            raise ValueError(
                f"no source for {', '.join(missing)}; add it under `sources:` with source, date, how_known"
            )
        if unknown := sorted(set(self.sources) - numbers):
            raise ValueError(f"a source for {', '.join(unknown)}, which the file does not state; remove it")
        if bad := [rate for rate in (*self.flops.values(), *self.measured_flops.values()) if rate <= 0]:
            raise ValueError(f"{bad[0]} FLOP/s is not allowed; a rate must be greater than zero")
        return self


def list_nodes() -> tuple[str, ...]:
    """Names of the shipped nodes."""
    return shipped_names("nodes")


def load_node(name_or_path: str | Path, *, relative_to: Path | None = None) -> Node:
    """A shipped node by name, or a node file by path; a relative path is read against ``relative_to``."""
    path = find_file(name_or_path, folder="nodes", relative_to=relative_to, what="node")
    file = load_model(load_yaml(path), _NodeFile, what="a node file")
    return Node(
        name=file.name,
        gpu=file.gpu,
        platform=file.platform,
        gpus_per_server=file.gpus_per_server,
        hbm_bytes=file.hbm_bytes,
        hbm_bytes_per_s=file.hbm_bytes_per_s,
        hbm_measured_bytes_per_s=file.hbm_measured_bytes_per_s,
        flops={str(name): rate for name, rate in file.flops.items()},
        measured_flops={str(name): rate for name, rate in file.measured_flops.items()},
        link_bytes_per_s=file.link_bytes_per_s,
        scaleup_bytes_per_s=file.scaleup_bytes_per_s,
        scaleup_topology=file.scaleup_topology,
        tdp_w=file.tdp_w,
        sources={field: entry.to_source() for field, entry in file.sources.items()},
    )
