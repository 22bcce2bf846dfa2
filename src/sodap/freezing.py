"""Rows that train once and are then frozen for good.

Weight decay and momentum also move rows of a parameter that receive no gradient. Frozen rows
therefore live in a buffer, where no optimiser finds them, and the rows in training in a parameter.
How many rows a buffer has may depend on what was learned, so a saved state decides its shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


def frozen_or_trained(mask: Tensor, frozen: Tensor, trained: Tensor, dim: int = 0) -> Tensor:
    """Rows along `dim`: from `frozen` where `mask` `[N]` is set, else from `trained`.

    Only the rows taken from `trained` pass a gradient on.
    """
    return torch.where(_along(mask, trained, dim), frozen, trained)


@torch.no_grad()
def freeze_rows(mask: Tensor, frozen: Tensor, trained: Tensor, dim: int = 0) -> None:
    """Copy the rows in `mask` `[N]` from `trained` to the buffer `frozen`, in place."""
    frozen.copy_(torch.where(_along(mask, trained, dim), trained, frozen))


def _along(mask: Tensor, rows: Tensor, dim: int) -> Tensor:
    """`[N]` -> `[1, ..., N, ..., 1]`, to broadcast against `rows`."""
    return mask.view([-1 if each == dim else 1 for each in range(rows.ndim)])


def resize_on_load(module: nn.Module, *names: str, dim: int = 0) -> None:
    """Let tensors of `module` take on the number of rows that a loaded state has along `dim`.

    A tensor of the right shape is loaded in place; a parameter of another size becomes a new one.
    A state that differs in another dimension is refused by `load_state_dict` as usual.
    """
    hook = partial(_resize, names=names, dim=dim)  # unlike a closure, can be copied and pickled
    module.register_load_state_dict_pre_hook(hook)  # type: ignore[no-untyped-call]


def _resize(
    module: nn.Module,
    state: Mapping[str, Tensor],
    prefix: str,
    *_: Any,
    names: tuple[str, ...],
    dim: int,
) -> None:
    for name in names:
        tensor, saved = getattr(module, name), state.get(f"{prefix}{name}")
        if saved is None or saved.ndim != tensor.ndim:
            continue
        shape = [*tensor.shape]
        shape[dim] = saved.shape[dim]
        if shape == [*tensor.shape]:
            continue
        resized = tensor.new_zeros(shape)
        if isinstance(tensor, nn.Parameter):
            resized = nn.Parameter(resized, tensor.requires_grad)
        setattr(module, name, resized)
