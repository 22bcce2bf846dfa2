"""The measures of a probe against their definitions."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sodap.probing.measures import cosines, group_means, spread, support, variety


@given(st.integers(2, 9), st.integers(1, 3), st.integers(1, 6), st.integers(0, 1000))
def test_variety_is_the_mean_total_variation_of_two_images(
    images: int, layers: int, prompts: int, seed: int
) -> None:
    drawn = torch.rand(images, layers, prompts, generator=torch.Generator().manual_seed(seed))
    weights = drawn / drawn.sum(-1, keepdim=True)
    for layer in range(layers):
        pairs = combinations(weights[:, layer].double(), 2)
        expected = torch.stack([(one - two).abs().sum() / 2 for one, two in pairs]).mean()
        torch.testing.assert_close(variety(weights)[layer], expected, rtol=1e-5, atol=1e-9)


def test_variety_of_equal_disjoint_and_signed_routings() -> None:
    same = torch.tensor([[0.25, 0.75]] * 3)[:, None]
    disjoint = torch.eye(3)[:, None]
    signed = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])[:, None]
    assert variety(same).item() == 0
    assert variety(disjoint).item() == pytest.approx(1)
    assert variety(signed).item() == pytest.approx(1)
    # The distance does not depend on the scale: F and A side by side are two distributions.
    assert variety(torch.cat([disjoint, same], -1)).item() == pytest.approx(0.5)
    assert variety(same[:1]).isnan().all()
    assert variety(torch.zeros(3, 1, 4)).item() == 0


def test_means_support_and_spread() -> None:
    rows = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 4.0]])[:, None]
    means = group_means(rows, torch.tensor([7, 7, 2]))
    torch.testing.assert_close(means[:, 0], torch.tensor([[0.0, 4.0], [2.0, 0.0]]))
    assert support(rows).tolist() == [1.0]
    assert spread(torch.ones(4, 1, 3)).item() == 0
    assert spread(torch.tensor([[1.0], [-1.0]])[:, None]).item() == pytest.approx(1)
    assert spread(torch.tensor([[3.0], [1.0]])[:, None]).item() == pytest.approx((1 / 5) ** 0.5)


def test_cosines_leave_out_a_row_with_itself() -> None:
    found = cosines(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]]))
    assert found is not None
    assert found.mean == pytest.approx((0 + 2 * 0.5**0.5) / 3)
    assert found.least == pytest.approx(0)
    assert cosines(torch.ones(1, 4)) is None
