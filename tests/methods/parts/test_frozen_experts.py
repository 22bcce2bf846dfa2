"""Experts keep what they were given, and the head of each image is its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sodap.backbones import FrozenViT, LoraLayout
from sodap.methods.parts.frozen_experts import FrozenExperts

WIDTH, CLASSES = 5, 3
COUNTS = [[10.0, 20.0, 0.0], [4.0, 0.0, 1.0], [5.0, 0.0, 5.0]]
"""Images of each class in the domain of each expert."""


def experts_of(micro: FrozenViT, count: int) -> tuple[FrozenExperts, list[nn.Linear], list[Tensor]]:
    """A module for four experts with `count` of them in use, and what they were made of."""
    layout = LoraLayout.of(micro, first=4, rank=2)
    experts = FrozenExperts(layout, 4, WIDTH, CLASSES)
    heads, residuals = [], []
    for slot in range(count):
        generator = torch.Generator().manual_seed(slot)
        head, residual = nn.Linear(WIDTH, CLASSES), torch.empty(layout.blocks, layout.size)
        for tensor in (head.weight.data, head.bias.data, residual):
            tensor.normal_(generator=generator)
        experts.freeze(slot, residual, head, torch.tensor(COUNTS[slot]))
        heads.append(head)
        residuals.append(residual)
    return experts, heads, residuals


def test_every_image_gets_the_head_of_its_expert(micro: FrozenViT) -> None:
    experts, heads, residuals = experts_of(micro, 3)
    features = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(9))
    chosen = torch.tensor([2, 0, 1, 1, 2, 0])
    expected = torch.stack([heads[e](x) for x, e in zip(features, chosen, strict=True)])
    torch.testing.assert_close(experts.logits(features, chosen), expected)
    assert torch.equal(experts.residuals[:3], torch.stack(residuals))


def test_two_experts_are_merged_by_their_shares(micro: FrozenViT) -> None:
    experts, heads, residuals = experts_of(micro, 3)
    experts.merge(0, 2)
    mean = 0.75 * heads[0].weight + 0.25 * heads[2].weight
    torch.testing.assert_close(experts.weight[0], mean.detach())
    torch.testing.assert_close(
        experts.residuals[0],
        experts.layout.mean(torch.stack(residuals)[[0, 2]], torch.tensor([3.0, 1.0])),
    )
    assert experts.class_counts[0].tolist() == [15, 20, 5]
    experts.move(1, 2)
    assert torch.equal(experts.residuals[2], residuals[1])
    assert not any(each[1].any() for each in experts.buffers())
    assert experts.bytes_each == 4 * (residuals[0].numel() + CLASSES * (WIDTH + 2))


def test_class_frequencies_of_the_domains(micro: FrozenViT) -> None:
    experts, *_ = experts_of(micro, 3)
    assert experts.knows(torch.tensor([0, 1])).tolist() == [
        [True, True, False],
        [True, False, True],
    ]
    torch.testing.assert_close(experts.priors()[1], torch.tensor([5.0, 1.0, 2.0]) / 8)
