"""Names that tell a plan's candidates apart.

A candidate's label holds the flags that matter most. Where two candidates share a label, the flags in which any two
differ are added, and so are node and precision where there are several.
"""

from __future__ import annotations

from collections import Counter

from planner.plan_file import Plan

__all__ = ["candidate_names"]

IN_LABEL = frozenset({"tensor_parallel_size", "max_num_seqs", "max_num_batched_tokens", "kv_cache_dtype"})


def candidate_names(plan: Plan, *, place: bool = True) -> tuple[str, ...]:
    """One name per row of `plan.candidates`, in their order; `place` adds node and precision where they differ."""
    rows = plan.candidates
    labels = Counter(c.label for c in rows)
    flags = dict.fromkeys(name for c in rows for name in c.engine if name not in IN_LABEL)
    varying = [name for name in flags if len({c.engine.get(name) for c in rows}) > 1]
    several_nodes = place and len({c.node for c in rows}) > 1
    several_precisions = place and len({c.precision for c in rows}) > 1
    names: list[str] = []
    for c in rows:
        where = ([c.node] if several_nodes else []) + ([c.precision] if several_precisions else [])
        extra = [f"{name} {c.engine[name]}" for name in varying if name in c.engine] if labels[c.label] > 1 else []
        names.append(", ".join([*where, c.label, *extra]))
    return tuple(names)
