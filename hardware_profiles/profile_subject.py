"""The node and the model that a profile speaks of: it holds their names, and its figures follow from what they mean."""

from __future__ import annotations

from hardware_profiles.errors import InputError
from hardware_profiles.model import ModelCard, load_model_card
from hardware_profiles.node import Node, load_node
from hardware_profiles.profile import HardwareProfile

__all__ = ["node_and_card"]


def node_and_card(profile: HardwareProfile) -> tuple[Node, ModelCard]:
    """What a profile was measured with; a name that means nothing here is an `InputError` at the profile's key."""
    key = "node"
    try:
        node = load_node(profile.node)
        key = "model"
        card = load_model_card(profile.model)
        key = "precision"
        card.weight_bytes(profile.precision)
    except InputError as error:
        raise InputError(str(error), file=str(profile.path), key=key) from None
    return node, card
