"""Reservoir sampling, against the algorithm one item at a time."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sodap.methods.parts.reservoir import Reservoir


def items(start: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Items whose image, label and logits hold their number."""
    numbers = torch.arange(start, start + count)
    images = (numbers % 256).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)
    return images, numbers, numbers[:, None].float().expand(-1, 4)


def filled(size: int, batches: list[int], draws: Tensor) -> Reservoir:
    reservoir = Reservoir(size, image_size=2, classes=4)
    start = 0
    for count in batches:
        reservoir.add(*items(start, count), draws[start : start + count])
        start += count
    return reservoir


@given(
    size=st.integers(1, 7),
    batches=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=60)
def test_the_algorithm_one_item_at_a_time(size: int, batches: list[int], seed: int) -> None:
    chance = random.Random(seed)
    draws = [chance.random() for _ in range(sum(batches))]
    expected: list[int] = []
    for number, draw in enumerate(draws):
        if number < size:
            expected.append(number)
        elif (place := int(draw * (number + 1))) < size:
            expected[place] = number
    found = filled(size, batches, torch.tensor(draws, dtype=torch.float64))
    kept = len(found)
    assert kept == len(expected) == min(size, sum(batches))
    assert found.labels[:kept].tolist() == expected
    assert found.images[:kept, 0, 0, 0].tolist() == expected
    assert found.logits[:kept, 2].tolist() == expected
    assert int(found.seen) == sum(batches)


@pytest.mark.parametrize("batch", [7, 60])
def test_every_item_is_kept_equally_often(batch: int) -> None:
    size, length, trials = 12, 60, 400
    batches = [min(batch, length - start) for start in range(0, length, batch)]
    generator = torch.Generator().manual_seed(batch)
    counts = torch.zeros(length, dtype=torch.float64)
    for _ in range(trials):
        draws = torch.rand(length, dtype=torch.float64, generator=generator)
        counts[filled(size, batches, draws).labels] += 1
    share = size / length
    expected = counts.sum() / length
    # The kept items of one trial are drawn without replacement: they vary less than a
    # multinomial's, by the factor N (1 - M/N) / (N - 1).
    statistic = ((counts - expected) ** 2 / expected).sum() * (length - 1) / length / (1 - share)
    assert 31.0 < statistic < 98.3  # χ² with 59 degrees of freedom: 0.1 % and 99.9 %


def test_an_empty_reservoir_and_one_that_stays_partly_empty() -> None:
    reservoir = Reservoir(5, image_size=2, classes=4)
    assert len(reservoir) == 0
    reservoir.add(*items(0, 3), torch.zeros(3))
    assert len(reservoir) == 3
    assert reservoir.labels[:3].tolist() == [0, 1, 2]


def test_a_batch_in_which_nothing_enters() -> None:
    reservoir = filled(2, [2], torch.zeros(2))
    reservoir.add(*items(2, 3), torch.full((3,), 0.99))
    assert reservoir.labels.tolist() == [0, 1]
    assert int(reservoir.seen) == 5


def test_half_precision_does_not_change_the_buffers() -> None:
    reservoir = filled(2, [2], torch.zeros(2)).half()
    assert reservoir.images.dtype == torch.uint8
    assert reservoir.seen.dtype == torch.int64
    assert reservoir.logits.dtype == torch.float32
