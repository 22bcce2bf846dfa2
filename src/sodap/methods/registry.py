"""Methods by name: the built-in ones, and those that other packages register."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import ValidationError

from sodap.errors import SodapError
from sodap.plugins import load_plugins

if TYPE_CHECKING:  # importing torch takes seconds and is not needed to look up a name
    from sodap.backbones import FrozenViT
    from sodap.methods.base import Method
    from sodap.randomness import Randomness

PLUGINS = "sodap.methods"
"""Entry point group through which other packages add methods."""

BUILT_IN = {
    "coda-prompt": "sodap.methods.coda_prompt:CodaPrompt",
    "der++": "sodap.methods.der:Der",
    "duct": "sodap.methods.duct:DUCT",
    "dual-prompt": "sodap.methods.dual_prompt:DualPrompt",
    "finetune": "sodap.methods.finetune:Finetune",
    "joint": "sodap.methods.joint:Joint",
    "layup": "sodap.methods.layup:LayUP",
    "l2p": "sodap.methods.l2p:L2P",
    "lwf": "sodap.methods.lwf:Lwf",
    "moe-adapters": "sodap.methods.moe_adapters:MoeAdapters",
    "ncm": "sodap.methods.ncm:NearestClassMean",
    "online-ewc": "sodap.methods.ewc:OnlineEwc",
    "os-prompt": "sodap.methods.os_prompt:OSPrompt",
    "os-prompt++": "sodap.methods.os_prompt:OSPromptPlus",
    "ranpac": "sodap.methods.ranpac:RanPAC",
    "residual-experts": "sodap.methods.residual_experts.method:ResidualExperts",
    "residual-sodap": "sodap.methods.residual_sodap.method:ResidualSodap",
    "ridge": "sodap.methods.ridge:Ridge",
    "rp-ridge": "sodap.methods.ridge:ProjectedRidge",
    "s-prompts": "sodap.methods.s_prompts:SPrompts",
    "sequential": "sodap.methods.sequential:Sequential",
    "slca": "sodap.methods.slca:SLCA",
    "slda": "sodap.methods.slda:StreamingLDA",
    "uniprompt": "sodap.methods.uniprompt:UniPrompt",
}
"""Module and class of each built-in method, imported when the method is first used."""

_METHODS: dict[str, type[Method]] = {}

M = TypeVar("M", bound="type[Method]")


def register_method(method: M) -> M:
    """Class decorator that makes a complete subclass of `Method` available under its name."""
    required = ("name", "family", "Config", "trains", "stores")
    missing = [each for each in required if not getattr(method, each, None)]
    missing += sorted(method.__abstractmethods__)
    if method.learns_by_gradient and not _defines_losses(method):
        missing.append("losses (or learns_by_gradient = False)")
    if missing:
        raise TypeError(f"{method.__name__} is not a complete method: define {', '.join(missing)}")
    place = f"{method.__module__}:{method.__name__}"
    reserved = BUILT_IN.get(method.name, place) != place
    if reserved or _METHODS.setdefault(method.name, method) is not method:
        raise ValueError(f"a method named '{method.name}' is registered already")
    return method


def _defines_losses(method: type[Method]) -> bool:
    from sodap.methods.base import Method

    return method.losses is not Method.losses


def method_names() -> list[str]:
    """Names of all methods, sorted."""
    load_plugins(PLUGINS, _register_plugin)
    return sorted({*BUILT_IN, *_METHODS})


def check_method_name(name: str) -> None:
    """Raise an error unless there is a method of this name."""
    names = method_names()
    if name not in names:
        raise SodapError(f"no method is called '{name}'; there are: {', '.join(names)}")


def find_method(name: str) -> type[Method]:
    """The class of the method with this name."""
    check_method_name(name)
    if name not in _METHODS:
        module, _, attribute = BUILT_IN[name].partition(":")
        return cast("type[Method]", getattr(import_module(module), attribute))
    return _METHODS[name]


def _register_plugin(_: str, method: object) -> None:
    from sodap.methods.base import Method

    if not inspect.isclass(method) or not issubclass(method, Method):
        raise TypeError("it is not a subclass of sodap.methods.Method")
    register_method(method)


def build_method(
    name: str,
    options: Mapping[str, Any],
    backbone: FrozenViT,
    classes: int,
    randomness: Randomness,
) -> Method:
    """Create a method, after checking its options; `randomness` supplies its initial values."""
    method = find_method(name)
    try:
        config = method.Config.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise SodapError(f"option '{key}' of {name}: {first['msg'].lower()}") from error
    return method(backbone, classes, randomness, config)
