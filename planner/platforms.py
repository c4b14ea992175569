"""What a scenario's configurations run on: each node type and precision with the profile measured for it.

Without `profiles:` a pair takes its shipped plain vLLM profile. A scenario may name others: a variant, AMD's plugin
build (`vllm_atom`), or a file that `goodfleet profile fit` or `measure` wrote. The simulated scheduler is vLLM's, so a
profile of another engine (SGLang) needs `--allow-other-engine`.
"""

from __future__ import annotations

from hardware_profiles.errors import InputError
from hardware_profiles.model import ModelCard, precision_name
from hardware_profiles.node import Node
from hardware_profiles.profile import HardwareProfile, list_profiles, load_profile
from planner.feasibility import Platform
from simulator.profile_draws import refuse_broken_covariance
from simulator.scenario import LoadedScenario

__all__ = ["VLLM_ENGINES", "find_platforms"]

VLLM_ENGINES = ("vllm", "vllm_atom")
"""Engines whose scheduler is the one that is simulated."""


def find_platforms(loaded: LoadedScenario, card: ModelCard, nodes: tuple[Node, ...]) -> tuple[Platform, ...]:
    """Every (node, precision) of the scenario with its profile; a pair that was never measured is an `InputError`."""
    named = _named(loaded, card)
    unused = dict(named)
    platforms: list[Platform] = []
    for index, node in enumerate(nodes):
        for word in loaded.scenario.precision or (card.native_precision,):
            precision = precision_name(word)
            fitting = [text for text, held in named.items() if (held.node, held.precision) == (node.name, precision)]
            if len(fitting) > 1:
                problem = f"{' and '.join(fitting)} both hold for {precision} on {node.name}; name one of them"
                raise loaded.error(problem, ("profiles",))
            for text in fitting:
                unused.pop(text, None)
            profile = named[fitting[0]] if fitting else _shipped(node.name, card, precision)
            if profile is None:
                problem = (
                    f"no vLLM profile of {card.name} in {precision} on {node.name} is shipped; there are "
                    f"{', '.join(list_profiles())}; fit one with `goodfleet profile fit` and name it under "
                    "`profiles:`, or change model or hardware"
                )
                raise loaded.error(problem, ("hardware", index))
            refuse_broken_covariance(profile)
            platforms.append(Platform(node=node, card=card, precision=precision, profile=profile))
    for text, held in unused.items():
        problem = f"{text} holds for {held.precision} on {held.node}, which the scenario does not ask for"
        raise loaded.error(problem, ("profiles", list(named).index(text)))
    return tuple(platforms)


def _named(loaded: LoadedScenario, card: ModelCard) -> dict[str, HardwareProfile]:
    """The profiles that the scenario names, by what it wrote."""
    found: dict[str, HardwareProfile] = {}
    for index, text in enumerate(loaded.scenario.profiles or ()):
        key = ("profiles", index)
        is_file = text.endswith((".yaml", ".yml"))
        if is_file and not (loaded.path.parent / text).exists():
            problem = f"there is no profile file {text!r} (looked for {loaded.path.parent / text}); correct the path"
            raise loaded.error(f"{problem}, which starts at the scenario's folder", key)
        try:
            held = load_profile(loaded.path.parent / text if is_file else text)
        except InputError as error:
            raise error if error.line is not None else loaded.error(str(error), key) from None
        if card.name not in (held.model, *held.serves):
            raise loaded.error(f"{held.name} was measured with {held.model}; the model here is {card.name}", key)
        if held.engine not in VLLM_ENGINES and not loaded.allow_other_engine:
            problem = (
                f"{held.name} was measured on {held.engine}, and the simulated scheduler is vLLM's; "
                "to plan with it all the same, give --allow-other-engine"
            )
            raise loaded.error(problem, key)
        found[text] = held
    return found


def _shipped(node: str, card: ModelCard, precision: str) -> HardwareProfile | None:
    """The plain vLLM profile of this model, or of another model of the same shape that says it serves this one."""
    for name in list_profiles():
        if not name.startswith(f"{node}/") or not name.endswith("-vllm"):
            continue
        profile = load_profile(name)
        if profile.precision == precision and card.name in (profile.model, *profile.serves):
            return profile
    return None
