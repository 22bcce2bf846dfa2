"""UniPrompt-CL: features against a plain loop, in the default and the published form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sodap.backbones import FrozenViT, build_backbone
from sodap.methods.uniprompt import UniPrompt
from tests.methods.common import DEPTH, WIDTH, build, drawn, images_of, losses_of


def by_hand(method: UniPrompt, image: Tensor) -> tuple[Tensor, list[int]]:
    """Feature of one image `[3, S, S]`, block by block, and the number of tokens in each block."""
    vit, c = method.backbone.vit, method.config
    keys, prompts = method.pool.keys.rows[0], method.pool.prompts.rows[0]
    patches = vit._pos_embed(vit.patch_embed(image[None]))[0]
    tokens, lengths = [*vit.norm_pre(patches)], []
    for layer, block in enumerate(vit.blocks):
        if layer < c.layers:
            query = tokens[0]
            products = torch.stack([query @ key for key in keys])
            if c.faithful:
                weights = products
            else:
                cosines = products / (query.norm() * keys.norm(dim=1))
                powers = (cosines / c.temperature).exp()
                weights = powers / powers.sum()
            prompt = torch.stack([w * p for w, p in zip(weights, prompts, strict=True)]).sum(0)
            tokens = [prompt, *tokens] if c.faithful else [*tokens, prompt]
        lengths.append(len(tokens))
        tokens = [*block(torch.stack(tokens)[None])[0]]
    return (tokens[0] if c.faithful else method.backbone.norm(tokens[0])), lengths


@pytest.mark.parametrize("faithful", [False, True])
@pytest.mark.parametrize("layers", [2, 99])
def test_features_against_a_loop(faithful: bool, layers: int) -> None:
    """One image at a time, one prompt at a time, in float64."""
    method = build(UniPrompt, build_backbone(), pool_size=6, layers=layers, faithful=faithful)
    method.double().pool.grow(3, torch.Generator().manual_seed(1))
    images = images_of(method.backbone, 2).double()
    with torch.no_grad():
        expected = [by_hand(method, image) for image in images]
        torch.testing.assert_close(
            method.features(images), torch.stack([feature for feature, _ in expected])
        )
    lengths = expected[0][1]
    added = [length - lengths[0] for length in lengths]
    assert added == [min(layer, min(layers, DEPTH) - 1) for layer in range(DEPTH)]


def test_all_prompts_have_weights_that_sum_to_one(micro: FrozenViT) -> None:
    method = build(UniPrompt, micro, pool_size=50)
    weights = method.prompt_weights(drawn(4, WIDTH).float(), method.pool.keys.rows[0])
    assert (weights > 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(4))


def test_all_blocks_share_one_pool(micro: FrozenViT) -> None:
    method = build(UniPrompt, micro)
    assert method.pool.keys.rows.shape == method.pool.prompts.rows.shape == (1, 500, WIDTH)
    assert method.rows_per_stage == 100
    assert build(UniPrompt, micro, pool_size=3).rows_per_stage == 1


def test_every_prompt_and_key_receives_a_gradient(micro: FrozenViT) -> None:
    method = build(UniPrompt, micro, pool_size=6)
    losses = losses_of(method, images_of(micro, 2))
    assert list(losses) == ["ce"]
    torch.autograd.backward(losses["ce"])
    for each in method.pool.sets:
        assert each.newest.grad is not None
        assert (each.newest.grad.abs().amax(-1) > 0).all()
