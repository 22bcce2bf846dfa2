from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sodap.learning import Learner, Training
from sodap.methods.uniprompt import UniPrompt
from sodap.streams import Stream
from tests.conftest import make_batch, make_stream

TRAINING = Training(epochs=2, patience=2, batch_size=12, lr=0.01, weight_decay=0.5)
WIDTH, DEPTH = 128, 6  # of the `micro` backbone
CLASSES = 3


def learner_of(**options: Any) -> Learner:
    names = [f"class {c}" for c in range(CLASSES)]
    return Learner(names, method="uniprompt", options=options, training=TRAINING, device="cpu")


def uniprompt(**options: Any) -> UniPrompt:
    method = learner_of(**options).method
    assert isinstance(method, UniPrompt)
    return method


def images_of(method: UniPrompt, stream: Stream, count: int = 2) -> Tensor:
    return method.backbone.prepare(stream.domains[0].train.images[:count])


def by_hand(method: UniPrompt, image: Tensor) -> tuple[Tensor, list[int]]:
    """The feature of one image `[3, S, S]`, block by block, and how many tokens each block saw."""
    vit, c = method.backbone.vit, method.config
    keys, prompts = method.pool.keys.rows[0], method.pool.prompts.rows[0]
    patches = vit._pos_embed(vit.patch_embed(image[None]))[0]
    tokens, seen = [*vit.norm_pre(patches)], []
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
        seen.append(len(tokens))
        tokens = [*block(torch.stack(tokens)[None])[0]]
    return (tokens[0] if c.faithful else method.backbone.norm(tokens[0])), seen


@pytest.mark.parametrize("faithful", [False, True])
@pytest.mark.parametrize("layers", [2, 99])
def test_features_by_hand(stripes: Stream, faithful: bool, layers: int) -> None:
    """One image at a time, one prompt at a time, in float64."""
    method = uniprompt(pool_size=6, layers=layers, faithful=faithful).double()
    method.pool.grow(3, torch.Generator().manual_seed(1))
    images = images_of(method, stripes).double()
    with torch.no_grad():
        expected = [by_hand(method, image) for image in images]
        torch.testing.assert_close(
            method.features(images), torch.stack([feature for feature, _ in expected])
        )
    seen = expected[0][1]
    more = [length - seen[0] for length in seen]
    assert more == [min(layer, min(layers, DEPTH) - 1) for layer in range(DEPTH)]


def test_every_prompt_has_a_part() -> None:
    method = uniprompt(pool_size=50)
    query = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(0))
    weights = method.prompt_weights(query, method.pool.keys.rows[0])
    assert (weights > 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(4))


def test_all_blocks_share_one_pool() -> None:
    method = uniprompt()
    assert method.pool.keys.rows.shape == method.pool.prompts.rows.shape == (1, 500, WIDTH)
    assert method.rows_per_stage == 100
    assert uniprompt(pool_size=3).rows_per_stage == 1


def test_what_later_blocks_ask_teaches_the_prompts(stripes: Stream) -> None:
    method = uniprompt(pool_size=6)
    images = images_of(method, stripes)
    losses = method.losses(make_batch(method, images, torch.tensor([0, 1])))
    assert list(losses) == ["ce"]
    torch.autograd.backward(losses["ce"])
    for each in method.pool.sets:
        assert each.newest.grad is not None
        assert (each.newest.grad.abs().amax(-1) > 0).all()


@pytest.mark.parametrize("faithful", [False, True])
def test_three_stages(faithful: bool) -> None:
    """A fifth joins at every stage; what was trained stays to the bit; a state brings all back."""
    stream = make_stream(domains=3)
    learner = learner_of(pool_size=10, faithful=faithful)
    sizes = []
    kept: list[Tensor] = []
    for domain in stream.domains:
        learner.learn(domain)
        method = learner.method
        assert isinstance(method, UniPrompt)
        sizes.append((method.pool.frozen_count, method.pool.active_count))
        assert method.trainable_count() == 2 * sizes[-1][1] * WIDTH + CLASSES * (WIDTH + 1)
        rows = torch.cat([each.rows for each in method.pool.sets]).detach().clone()
        for once in kept:
            assert torch.equal(rows[:, : once.shape[1]], once)
        kept.append(rows)
    assert sizes == [(0, 10), (10, 2), (12, 2)]

    other = learner_of(pool_size=10, faithful=faithful)
    other.restore(learner.method.state(), 3, 3)
    images = stream.domains[0].test.images
    found = other.predict(images).probabilities
    assert torch.equal(found, learner.predict(images).probabilities)
    singly = torch.cat([other.predict(image[None]).probabilities for image in images])
    torch.testing.assert_close(found, singly, rtol=0, atol=1e-5)
