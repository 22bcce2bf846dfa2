"""Search for all tensors that a method holds, in its state or outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sodap.methods import Method

_SCALARS = (str, int, float, complex, bool, type(None), type, torch.dtype, torch.device)
_OPAQUE = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, torch.Generator)


@dataclass(frozen=True)
class Holding:
    """A tensor, array or byte string that a method holds."""

    name: str
    """Attribute path: `head.weight`, `memory._table[2]`."""
    bytes: int
    shape: tuple[int, ...]


def in_state(method: Method) -> Iterator[Holding]:
    """Parameters and buffers (saved or not) without those of the backbone."""
    tensors = [*method.named_parameters(), *method.named_buffers()]
    for name, tensor in tensors:
        if not name.startswith("backbone."):
            yield Holding(name, tensor.nbytes, tuple(tensor.shape))


def outside_state(method: Method) -> Iterator[Holding]:
    """Tensors, arrays and bytes among the attributes of the modules and their classes."""
    known = {tensor.untyped_storage().data_ptr() for tensor in _all_tensors(method)}
    seen: set[int] = set()
    for path, module in method.named_modules():
        if path == "backbone" or path.startswith("backbone."):
            continue
        prefix = f"{path}." if path else ""
        for name, value in _attributes(module):
            yield from _search(f"{prefix}{name}", value, known, seen)


def is_derived(method: Method, name: str) -> bool:
    """Whether the method declares in `derived` that it recomputes the attribute from its state."""
    return any(
        name == pattern
        or fnmatchcase(name, pattern)
        or name.startswith((f"{pattern}[", f"{pattern}."))
        for pattern in method.derived
    )


def _all_tensors(method: Method) -> Iterator[Tensor]:
    yield from method.parameters()
    yield from method.buffers()


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Attributes of a module and its classes besides parameters, buffers and submodules."""
    for name, value in vars(module).items():
        if name not in ("_parameters", "_buffers", "_modules"):
            yield name, value
    for kind in type(module).__mro__:
        if kind.__module__.startswith("torch.") or kind is object:
            continue
        for name, value in vars(kind).items():
            if not name.startswith("__"):
                yield name, value


def _search(name: str, value: Any, known: set[int], seen: set[int]) -> Iterator[Holding]:
    """Search containers and plain objects for tensors, arrays and bytes."""
    if isinstance(value, (*_SCALARS, *_OPAQUE)) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        if value.untyped_storage().data_ptr() not in known:
            yield Holding(name, value.nbytes, tuple(value.shape))
    elif isinstance(value, np.ndarray):
        yield Holding(name, value.nbytes, value.shape)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        yield Holding(name, len(value), (len(value),))
    elif isinstance(value, nn.Module):  # for example in a plain list
        for key, tensor in (*value.named_parameters(), *value.named_buffers()):
            yield from _search(f"{name}.{key}", tensor, known, seen)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _search(f"{name}[{key!r}]", each, known, seen)
    elif isinstance(value, (list, tuple, set, frozenset)) or hasattr(value, "popleft"):
        for index, each in enumerate(value):
            yield from _search(f"{name}[{index}]", each, known, seen)
    elif hasattr(value, "__dict__"):
        for key, each in vars(value).items():
            yield from _search(f"{name}.{key}", each, known, seen)
