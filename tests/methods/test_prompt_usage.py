"""Prompt usage of a domain: groups of images, and the threshold of the usage set."""

from __future__ import annotations

import pytest
import torch

from sodap.drift import DriftSettings
from sodap.methods.residual_sodap.usage import GroupMeans, usage_of, usage_threshold
from sodap.prompting import Groups, Routing

TWO_SETS = Groups((4, 2), (1.0, 0.1), 2)


@pytest.mark.parametrize("batches", [[20], [3, 7, 10], [1] * 20, [8, 8, 4]])
def test_groups_do_not_depend_on_batches(batches: list[int]) -> None:
    rows = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    means = GroupMeans(8)
    for batch in rows.split(batches):  # type: ignore[no-untyped-call]
        means.add(batch)
    torch.testing.assert_close(means.stacked(), rows[:16].view(2, 8, 3).mean(1))


def test_a_group_may_be_a_batch() -> None:
    means = GroupMeans(0)
    means.add(torch.ones(3, 2))
    means.add(torch.zeros(5, 2))
    assert means.stacked().tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_fewer_images_than_a_group() -> None:
    means = GroupMeans(8)
    means.add(torch.tensor([[1.0], [2.0]]))
    assert means.stacked().tolist() == [[1.5]]
    with pytest.raises(ValueError, match="no image"):
        GroupMeans(8).stacked()


def test_usage_is_the_mean_of_the_distributions() -> None:
    frozen, active = torch.rand(5, 4).softmax(-1), torch.rand(5, 2).softmax(-1)
    routing = Routing(torch.cat([frozen, active], -1), TWO_SETS)
    joined, within = usage_of([routing, routing]).unbind(1)
    assert joined.shape == within.shape == (5, 2, 6)
    torch.testing.assert_close(joined.sum(-1), torch.ones(5, 2))
    torch.testing.assert_close(joined[:, 0, :4], frozen / 2)
    torch.testing.assert_close(within[:, 1], routing.weights)


def test_a_relative_threshold_counts_in_the_mean_weight_of_its_set() -> None:
    fixed = usage_threshold(TWO_SETS.sizes, DriftSettings(usage_threshold=0.02))
    torch.testing.assert_close(fixed, torch.full((6,), 0.02))
    settings = DriftSettings(usage_threshold=0.6, relative_threshold=True)
    expected = torch.tensor([0.15] * 4 + [0.3] * 2)
    torch.testing.assert_close(usage_threshold(TWO_SETS.sizes, settings), expected)
