"""Names that tell a plan's candidates apart.

A candidate's label holds the flags that matter most. Where two candidates share a label, the flags in which any two
differ are added, and so are node and precision where there are several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from planner.plan_file import EngineFlagValues, Plan
from simulator.engine import flag_value
from simulator.flags import flag_text

__all__ = ["candidate_names", "flags_text", "varying_flags"]

IN_LABEL = frozenset({"tensor_parallel_size", "max_num_seqs", "max_num_batched_tokens", "kv_cache_dtype"})


def candidate_names(plan: Plan, *, place: bool = True) -> tuple[str, ...]:
    """One name per row of `plan.candidates`, in their order; `place` adds node and precision where they differ."""
    rows = plan.candidates
    labels = Counter(c.label for c in rows)
    varying = [name for name in varying_flags(plan) if name not in IN_LABEL]
    several_nodes = place and len({c.node for c in rows}) > 1
    several_precisions = place and len({c.precision for c in rows}) > 1
    names: list[str] = []
    for c in rows:
        where = ([c.node] if several_nodes else []) + ([c.precision] if several_precisions else [])
        untold = [name for name in varying if f", {name} " not in c.label] if labels[c.label] > 1 else []
        extra = [flags_text(c.engine, untold)] if untold else []
        names.append(", ".join([*where, c.label, *extra]))
    return tuple(names)


def varying_flags(plan: Plan) -> list[str]:
    """The flags in which two candidates differ; where a candidate has none, vLLM's default counts."""
    flags = dict.fromkeys(name for c in plan.candidates for name in c.engine)
    return [name for name in flags if len({flag_value(c.engine, name) for c in plan.candidates}) > 1]


def flags_text(engine: EngineFlagValues, names: Iterable[str] | None = None) -> str:
    """Flags with their values, as a scenario spells them: all that are listed, or those named."""
    values = [(name, flag_value(engine, name)) for name in (engine if names is None else names)]
    return ", ".join(f"{name} {flag_text(value)}" for name, value in values if value is not None)
