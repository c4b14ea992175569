"""The answer: one sentence, the few figures behind it, what each server is there for, what one fewer does."""

from __future__ import annotations

from planner.plan_file import Best, NearestMiss, Plan, UncertaintyRow
from planner.queue_limits import limits_text
from planner.report.figures import figure
from planner.report.layout import bar, facts, known, section, table
from planner.report.markup import Html, el, join, prose
from planner.report.names import candidate_names, flags_text

__all__ = ["answer", "best_name", "nearest_miss", "notes", "saving", "servers"]

REASONS = {
    "traffic": "carry the scenario's traffic within its targets",
    "headroom": "more, for the load with headroom",
    "spare": "may fail or be in maintenance without a target being missed",
}
MOST_BOXES = 256
COLOURS = 5


def best_name(plan: Plan, best: Best) -> str:
    """The best's label, told apart from its ties."""
    return candidate_names(plan, place=False)[0] if plan.candidates else best.label


def answer(plan: Plan) -> Html:
    """The page's head: what to do, or that nothing does."""
    best, miss = plan.best, plan.nearest_miss
    if best is not None:
        return join(_sentence(plan, best), _tiles(plan, best))
    return join(_refusal(plan, miss))


def _sentence(plan: Plan, best: Best) -> Html:
    nodes = " and ".join(dict.fromkeys(pool.node for pool in best.pools))
    precisions = "/".join(dict.fromkeys(pool.precision for pool in best.pools))
    serve, meet = ("serves", "meets") if best.servers == 1 else ("serve", "meet")
    return el(
        "h1",
        join(el("b", figure("servers", best.servers)), f" ({nodes}) with {plan.scenario['model']} in {precisions} as "),
        el("span", best_name(plan, best), class_="flags"),
        join(f" {serve} this traffic for ", el("b", figure("usd", best.cost_usd_per_month)), f" a month and {meet} "),
        join("every target with a probability of ", el("b", figure("share", best.probability_of_meeting_targets))),
        "; simulated, not validated on hardware.",
    )


def _tiles(plan: Plan, best: Best) -> Html:
    met = best.probability_of_meeting_targets
    draws = join(figure("count", best.probability_draws), " draws of profile and seed")
    base = plan.baseline
    tiles = [
        _tile(figure("servers", best.servers), _reasons(best)),
        _tile(figure("usd", best.cost_usd_per_month), join("in ", next(iter(best.cost_usd_by_month), "a month"))),
        _tile(
            figure("share", met), join("that every target holds, over ", draws), "good" if met >= 0.9 else "doubtful"
        ),
    ]
    if base is not None and base.saving_usd_per_month:
        saved = base.saving_usd_per_month
        word = "less" if saved >= 0 else "more"
        tiles.append(_tile(figure("usd", abs(saved)), f"a month {word} than the baseline", "good" if saved > 0 else ""))
    tightest = el("p", "Tightest target: ", el("b", best.binding), ".")
    return join(el("ul", *tiles, class_="tiles"), tightest, _uncertainty(best))


def _uncertainty(best: Best) -> Html | None:
    """How sure the probability is, and whether the profile or the traffic makes it so."""
    found = best.uncertainty
    if found is None:
        return None
    both, alone, spread = found.probability, found.probability_seeds_alone, found.with_drawn_profiles
    return el(
        "p",
        join("The probability lies between ", figure("share", both.low), " and ", figure("share", both.high)),
        " (95 %, Clopper and Pearson). With the profile taken as exact and only the traffic drawn it is ",
        join(
            figure("share", alone.value), " (", figure("share", alone.low), " to ", figure("share", alone.high), "). "
        ),
        f"{found.workload} {found.target} lies between ",
        join(figure("ms", spread.p10_ms, "without end"), " and ", figure("ms", spread.p90_ms, "without end")),
        join(" in the middle four fifths of the draws, against a limit of ", figure("ms", found.limit_ms), "."),
        _shares(found),
    )


def _shares(found: UncertaintyRow) -> Html | None:
    share = found.profile_share
    if share is None:
        return None
    return join(
        " Of the variance of its logarithm, ",
        el("b", figure("share", share.value)),
        " is the profile's uncertainty (",
        figure("share", share.low),
        " to ",
        figure("share", share.high),
        ") and ",
        figure("share", found.seeds_share),
        " which requests come when.",
    )


def _tile(value: str, meaning: str, kind: str = "") -> Html:
    return el("li", el("b", value), el("span", meaning), class_=kind or None)


def _reasons(best: Best) -> Html:
    parts: list[str] = []
    for reason, count in best.servers_by_reason.items():
        parts += [", " if parts else "", figure("count", count), f" {reason}"]
    return join(*parts)


