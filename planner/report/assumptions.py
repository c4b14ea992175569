"""What the answer rests on, each point marked measured, simulated, extrapolated, assumed or given, with its source."""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from planner.plan_file import Plan, ProfileUsed, plan_sha256
from planner.report.figures import figure
from planner.report.layout import facts, known, section, table
from planner.report.markup import Html, el, join, prose
from planner.report.money import UNITS
from planner.report.names import flags_text
from simulator.engine import flag_value

__all__ = ["assumptions", "repeat"]

NOT_MODELLED = "Speculative decoding, failures and restarts of servers are not modelled."


def assumptions(plan: Plan) -> Html:
    """Everything that would change the answer if it were wrong."""
    rows: list[tuple[str, ...]] = [
        (known("given"), "Rates, lengths and targets", f"the scenario, {plan.scenario_path}"),
        (known("assumed"), "The rates hold all day and all month.", "no daily pattern is given"),
        _prefix_cache(plan),
        (known("assumed"), NOT_MODELLED, "spare servers stand for failures"),
        (known("assumed"), f"The scheduler is that of vLLM {plan.vllm_version}.", "its source, followed step by step"),
    ]
    if plan.best is not None:
        figures = "Latencies, attainment, number of servers and their probability"
        rows.append((known(plan.best.how_known), figures, "full runs with independent replications"))
    for note in plan.notes:
        if note.startswith("Extrapolated"):
            rows.append((known("extrapolated"), prose(note), "outside what the profile was measured for"))
    for name, profile in plan.profiles.items():
        rows += _profile_rows(name, profile, chosen=name == plan.profile)
    price = plan.price
    amount = f"{price['currency']} {price['price']} per {UNITS.get(price['unit'], price['unit'])}"
    rows.append((known("given"), f"The price: {amount}, listed {price['date']}", prose(price["source"])))
    legend = (
        "Measured on hardware; simulated by this plan; extrapolated beyond what was measured; assumed without a "
        "measurement; given by the scenario or the price book."
    )
    head = ("known", "what", "source")
    return section(
        "assumptions",
        "What the answer rests on",
        table("Assumptions with sources", head, rows, kind="stack sources"),
        el("p", legend, class_="small"),
    )


def _prefix_cache(plan: Plan) -> tuple[str, ...]:
    """Whether prefixes are found again, and how much of the prompts was."""
    workloads = plan.scenario.get("workloads", {})
    prefixes = [f"{name}: {_documents(w['prefix'])}" for name, w in workloads.items() if w.get("prefix")]
    recorded = [f"{name}: what its recording names" for name, w in workloads.items() if _is_recorded(w)]
    source = "; ".join(prefixes + recorded) or "no workload has a prefix"
    best, miss = plan.best, plan.nearest_miss
    engine = (best.engine if best is not None else miss.engine if miss is not None else None) or {}
    if flag_value(engine, "enable_prefix_caching") is False:
        return known("assumed"), "Prefix caching is off: every prompt is computed whole.", prose(source)
    if best is None or best.cached_fraction is None:
        return known("assumed"), "Prefix caching is on.", prose(source)
    who = "had served these documents before" if prefixes else "began empty"
    found = join(
        f"Prefix caching is on: replicas that {who} found ",
        figure("error", best.cached_fraction),
        " of the prompt tokens in the cache; one that forgets nothing would find ",
        figure("error", best.most_cached_fraction),
        ".",
    )
    return known("simulated"), found, prose(source)


def _is_recorded(workload: Mapping[str, object]) -> bool:
    traffic = workload.get("traffic")
    return isinstance(traffic, dict) and "trace" in traffic


def _documents(prefix: Mapping[str, object]) -> str:
    return f"{prefix['documents']} documents of {prefix['tokens']} tokens, {prefix['popularity']}"


def _profile_rows(name: str, profile: ProfileUsed, *, chosen: bool) -> list[tuple[str, ...]]:
    """Step times: what was measured, how well the fit repeats it, what it is silent about."""
    how = "assumed" if profile.tier == "assumed" else "measured"
    errors: list[str] = []
    for metric, median in profile.median_error.items():
        errors += [", " if errors else "; median error ", f"{metric} ", figure("error", median)]
    ranges = ", ".join(f"{key} {_range(value)}" for key, value in profile.measured.items())
    what = join(
        f"Step times: {name}{' (of the answer)' if chosen else ''}, {profile.tier}, vLLM version: ",
        f"{profile.engine_version}, as of {profile.as_of}; measured at {ranges}; its lack of fit, drawn in ",
        "the probability: ",
        figure("error", profile.residual_sd),
        *errors,
    )
    sources = [join(el("br") if index else None, prose(text)) for index, text in enumerate(profile.sources)]
    rows: list[tuple[str, ...]] = [(known(how), what, join(*sources))]
    rows += [(known("assumed"), prose(caveat), f"caveat of {name}") for caveat in profile.caveats]
    flags = flags_text(profile.assumed_flags)
    rows.append((known("assumed"), prose(f"Flags of the measured rows: {flags}"), f"flags of {name}"))
    rows.append((known("simulated"), prose(profile.kv_sensitivity), f"sensitivity of {name} to its KV blocks"))
    return rows


def _range(value: object) -> str:
    if isinstance(value, list | tuple):
        return "-".join(str(v) for v in value) if len(value) == 2 else "/".join(str(v) for v in value)
    return str(value)


def repeat(plan: Plan) -> Html:
    """How to get the same plan again."""
    seen = plan.screened
    name = plan.scenario_path.removesuffix(".yaml").removesuffix(".yml")
    command = f"goodfleet plan {plan.scenario_path} --out out/{name}"
    scenario = yaml.safe_dump(plan.scenario, sort_keys=False, allow_unicode=True, default_flow_style=None, width=90)
    effort = join(
        figure("count", seen.simulations), " simulations with ", figure("count", seen.simulated_requests),
        " requests and ", figure("count", seen.engine_steps), " engine steps in ", figure("seconds", seen.wall_s),
        " (", figure("seconds", seen.cpu_s), " of CPU)",
    )  # fmt: skip
    recipes = join(*(join(" " if i else None, el("code", file)) for i, file in enumerate(plan.shortlist)))
    return section(
        "repeat",
        "The same scenario and seed give the same plan",
        el("pre", el("code", command)),
        facts(
            ("Scenario", join(f"{plan.scenario_path}, sha256 ", el("code", plan.scenario_sha256))),
            ("Plan", join("plan.json, sha256 without recorded times ", el("code", plan_sha256(plan)))),
            ("Seed", join(el("code", str(plan.seed)))),
            ("As of", plan.as_of),
            ("Versions", f"goodfleet {plan.goodfleet_version}, scheduler of vLLM {plan.vllm_version}"),
            ("Profile", ", ".join(plan.profiles)),
            ("Recipes", join(recipes, "; for vLLM: ", el("code", f"goodfleet recipe export {plan.shortlist[0]}")))
            if plan.shortlist
            else ("Recipes", "none: nothing meets the targets"),
            ("Effort", effort),
        ),
        el("details", el("summary", "The scenario as it was understood"), el("pre", el("code", scenario))),
    )
