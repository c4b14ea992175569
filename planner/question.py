"""What is asked, made ready: the scenario with its mix, prices, streams and the screen that runs it.

Everything random comes from the scenario's seed: one `SeedSequence` child for the rank streams, one per replication of
the fleet, one for the draws of profiles and their streams. So equal scenarios give equal plans.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from hardware_profiles.model import ModelCard
from hardware_profiles.node import Node
from hardware_profiles.prices import Price, load_price_book
from planner.cost import monthly_cost_usd, months_from
from planner.feasibility import Configuration, Platform
from planner.platforms import find_platforms
from planner.screen import Screen
from planner.search import Progress, Ranked
from planner.sizing import SizedFleet
from planner.space import refuse_closed_loops
from simulator.hardware_check import load_model_and_nodes
from simulator.mix import Mix
from simulator.run import Routing
from simulator.scenario import Cost, LoadedScenario

__all__ = ["Option", "Question", "make_question"]

REPLICATIONS = 8
DRAWS = 64
"""Profiles drawn, each on a stream of its own: a probability of 0.5 is then known to 0.12 either way (95 %)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A scenario ready to be answered."""

    loaded: LoadedScenario
    card: ModelCard
    platforms: tuple[Platform, ...]
    mix: Mix
    load: float
    """Demand x (1 + headroom)."""
    as_of: datetime.date
    cost: Cost
    months: tuple[str, ...]
    prices: dict[str, Price]
    """Of one server, by node."""
    screen: Screen
    replications: tuple[np.random.SeedSequence, ...]
    """Streams of the fleet's replications, common to all candidates."""
    draw_streams: tuple[np.random.SeedSequence, ...]
    """One for each draw of model error, common to all finalists."""
    profile_seed: np.random.SeedSequence
    """Of the drawn profiles."""
    progress: Progress

    @property
    def max_servers(self) -> int:
        return self.loaded.scenario.fleet.max_servers

    @property
    def spare_servers(self) -> int:
        return self.loaded.scenario.fleet.spare_servers

    @property
    def routing(self) -> Routing:
        return self.loaded.scenario.fleet.routing

    def price(self, configuration: Configuration) -> Price:
        return self.prices[configuration.platform.node.name]

    def month_usd(self, configuration: Configuration, servers: int) -> Decimal:
        """First month's cost of so many serving servers and the spares."""
        return monthly_cost_usd(self.price(configuration), servers + self.spare_servers, self.months[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A configuration with the number of servers it takes, and how that is known."""

    ranked: Ranked
    sized: SizedFleet | None
    """None: estimated from the rank run alone."""
    servers: int
    """Serving servers, spares apart."""
    cost_usd: Decimal
    """First month, spares included."""

    @property
    def configuration(self) -> Configuration:
        return self.ranked.configuration


def make_question(loaded: LoadedScenario, progress: Progress | None = None) -> Question:
    """Look up everything a scenario names; a name that does not exist is an `InputError`. Silent without `progress`."""
    scenario = loaded.scenario
    refuse_closed_loops(loaded)
    card, nodes = load_model_and_nodes(loaded)
    platforms = find_platforms(loaded, card, nodes)
    cost = scenario.cost if scenario.cost is not None else Cost()
    as_of = scenario.as_of or datetime.date.today()
    prices = _prices(loaded, nodes, cost, as_of)
    mix = Mix(workloads=scenario.workloads, traces=loaded.traces, max_model_len=_max_model_len(loaded, card))
    rank_seed, fleet_seed, draw_seed = np.random.SeedSequence(scenario.seed).spawn(3)
    stream_seed, profile_seed = draw_seed.spawn(2)
    return Question(
        loaded=loaded,
        card=card,
        platforms=platforms,
        mix=mix,
        load=1 + scenario.fleet.headroom,
        as_of=as_of,
        cost=cost,
        months=months_from(cost.start or f"{as_of:%Y-%m}", cost.horizon_months),
        prices=prices,
        screen=Screen(mix, rank_seed),
        replications=tuple(fleet_seed.spawn(REPLICATIONS)),
        draw_streams=tuple(stream_seed.spawn(DRAWS)),
        profile_seed=profile_seed,
        progress=progress if progress is not None else lambda stage, done, total: None,
    )


def _prices(loaded: LoadedScenario, nodes: tuple[Node, ...], cost: Cost, as_of: datetime.date) -> dict[str, Price]:
    book = load_price_book(cost.prices, relative_to=loaded.path.parent)
    prices = {node.name: book.find(node.name, cost.term, as_of=as_of) for node in nodes}
    for price in prices.values():
        if price.currency != cost.currency:
            problem = (
                f"{cost.currency} is not the currency of {price.sku}; there are no exchange rates here, "
                f"so write currency: {price.currency}"
            )
            raise loaded.error(problem, ("cost", "currency"))
    return prices


def _max_model_len(loaded: LoadedScenario, card: ModelCard) -> int:
    """Requests are cut to the shortest context that any candidate has, so that all see the same requests."""
    scenario = loaded.scenario
    fixed = scenario.engine.max_model_len
    if fixed is not None:
        return fixed
    searched = scenario.search.max_model_len if scenario.search is not None else None
    return min(searched) if searched else card.max_model_len
