"""LoRA against the network with its weights changed by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.backbones.test_cls_row import all_kinds, images_for
from timm.layers.mlp import GluMlp
from torch import Tensor

from sodap.backbones import FrozenViT, LoraLayout, build_backbone
from sodap.errors import SodapError

NETWORKS: dict[str, Callable[[], FrozenViT]] = {
    "micro": lambda: build_backbone("micro"),
    "all kinds": all_kinds,
    "registers": lambda: build_backbone("vit_small_patch14_reg4_dinov2", "random", 28),
}


@pytest.fixture(params=NETWORKS)
def network(request: pytest.FixtureRequest) -> FrozenViT:
    return NETWORKS[request.param]().double()


def residuals(layout: LoraLayout, *count: int, seed: int = 0) -> Tensor:
    """Random residuals `[*count, L, P]` in float64, of which no factor is zero."""
    generator = torch.Generator().manual_seed(seed)
    shape = (*count, layout.blocks, layout.size)
    return 0.2 * torch.randn(shape, generator=generator, dtype=torch.float64)


def changed(network: FrozenViT, layout: LoraLayout, rows: Tensor) -> FrozenViT:
    """A copy of the network whose weights are W + up · down, with explicit indices into a row."""
    other = copy.deepcopy(network)
    blocks: Any = other.vit.blocks[layout.first :]
    for row, block in zip(rows, blocks, strict=True):
        start = 0
        for layer in (block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2):
            high, wide = layer.weight.shape
            down = row[start : start + layout.rank * wide].reshape(layout.rank, wide)
            start += layout.rank * wide
            up = row[start : start + layout.rank * high].reshape(high, layout.rank)
            start += layout.rank * high
            layer.weight.data += up @ down
        assert start == layout.size
    return other


def test_a_residual_is_a_change_of_the_weights(network: FrozenViT) -> None:
    layout = LoraLayout.of(network, first=1, rank=3)
    rows, images = residuals(layout), images_for(network).double()
    expected = changed(network, layout, rows).vit.forward_features(images)
    weights = layout.fold(network, rows)
    for lora in (layout.port(rows), layout.port(weights=weights)):
        torch.testing.assert_close(network.norm(network.tokens(images, lora=lora)), expected)
        torch.testing.assert_close(network(images, lora=lora), expected[:, 0])
        *_, last = network.through(network.embed(images), lora=lora)
        torch.testing.assert_close(network.norm(last), expected)
    assert not torch.allclose(network(images), expected[:, 0])


def test_other_ports_get_lora_as_well(network: FrozenViT) -> None:
    layout, images = LoraLayout.of(network), images_for(network).double()
    rows = residuals(layout)

    def added(layer: int, tokens: Tensor) -> Tensor:
        return 0.1 * tokens

    found = network(images, lora=layout.port(rows), parallel=added)
    expected = changed(network, layout, rows)(images, parallel=added)
    torch.testing.assert_close(found, expected)


def test_every_image_can_have_a_residual_of_its_own(network: FrozenViT) -> None:
    layout = LoraLayout.of(network, first=2, rank=2)
    first, table = residuals(layout, seed=1), residuals(layout, 3)
    images = torch.cat([images_for(network)] * 4)[:5].double()
    chosen = torch.tensor([2, 0, 2, 1, 0])
    lora = layout.port(table, chosen=chosen, weights=layout.fold(network, first))
    found = network(images, lora=lora)
    base = changed(network, layout, first)
    for image, expert, row in zip(images, chosen, found, strict=True):
        alone = changed(base, layout, table[expert])(image[None])[0]
        torch.testing.assert_close(row, alone)


def test_gradients_are_those_of_changed_weights(network: FrozenViT) -> None:
    layout, images = LoraLayout.of(network, first=1, rank=2), images_for(network).double()
    rows = residuals(layout).requires_grad_()
    (found,) = torch.autograd.grad(network(images, lora=layout.port(rows)).sum(), rows)
    (folded,) = torch.autograd.grad(
        network(images, lora=layout.port(weights=layout.fold(network, rows))).sum(), rows
    )
    torch.testing.assert_close(found, folded)
    assert found.abs().min(1).values.max() > 0


def test_a_new_residual_changes_nothing_and_can_learn(network: FrozenViT) -> None:
    layout, images = LoraLayout.of(network), images_for(network).double()
    rows = layout.draw(torch.Generator().manual_seed(0)).double().requires_grad_()
    found = network(images, lora=layout.port(rows))
    torch.testing.assert_close(found, network(images))
    (gradient,) = torch.autograd.grad(found.square().sum(), rows)
    for down, up in layout.split(gradient):
        assert not down.any()
        assert up.flatten(1).any(1).all()


def test_blocks_before_the_first_are_as_they_were(network: FrozenViT) -> None:
    layout, images = LoraLayout.of(network, first=2), images_for(network).double()
    lora = layout.port(residuals(layout))
    plain = [*network.through(network.embed(images))]
    found = [*network.through(network.embed(images), lora=lora)]
    for layer, (one, two) in enumerate(zip(plain, found, strict=True)):
        assert torch.equal(one, two) == (layer < 2)
    *_, rest = network.through(plain[1], first=2, lora=lora)
    torch.testing.assert_close(rest, found[-1])


def test_bf16_changes_little() -> None:
    network = build_backbone("micro")
    layout, images = LoraLayout.of(network), images_for(network)
    rows = residuals(layout, 2).float()
    chosen = torch.arange(len(images)) % 2
    with torch.no_grad():
        true = network(images, lora=layout.port(rows, chosen=chosen))
        with torch.autocast("cpu", torch.bfloat16):
            found = network(images, lora=layout.port(rows, chosen=chosen)).float()
    assert (found - true).norm() < 0.05 * true.norm()


def test_the_mean_of_residuals_is_the_best_of_its_rank() -> None:
    network = build_backbone("micro")
    layout = LoraLayout.of(network, first=3, rank=2)
    rows, weights = residuals(layout, 2), torch.tensor([3.0, 1.0])
    found = layout.split(layout.mean(rows, weights))
    for (down, up), (downs, ups) in zip(found, layout.split(rows), strict=True):
        exact = 0.75 * ups[0] @ downs[0] + 0.25 * ups[1] @ downs[1]
        u, s, v = torch.linalg.svd(exact, full_matrices=False)
        best = (u[..., :2] * s[:, None, :2]) @ v[:, :2]
        torch.testing.assert_close(up @ down, best)
    same = layout.mean(rows[:1].expand(3, -1, -1), torch.ones(3))
    for (down, up), (one, two) in zip(layout.split(same), layout.split(rows[0]), strict=True):
        torch.testing.assert_close(up @ down, two @ one)


def test_an_mlp_of_another_kind_is_refused() -> None:
    network = build_backbone("micro")
    network.vit.blocks[1].mlp = GluMlp(network.width)
    with pytest.raises(SodapError, match="GluMlp"):
        LoraLayout.of(network)


def test_weights_are_folded_and_averaged_in_full_precision_under_autocast() -> None:
    network = build_backbone("micro")
    layout = LoraLayout.of(network, first=4)
    rows = residuals(layout, 2).float()
    expected = layout.fold(network, rows[0]), layout.mean(rows, torch.ones(2))
    with torch.autocast("cpu", torch.bfloat16):
        found = layout.fold(network, rows[0]), layout.mean(rows, torch.ones(2))
    assert torch.equal(found[1], expected[1])
    for one, two in zip(found[0], expected[0], strict=True):
        assert all(map(torch.equal, one, two))
