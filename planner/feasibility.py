"""Whether a configuration can run at all: vLLM's own rules, divisibility, memory. What cannot is a `Rejection`.

A rejection is data: the flags, the constraint that rules them out, and a sentence with the numbers. It is never an
error and never silently dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from hardware_profiles.memory import KvLedger, kv_ledger, tensor_parallel_problem
from hardware_profiles.model import ModelCard
from hardware_profiles.node import Node
from hardware_profiles.profile import HardwareProfile
from simulator.engine import ENGINE_FLAGS, EngineConfig, engine_with_defaults
from simulator.flags import FlagValue, flag_text
from simulator.hardware_check import unusable_tensor_parallel_size

__all__ = ["Configuration", "Platform", "Rejection", "check"]

GIB = 1024**3
ALWAYS = ("tensor_parallel_size", "max_num_seqs", "max_num_batched_tokens")
"""Flags that every label holds."""
SIZES = (*ALWAYS, "max_model_len")
"""Those, and one that has no usual value."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Platform:
    """What a configuration runs on: a node type, a model, and the profile measured for the two."""

    node: Node
    card: ModelCard
    precision: str
    profile: HardwareProfile


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Configuration:
    """One replica's vLLM flags on a platform, with the memory it leaves for the KV cache: what is screened."""

    platform: Platform
    engine: EngineConfig
    ledger: KvLedger
    """Where the GPU's memory goes."""
    searched: frozenset[str] = frozenset()
    """Flags that other configurations of the same search have other values of."""

    @property
    def replicas_per_server(self) -> int:
        return self.platform.node.gpus_per_server // self.engine.tensor_parallel_size

    @property
    def num_blocks(self) -> int:
        """KV blocks for full-attention tokens of one replica."""
        return self.ledger.kv_tokens // self.engine.block_size

    @property
    def label(self) -> str:
        """Replicas x TP, the two batch limits, what is searched, and what else a plan does not do by itself."""
        engine = self.engine
        usual = {f.name: f.default for f in fields(EngineConfig)}
        others = "".join(
            f", {name} {flag_text(value)}"
            for name, value in engine.values().items()
            if name in ENGINE_FLAGS
            and name not in ALWAYS
            and (name in self.searched or (name not in SIZES and value != usual[name]))
        )
        return (
            f"{self.replicas_per_server} × TP{engine.tensor_parallel_size}, max_num_seqs {engine.max_num_seqs}, "
            f"max_num_batched_tokens {engine.max_num_batched_tokens}{others}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A configuration that was ruled out, and why."""

    node: str
    precision: str
    engine: Mapping[str, FlagValue]
    """The flags that were given."""
    constraint: str
    """The binding constraint, one word."""
    detail: str
    """One sentence with the numbers."""


def check(
    platform: Platform,
    flags: Mapping[str, FlagValue],
    *,
    longest_tokens: int | None = None,
    searched: Iterable[str] = (),
) -> Configuration | Rejection:
    """Apply the rules in order; the first that fails is the binding constraint. Labels name the `searched` flags.

    `longest_tokens` is the longest fixed prompt and answer of the workloads, where it is known.
    """
    node, card = platform.node, platform.card
    smallest = min(platform.profile.tensor_parallel)
    engine = engine_with_defaults(flags, node=node, card=card, tensor_parallel_size=smallest)

    def reject(constraint: str, detail: str) -> Rejection:
        return Rejection(
            node=node.name, precision=platform.precision, engine=dict(flags), constraint=constraint, detail=detail
        )

    tp = engine.tensor_parallel_size
    if problem := unusable_tensor_parallel_size(tp, node, card):
        return reject("tensor_parallel_size", problem)
    if problem := tensor_parallel_problem(card, tp, platform.precision):
        return reject("tensor_parallel_size", problem)
    if tp not in platform.profile.tensor_parallel:
        measured = ", ".join(str(degree) for degree in platform.profile.tensor_parallel)
        return reject("profile", f"TP {tp} was not measured in {platform.profile.name}; it has TP {measured}")
    if broken := _broken_rule(engine):
        return reject(*broken)
    if engine.max_model_len > card.max_model_len:
        return reject(
            "max_model_len", f"max_model_len {engine.max_model_len} is above the model's {card.max_model_len} tokens"
        )
    if longest_tokens is not None and longest_tokens > engine.max_model_len:
        return reject(
            "max_model_len",
            f"max_model_len {engine.max_model_len} is shorter than the longest request, {longest_tokens} tokens",
        )
    ledger = kv_ledger(
        node,
        card,
        platform.precision,
        tensor_parallel_size=tp,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
        kv_cache_dtype=engine.kv_cache_dtype,
        block_size=engine.block_size,
        num_gpu_blocks_override=engine.num_gpu_blocks_override,
    )
    if ledger.available_bytes <= 0 and engine.num_gpu_blocks_override is None:
        return reject(
            "memory",
            f"weights, activations and reserve need {-ledger.available_bytes / GIB:,.1f} GiB more than "
            f"{engine.gpu_memory_utilization:.0%} of the {node.hbm_bytes / GIB:,.0f} GiB of one GPU at TP {tp}",
        )
    if ledger.kv_tokens < engine.max_model_len:
        return reject(
            "kv_cache",
            f"the KV cache holds {max(0, ledger.kv_tokens):,} tokens, fewer than one request of max_model_len "
            f"{engine.max_model_len:,}; vLLM refuses to start",
        )
    return Configuration(platform=platform, engine=engine, ledger=ledger, searched=frozenset(searched))


def _broken_rule(engine: EngineConfig) -> tuple[str, str] | None:
    """The first rule of vLLM 0.32 `config/scheduler.py: SchedulerConfig.verify_max_model_len` that does not hold."""
    tokens, length = engine.max_num_batched_tokens, engine.max_model_len
    if not engine.enable_chunked_prefill and tokens < length:
        return (
            "enable_chunked_prefill",
            f"without chunked prefill a prompt must fit one step, but max_num_batched_tokens {tokens} is below "
            f"max_model_len {length}; vLLM refuses that",
        )
    if tokens < engine.max_num_seqs:
        return (
            "max_num_batched_tokens",
            f"max_num_batched_tokens {tokens} is below max_num_seqs {engine.max_num_seqs}; vLLM refuses that",
        )
    if engine.max_num_active_seqs is not None and engine.max_num_active_seqs > engine.max_num_seqs:
        return (
            "max_num_active_seqs",
            f"max_num_active_seqs {engine.max_num_active_seqs} is above max_num_seqs {engine.max_num_seqs}; "
            "vLLM refuses that",
        )
    if engine.long_prefill_token_threshold > length:
        return (
            "long_prefill_token_threshold",
            f"long_prefill_token_threshold {engine.long_prefill_token_threshold} is above max_model_len {length}; "
            "vLLM refuses that",
        )
    return None
