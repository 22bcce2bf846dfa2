"""OS-Prompt and OS-Prompt++: queries and distances against plain loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sodap.backbones import FrozenViT, build_backbone
from sodap.errors import SodapError
from sodap.methods.os_prompt import (
    OSPrompt,
    OSPromptPlus,
    QueriedPrefixes,
    feature_distance,
    similarity_distance,
)
from tests.methods.common import WIDTH, build, drawn, images_of, losses_of

SMALL: dict[str, Any] = {"rows_per_stage": 6, "layers": 3}


def test_each_block_is_queried_by_its_own_cls_token() -> None:
    """Image by image and prompt by prompt, in float64, from the tokens of a separate pass."""
    method = build(OSPrompt, build_backbone(), rows_per_stage=4, layers=3, length=4).double()
    method.pool.grow(3, torch.Generator().manual_seed(1))
    images = images_of(method.backbone, 2).double()
    keys, prompts = method.pool.keys.rows, method.pool.prompts.rows
    inputs: list[Tensor] = []

    def naive(layer: int, tokens: Tensor) -> tuple[Tensor, Tensor] | None:
        inputs.append(tokens)
        if layer >= 3:
            return None
        rows = []
        for cls in tokens[:, 0]:
            prompt = torch.zeros(4, WIDTH, dtype=torch.float64)
            for k, p in zip(keys[layer], prompts[layer], strict=True):
                prompt = prompt + F.cosine_similarity(cls, k, dim=0) * p.view(4, WIDTH)
            rows.append(prompt)
        both = torch.stack(rows)
        return both[:, :2], both[:, 2:]

    prefixes = QueriedPrefixes(method.pool)
    found = method.backbone(images, prefix=prefixes)
    torch.testing.assert_close(found, method.backbone(images, prefix=naive))
    torch.testing.assert_close(method.features(images), found)
    torch.testing.assert_close(prefixes.queries, torch.stack([t[:, 0] for t in inputs[:3]]))


def test_gradients_flow_through_queries_and_block_zero_has_a_constant_one(
    micro: FrozenViT,
) -> None:
    method = build(OSPrompt, micro, **SMALL)
    prefixes = QueriedPrefixes(method.pool)
    micro(images_of(micro, 4), prefix=prefixes)
    queries, prompts = prefixes.queries, method.pool.prompts.newest
    for layer in range(3):
        (gradient,) = torch.autograd.grad(queries[layer].sum(), prompts, retain_graph=True)
        reached = gradient.abs().amax((1, 2)) > 0
        assert reached.tolist() == [earlier < layer for earlier in range(3)]
    assert torch.equal(queries[0], queries[0, :1].expand_as(queries[0]))
    assert (queries[1] - queries[1, :1]).abs().max() > 1e-3


@pytest.mark.parametrize(("method", "training"), [(OSPrompt, 1), (OSPromptPlus, 2)])
def test_number_of_passes(
    micro: FrozenViT,
    method: type[OSPrompt],
    training: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built, images, passes = build(method, micro, **SMALL), images_of(micro, 4), []
    tokens = micro.tokens

    def counted(*arguments: Any, **named: Any) -> Tensor:
        passes.append(arguments)
        return tokens(*arguments, **named)

    monkeypatch.setattr(micro, "tokens", counted)
    built(images)
    assert len(passes) == 1
    losses_of(built, images)
    assert len(passes) == 1 + training


def test_similarity_distance_against_a_loop() -> None:
    queries, reference, keys = drawn(2, 3, 5), drawn(3, 5, seed=1), drawn(2, 4, 5, seed=2)
    expected = 0.0
    for layer in range(2):
        for image in range(3):
            for key in keys[layer]:
                mine = F.cosine_similarity(queries[layer, image], key, dim=0)
                theirs = F.cosine_similarity(reference[image], key, dim=0)
                expected += float((mine - theirs) ** 2) / 3
    assert float(similarity_distance(queries, reference, keys)) == pytest.approx(expected)


def test_feature_distance_against_a_loop() -> None:
    queries, reference = drawn(2, 3, 5), drawn(3, 5, seed=1)
    expected = sum(float(F.mse_loss(layer, reference)) for layer in queries)
    assert float(feature_distance(queries, reference)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "distance"),
    [
        ({}, "sim"),
        ({"faithful": True}, "feat"),
        ({"qr": "feat"}, "feat"),
        ({"qr": "sim", "faithful": True}, "sim"),
    ],
)
def test_queries_are_kept_close_to_the_reference(
    micro: FrozenViT, options: dict[str, Any], distance: str
) -> None:
    method = build(OSPromptPlus, micro, qr_weight=0.5, **SMALL, **options)
    images = images_of(micro, 4)
    losses = losses_of(method, images)
    assert list(losses) == ["ce", "qr"]

    prefixes = QueriedPrefixes(method.pool)
    micro(images, prefix=prefixes)
    expected = (
        similarity_distance(prefixes.queries, micro(images), method.pool.keys.rows)
        if distance == "sim"
        else feature_distance(prefixes.queries, micro(images))
    )
    torch.testing.assert_close(losses["qr"], 0.5 * expected)

    prompts, keys = method.pool.prompts.newest, method.pool.keys.newest
    to_prompts, to_keys = torch.autograd.grad(losses["qr"], [prompts, keys])
    # The query of the last prompted block depends on the prompts of the two before it.
    assert (to_prompts.abs().amax((1, 2)) > 0).tolist() == [True, True, False]
    # With feat, keys receive gradients only through the prefixes of earlier blocks.
    assert (to_keys.abs().amax((1, 2)) > 0).tolist() == [True, True, distance == "sim"]


def test_options_of_the_reference(micro: FrozenViT) -> None:
    with pytest.raises(SodapError, match=r"option 'qr_weight' of os-prompt\+\+"):
        build(OSPromptPlus, micro, qr_weight=0)
    with pytest.raises(SodapError, match="option 'qr' of os-prompt:"):
        build(OSPrompt, micro, qr="sim")
