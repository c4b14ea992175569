"""The cost part: the price with its source and date, the arithmetic, the months, the price of a million tokens."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from planner.cost import hours_of_month
from planner.plan_file import Best, Plan
from planner.report.figures import figure
from planner.report.layout import facts, section, table
from planner.report.markup import Html, el, join, prose

__all__ = ["UNITS", "money"]

UNITS = {"per_gpu_hour": "GPU-hour", "per_server_hour": "server-hour"}


def money(plan: Plan, best: Best) -> Html:
    """What the fleet costs and why."""
    price = plan.price
    rows = [
        (month, figure("tally", hours_of_month(month)), figure("usd", cost))
        for month, cost in best.cost_usd_by_month.items()
    ]
    unit = UNITS.get(price["unit"], price["unit"])
    listed = join(el("b", f"{price['currency']} {price['price']} per {unit}"), f", {price['term'].replace('_', ' ')}")
    offered = "" if price.get("available") == "yes" else "; no region offered it that day"
    lowest, highest = min(best.cost_usd_by_month.values()), max(best.cost_usd_by_month.values())
    title = join("A month costs ", figure("usd", lowest))
    if highest != lowest:
        title = join(title, " to ", figure("usd", highest), ", by its hours")
    return section(
        "cost",
        title,
        facts(
            ("Price", listed),
            ("Listed", f"{price['date']}, {price['provider'] or 'provider not stated'}, sku {price['sku']}{offered}"),
            ("Source", prose(price["source"])),
            ("First month", _arithmetic(plan, best)),
            ("Per million output tokens", figure("usd-unit", best.usd_per_million_output_tokens)),
            ("Per million good tokens", figure("usd-unit", best.usd_per_million_good_tokens)),
            ("Unit prices hold", "at the scenario's demand, kept up all month; idle and spare servers are paid for"),
        ),
        table("Every hour of every server, in UTC", ("month", "hours", "cost"), rows, right=(1, 2), kind="slim"),
    )


def _arithmetic(plan: Plan, best: Best) -> Html | None:
    """Price × GPUs × servers × hours, where that is the amount."""
    if len(best.pools) != 1 or not best.cost_usd_by_month:
        return None
    pool, (month, cost) = best.pools[0], next(iter(best.cost_usd_by_month.items()))
    gpus = pool.gpus_per_replica * pool.replicas_per_server if plan.price["unit"] == "per_gpu_hour" else 1
    try:
        amount = Decimal(plan.price["price"]) * gpus * best.servers * hours_of_month(month)
    except InvalidOperation:
        return None
    if abs(amount - Decimal(repr(cost))) > Decimal("0.005"):
        return None
    per_server = f"{gpus} GPUs × " if gpus > 1 else ""
    return join(
        f"{plan.price['price']} × {per_server}", figure("servers", best.servers), " × ",
        figure("tally", hours_of_month(month)), f" h of {month} = ", el("b", figure("usd", cost)),
    )  # fmt: skip
