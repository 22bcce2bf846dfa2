"""Continual-learning methods: one file per method, and the contract that all of them fulfil."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sodap.methods.options import Option, options_of
from sodap.methods.registry import (
    BUILT_IN,
    build_method,
    check_method_name,
    find_method,
    method_names,
    register_method,
)

if TYPE_CHECKING:
    from sodap.methods.base import Asset, Batch, Method, MethodConfig, Observations, StageInfo

__all__ = [
    "Asset",
    "Batch",
    "Method",
    "MethodConfig",
    "Observations",
    "Option",
    "StageInfo",
    "build_method",
    "check_method_name",
    "find_method",
    "method_names",
    "options_of",
    "register_method",
]


def __getattr__(name: str) -> Any:
    """Import the contract and the built-in methods only when needed, because torch is slow."""
    for place in BUILT_IN.values():
        module, _, attribute = place.partition(":")
        if attribute == name:
            return getattr(import_module(module), name)
    if name in __all__:
        return getattr(import_module("sodap.methods.base"), name)
    raise AttributeError(f"module 'sodap.methods' has no attribute '{name}'")
