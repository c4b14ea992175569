"""A target is a place where vLLM can be started with given flags: the seam is one method wide.

The server that comes back is the unit of replication (docs/methods/statistics.md): started fresh where the target can,
loaded, stopped. Every target passes `tests/contract/target_contract.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from simulator.flags import FlagValue

__all__ = ["RunningServer", "ServerFacts", "Target", "TargetError"]


class TargetError(Exception):
    """The environment is broken: a server that does not start, dies, or does not answer. Exit code 1, no traceback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What a running server says it does, which is not always what it was told."""

    vllm_version: str
    model_id: str
    """The name that requests must carry."""
    model_path: str
    """What the server loaded; the benchmark client takes the tokenizer from it."""
    kv_cache_tokens: int | None
    """Tokens of KV cache as vLLM logs them, its null block included; None = it does not say."""
    num_gpu_blocks: int | None
    flags: Mapping[str, FlagValue]
    """Flags in effect, by vLLM's names; a flag that the server does not tell is absent."""
    told_by: str
    """Where the flags come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that answers."""

    url: str
    facts: ServerFacts
    pid: int | None
    """Its first process where it runs on this machine and we know it; contention is then measured."""
    log: Path | None
    command: str
    """What started it; empty where somebody else did."""
    fresh: bool
    """Started for this session: what is measured includes what a restart changes."""


class Target(Protocol):
    """Where a configuration can run."""

    def running(self, flags: Mapping[str, FlagValue]) -> AbstractContextManager[RunningServer]:
        """A server with these flags, ready; on leaving, what was started is stopped. Failure is a `TargetError`."""
        ...