def _refusal(plan: Plan, miss: NearestMiss | None) -> Html:
    if miss is None:
        return el("h1", "No configuration meets the targets.")
    what = f"{miss.workload} {miss.target}" if miss.workload is not None else miss.target
    nearest: list[str] = [" The nearest miss, ", el("span", miss.label, class_="flags")]
    if miss.servers is not None:
        nearest += [" on ", figure("servers", miss.servers)]
    if miss.value is None and miss.rejected_fraction and (limits := limits_text(miss.engine)):
        nearest += [", answers 503 to ", el("b", figure("share", miss.rejected_fraction)), " of the requests of "]
        nearest += [f"{miss.workload} ({limits})."]
    elif miss.limit is not None:
        nearest += [f", gives {what} ", el("b", figure("ms", miss.value, "without end")), " against "]
        nearest += [el("b", figure("ms", miss.limit)), "."]
    else:
        nearest += [f", is ruled out by {what}."]
    changes = [el("li", prose(change)) for change in miss.what_would_have_to_change]
    return join(
        el("h1", "No configuration meets the targets: ", el("b", what), " binds.", *nearest),
        el("div", el("h2", "What would have to change"), el("ul", *changes), class_="card") if changes else None,
    )


def notes(plan: Plan) -> Html | None:
    """What a reader must know before the numbers."""
    if not plan.notes:
        return None
    items = [el("li", prose(note), class_="warn" if note.startswith("Extrapolated") else None) for note in plan.notes]
    return section("notes", "Before the numbers", el("ul", *items, class_="notes"))


def servers(plan: Plan, best: Best) -> Html:
    """What each server is there for; the reasons add up to all servers."""
    boxes: list[str] = []
    rows: list[tuple[str, ...]] = []
    for index, (reason, count) in enumerate(best.servers_by_reason.items()):
        kind = f"box {'spare' if reason == 'spare' else f'r{index % COLOURS}'}"
        swatch = el("i", class_=kind, aria_hidden="true")
        boxes += [el("i", class_=kind)] * min(count, MOST_BOXES)
        meaning = REASONS.get(reason, "")
        if reason == "headroom":
            meaning = join(REASONS["headroom"], ": ", figure("times", plan.load), " the demand")
        rows.append((join(swatch, " ", reason), figure("count", count), meaning))
    rows.append(("all", figure("count", best.servers), "paid for every hour of the month"))
    fewer = join("One serving server fewer: ", el("b", best.one_server_fewer), ".")
    more = (
        "one more meets them too" if best.meets_with_one_more else "one more misses them in the simulation: look again"
    )
    use = [el("li", name, " ", figure("share", share), bar(share)) for name, share in best.utilization.items()]
    return section(
        "servers",
        join("What each server is there for: ", _reasons(best)),
        el("div", *boxes, class_="boxes", aria_hidden="true"),
        table("Servers by reason", ("reason", "servers", "what for"), rows, right=(1,), foot=True),
        el("p", fewer, f" The serving servers meet the targets at the load with headroom, and {more}."),
        el("h3", "What the serving servers do with their time, at the load they are sized for"),
        el("ul", *use, class_="use"),
    )


def saving(plan: Plan) -> Html | None:
    """The plan beside what runs today."""
    base, best = plan.baseline, plan.best
    if base is None:
        return None
    rows: list[tuple[str, ...]] = []
    if best is not None:
        rows.append(
            ("this plan", best_name(plan, best), figure("count", best.servers), figure("usd", best.cost_usd_per_month))
        )
    none = "none is enough"
    rows.append(
        ("baseline", base.label, figure("count", base.servers, none), figure("usd", base.cost_usd_per_month, none))
    )
    title = join("The baseline cannot be sized within these targets")
    if base.servers is not None:
        title = join("The baseline needs ", figure("servers", base.servers), " for the same load")
    if base.saving_usd_per_month == 0:
        title = join(title, " and costs the same")
    elif base.saving_usd_per_month is not None:
        word, than = ("saves", "") if base.saving_usd_per_month > 0 else ("costs", " more")
        title = join(title, f"; the plan {word} ", figure("usd", abs(base.saving_usd_per_month)), f" a month{than}")
    flags = flags_text(base.engine)
    today = figure("servers", base.servers_today) if base.servers_today is not None else None
    return section(
        "baseline",
        title,
        table("Plan and baseline", ("", "configuration", "servers", "first month"), rows, right=(2, 3)),
        facts(("Baseline", prose(base.note)), ("Its flags", flags), ("Servers today", today)),
    )


def nearest_miss(plan: Plan) -> Html | None:
    """How near the nearest miss came, workload by workload."""
    miss = plan.nearest_miss
    if miss is None or not miss.attainment:
        return None
    workloads = plan.scenario.get("workloads", {})
    rows = [
        (
            name,
            figure("attainment", value),
            figure("attainment", workloads.get(name, {}).get("slo", {}).get("attainment")),
        )
        for name, value in miss.attainment.items()
    ]
    flags = flags_text(miss.engine)
    return section(
        "nearest",
        "How near it came",
        table("Share of good requests", ("workload", "reached", "asked for"), rows, right=(1, 2)),
        facts(
            ("Configuration", miss.label),
            ("Flags", flags),
            ("Servers", figure("servers", miss.servers) if miss.servers is not None else None),
            ("On", join(miss.node, ", ", miss.precision)),
            ("Known", known("simulated")),
        ),
    )
