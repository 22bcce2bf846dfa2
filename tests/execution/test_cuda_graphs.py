"""What can be tested of CUDA graphs without a GPU; the rest is in tests/test_gpu.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sodap.execution import GraphedCallable, observations
from sodap.execution.cuda_graphs import pad_rows
from sodap.execution.observations import GraphedObservations
from sodap.methods import Observations

CPU = torch.device("cpu")


def test_without_a_gpu_the_function_is_called_directly() -> None:
    given: list[Tensor] = []

    def double(numbers: Tensor) -> Tensor:
        given.append(numbers)
        return 2 * numbers

    graphed = GraphedCallable(double, CPU)
    assert not graphed.active
    for rows in (2, 3, 2, 2):
        numbers = torch.rand(rows, 3)
        assert torch.equal(graphed(numbers), 2 * numbers)
        assert given[-1] is numbers
    assert not graphed.graphs


def test_rows_are_padded_up_to_a_size() -> None:
    rows = torch.arange(6, dtype=torch.uint8).view(3, 2)
    assert pad_rows(rows, 5).tolist() == [[0, 1], [2, 3], [4, 5], [0, 0], [0, 0]]
    assert pad_rows(rows, 5).dtype == torch.uint8
    assert pad_rows(rows, 3) is rows
    assert pad_rows(rows, 0) is rows


class Replays:
    """A stand-in for `GraphedCallable` that returns the same tensors every time, as replays do."""

    active = True

    def __init__(self, function: Callable[[Tensor], Any], device: torch.device) -> None:
        self.function = function
        self.outputs: list[Tensor] = []
        self.sizes: set[int] = set()

    def __call__(self, images: Tensor) -> tuple[Tensor, ...]:
        self.sizes.add(len(images))
        assert len(self.sizes) == 1, "one graph serves all batches"
        found = self.function(images)
        if not self.outputs:
            self.outputs = [torch.empty_like(each) for each in found]
        for output, each in zip(self.outputs, found, strict=True):
            output.copy_(each)
        return tuple(self.outputs)


def test_a_pass_with_graphs_yields_what_a_pass_without_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = torch.rand(11, 4)
    batches = list(zip(torch.split(images, 4), torch.split(torch.arange(11), 4), strict=True))

    def function(images: Tensor) -> tuple[Tensor, Tensor]:
        return images.sum(1), images.square()

    plain = list(Observations(batches).map(function))
    direct = list(GraphedObservations(batches, CPU).map(function))
    monkeypatch.setattr(observations, "GraphedCallable", Replays)
    replayed = list(GraphedObservations(batches, CPU).map(function))
    for found in (direct, replayed):
        assert len(found) == len(plain) == 3
        for ((sums, squares), labels), ((ours, theirs), truth) in zip(found, plain, strict=True):
            assert torch.equal(sums, ours)
            assert torch.equal(squares, theirs)
            assert torch.equal(labels, truth)


def test_a_pass_has_no_gradients_and_can_be_repeated() -> None:
    weight = torch.ones(4, requires_grad=True)
    observed = Observations([(torch.rand(3, 4), torch.arange(3))])
    for _ in range(2):
        ((result, labels),) = observed.map(lambda images: images * weight)
        assert not result.requires_grad
        assert labels.tolist() == [0, 1, 2]
