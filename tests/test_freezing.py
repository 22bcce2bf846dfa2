"""Frozen rows do not move, and a saved state decides how many rows there are."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from sodap.freezing import freeze_rows, frozen_or_trained, resize_on_load


class Rows(nn.Module):
    """Two of five rows are frozen, along the middle dimension."""

    frozen: Tensor

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.trained = nn.Parameter(torch.randn(2, 5, 3, generator=generator))
        self.register_buffer("frozen", torch.zeros(2, 5, 3))
        self.register_buffer("mask", torch.tensor([True, False, False, True, False]))

    @property
    def rows(self) -> Tensor:
        return frozen_or_trained(self.get_buffer("mask"), self.frozen, self.trained, dim=1)


def test_frozen_rows_pass_no_gradient_and_survive_decay_and_momentum() -> None:
    rows = Rows()
    mask = rows.get_buffer("mask")
    freeze_rows(mask, rows.frozen, rows.trained, dim=1)
    before = rows.rows.detach().clone()
    assert torch.equal(before, rows.trained)
    assert (rows.frozen[:, ~mask] == 0).all()
    optimizer = torch.optim.AdamW(rows.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        rows.rows.square().sum().backward()  # type: ignore[no-untyped-call]
        assert rows.trained.grad is not None
        assert (rows.trained.grad[:, mask] == 0).all()
        assert (rows.trained.grad[:, ~mask] != 0).all()
        optimizer.step()
    after = rows.rows
    assert torch.equal(after[:, mask], before[:, mask])
    assert (after[:, ~mask] != before[:, ~mask]).all()
    assert (rows.trained[:, mask] != before[:, mask]).all()  # the parameter alone is not safe


class Growing(nn.Module):
    kept: Tensor

    def __init__(self, kept: int, newest: int, width: int = 3) -> None:
        super().__init__()
        self.register_buffer("kept", torch.full((2, kept, width), 1.0 + kept))
        self.newest = nn.Parameter(torch.full((2, newest, width), 2.0 + newest))
        resize_on_load(self, "kept", "newest", dim=1)


def outer(*sizes: int) -> nn.Module:
    return nn.Sequential(Growing(*sizes))


def equal(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine)


@pytest.mark.parametrize("sizes", [(0, 1), (4, 2), (1, 5)])
def test_a_state_of_any_number_of_rows_is_loaded(sizes: tuple[int, int]) -> None:
    saved = outer(*sizes)
    first = outer(1, 2)
    for module in (first, copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        module.load_state_dict(saved.state_dict())
        assert equal(module, saved)
        assert [each.requires_grad for each in module.parameters()] == [True]
    assert equal(saved, outer(*sizes))


def test_a_copy_resizes_itself_and_not_its_original() -> None:
    first = outer(1, 2)
    double = copy.deepcopy(first)
    double.load_state_dict(outer(3, 3).state_dict())
    assert equal(first, outer(1, 2))


def test_a_state_of_the_same_shape_is_loaded_in_place() -> None:
    """An optimiser or a CUDA graph that holds the tensors goes on with them."""
    module = Growing(1, 2)
    kept, newest = module.kept, module.newest
    module.load_state_dict({k: torch.zeros_like(v) for k, v in module.state_dict().items()})
    assert module.kept is kept
    assert module.newest is newest
    assert (kept == 0).all()


def test_a_state_that_does_not_fit_is_refused() -> None:
    with pytest.raises(RuntimeError, match="size mismatch"):
        outer(1, 2).load_state_dict(outer(2, 2, 4).state_dict())
    with pytest.raises(RuntimeError, match="Missing key"):
        outer(1, 2).load_state_dict({})
