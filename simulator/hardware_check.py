"""Whether a scenario's names exist, and whether its fixed flags can run on the machines and the model they name.

A fixed flag that can run nowhere is a mistake in the file. A *searched* value that cannot run is not: the planner keeps
it as a rejection with its reason, and so it does with what does not fit the memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from hardware_profiles.errors import InputError
from hardware_profiles.model import ModelCard, load_model_card, precision_name
from hardware_profiles.node import Node, load_node
from simulator.scenario import LoadedScenario, overlong

__all__ = ["check_against_hardware", "load_model_and_nodes", "unusable_tensor_parallel_size"]


def load_model_and_nodes(loaded: LoadedScenario) -> tuple[ModelCard, tuple[Node, ...]]:
    """The model card and the nodes a scenario names, checked against its fixed flags."""
    folder = loaded.path.parent
    nodes: list[Node] = []
    try:
        card = load_model_card(loaded.scenario.model, relative_to=folder)
    except InputError as error:
        raise _located(error, loaded, ("model",)) from None
    for index, name in enumerate(loaded.scenario.hardware):
        try:
            nodes.append(load_node(name, relative_to=folder))
        except InputError as error:
            raise _located(error, loaded, ("hardware", index)) from None
    check_against_hardware(loaded, nodes, card)
    return card, tuple(nodes)


def _located(error: InputError, loaded: LoadedScenario, key: tuple[str | int, ...]) -> InputError:
    """The same error at the scenario's line, unless it already points into a file of its own."""
    return error if error.line is not None else loaded.error(str(error), key)


def check_against_hardware(loaded: LoadedScenario, nodes: Sequence[Node], card: ModelCard) -> None:
    """Refuse fixed flags, precisions and lengths that the model or every listed node rules out."""
    scenario = loaded.scenario
    for name in scenario.precision or ():
        if precision_name(name) not in card.precisions:
            problem = f"{card.name} has no precision {name!r}; its card knows {', '.join(card.precisions)}"
            raise loaded.error(problem, ("precision",))
    for section, flags in (("engine", scenario.engine), ("baseline", scenario.baseline)):
        if flags is None:
            continue
        size = flags.tensor_parallel_size
        if size is not None:
            problems = [unusable_tensor_parallel_size(size, node, card) for node in nodes]
            if problems and None not in problems:
                raise loaded.error(str(problems[0]), (section, "tensor_parallel_size"))
        limit = flags.max_model_len
        if limit is not None and limit > card.max_model_len:
            problem = f"{limit} is more than the {card.max_model_len} tokens {card.name} was made for; lower it"
            raise loaded.error(problem, (section, "max_model_len"))
    for name, workload in scenario.workloads.items():
        if workload.prefix is not None and workload.prefix.tokens > card.max_model_len:
            problem = (
                f"{workload.prefix.tokens} do not fit the {card.max_model_len} tokens of {card.name}; shorten them"
            )
            raise loaded.error(problem, ("workloads", name, "prefix", "tokens"))
        problem_or_none = overlong(workload, loaded.traces.get(name), card.max_model_len)
        if problem_or_none is not None:
            problem = f"{problem_or_none} the {card.max_model_len} tokens of {card.name}; shorten them"
            raise loaded.error(problem, ("workloads", name))


def unusable_tensor_parallel_size(size: int, node: Node, card: ModelCard) -> str | None:
    """Why ``size`` GPUs cannot share the model, or None.

    A replica stays inside one server, and replicas fill it evenly. vLLM splits attention by heads: query heads must
    divide by the size, and KV heads must divide by it or it by them (then each is held by several GPUs).
    """
    usable = [
        tp for tp in range(1, node.gpus_per_server + 1) if node.gpus_per_server % tp == 0 and _splits_heads(tp, card)
    ]
    cure = f"use {', '.join(str(tp) for tp in usable)}"
    if size > node.gpus_per_server or node.gpus_per_server % size:
        return f"{size} does not divide the {node.gpus_per_server} GPUs of a {node.name} server; {cure}"
    if not _splits_heads(size, card):
        heads = f"{card.heads} attention heads ({card.kv_heads} KV heads)"
        return f"{size} does not divide the {heads} of {card.name}; {cure}"
    return None


def _splits_heads(size: int, card: ModelCard) -> bool:
    return card.heads % size == 0 and (card.kv_heads % size == 0 or size % card.kv_heads == 0)
