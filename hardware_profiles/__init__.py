"""What machines and models are, what they cost, and what was measured on them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hardware_profiles.errors import InputError
    from hardware_profiles.memory import KvLedger, LedgerLine, explicit_ledger, kv_ledger, tensor_parallel_problem
    from hardware_profiles.model import (
        KvGroup,
        ModelCard,
        Parameters,
        WeightBytes,
        list_model_cards,
        load_model_card,
        precision_name,
    )
    from hardware_profiles.node import Node, list_nodes, load_node
    from hardware_profiles.prices import Price, PriceBook, load_price_book
    from hardware_profiles.profile import HardwareProfile, list_profiles, load_profile
    from hardware_profiles.source import Source
    from hardware_profiles.strict_yaml import Document, load_model, load_yaml

__all__ = [
    "Document",
    "HardwareProfile",
    "InputError",
    "KvGroup",
    "KvLedger",
    "LedgerLine",
    "ModelCard",
    "Node",
    "Parameters",
    "Price",
    "PriceBook",
    "Source",
    "WeightBytes",
    "explicit_ledger",
    "kv_ledger",
    "list_model_cards",
    "list_nodes",
    "list_profiles",
    "load_model",
    "load_model_card",
    "load_node",
    "load_price_book",
    "load_profile",
    "load_yaml",
    "precision_name",
    "tensor_parallel_problem",
]

_MODULE_OF = {
    "InputError": "errors",
    "KvLedger": "memory",
    "LedgerLine": "memory",
    "explicit_ledger": "memory",
    "kv_ledger": "memory",
    "tensor_parallel_problem": "memory",
    "KvGroup": "model",
    "ModelCard": "model",
    "Parameters": "model",
    "WeightBytes": "model",
    "list_model_cards": "model",
    "load_model_card": "model",
    "precision_name": "model",
    "Node": "node",
    "list_nodes": "node",
    "load_node": "node",
    "Price": "prices",
    "PriceBook": "prices",
    "load_price_book": "prices",
    "HardwareProfile": "profile",
    "list_profiles": "profile",
    "load_profile": "profile",
    "Source": "source",
    "Document": "strict_yaml",
    "load_model": "strict_yaml",
    "load_yaml": "strict_yaml",
}


def __getattr__(name: str) -> object:
    """Names are imported when first used: pydantic takes a quarter of a second, too much for `goodfleet --help`."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
