"""Where the memory of one GPU goes: a ledger whose lines add up to the KV cache."""

from __future__ import annotations

from planner.plan_file import Best
from planner.report.figures import FORMATS, figure
from planner.report.layout import bar, known, section, table
from planner.report.markup import Html, join, prose

__all__ = ["memory"]


def memory(best: Best) -> Html | None:
    """The best's ledger, line by line, with the running total as a bar."""
    if not best.memory:
        return None
    whole = max(1, *(int(line["bytes"]) for line in best.memory))
    rows: list[tuple[str, ...]] = []
    total = 0
    for line in best.memory:
        amount = int(line["bytes"])
        before, total = total, total + amount
        rows.append(
            (
                str(line["name"]),
                figure("memory", amount),
                figure("bytes", amount),
                bar(abs(amount) / whole, start=min(before, total) / whole, kind="" if amount > 0 else "less"),
                known(str(line["how_known"])),
                prose(str(line["note"])),
            )
        )
    rows.append(
        (
            "left for the KV cache",
            FORMATS["memory"](total),
            FORMATS["bytes"](total),
            bar(total / whole, kind="left"),
            "",
            join("the sum: ", figure("count", best.kv_tokens), " tokens per replica"),
        )
    )
    title = join("One replica holds ", figure("count", best.kv_tokens), " tokens of context")
    head = ("memory of one GPU", "amount", "bytes", "", "known", "from")
    return section(
        "memory", title, table("The bytes add up exactly; GiB are rounded", head, rows, right=(1, 2), foot=True)
    )
