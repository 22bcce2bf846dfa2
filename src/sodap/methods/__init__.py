"""Continual-learning methods: one file per method, and the contract that all of them fulfil."""

from typing import TYPE_CHECKING

from sodap.lazy import lazy_attributes
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

_CONTRACT = ("Asset", "Batch", "Method", "MethodConfig", "Observations", "StageInfo")

__getattr__ = lazy_attributes(
    __name__,
    {
        **dict.fromkeys(_CONTRACT, "base"),
        **{
            name: module.removeprefix("sodap.methods.")
            for module, name in (place.split(":") for place in BUILT_IN.values())
        },
    },
)
