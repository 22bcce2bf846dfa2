from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sodap.errors import SodapError
from sodap.learning import Learner, Training
from sodap.methods.os_prompt import (
    OSPrompt,
    OSPromptPlus,
    QueriedPrefixes,
    feature_distance,
    similarity_distance,
)
from sodap.streams import Stream
from tests.conftest import make_batch, make_stream

TRAINING = Training(epochs=2, patience=2, batch_size=12, lr=0.01, weight_decay=0.5)
WIDTH = 128  # of the `micro` backbone
CLASSES = 3
SMALL: dict[str, Any] = {"rows_per_stage": 6, "layers": 3}


def learner_of(name: str = "os-prompt", **options: Any) -> Learner:
    names = [f"class {c}" for c in range(CLASSES)]
    return Learner(names, method=name, options=options, training=TRAINING, device="cpu")


def os_prompt(name: str = "os-prompt", **options: Any) -> OSPrompt:
    method = learner_of(name, **options).method
    assert isinstance(method, OSPrompt)
    return method


def images_of(method: OSPrompt, stream: Stream, count: int = 4) -> Tensor:
    return method.backbone.prepare(stream.domains[0].train.images[:count])


def normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def test_each_block_is_asked_by_its_own_cls_token(stripes: Stream) -> None:
    """Image by image and prompt by prompt, in float64, from tokens of an independent pass."""
    method = os_prompt(rows_per_stage=4, layers=3, length=4).double()
    method.pool.grow(3, torch.Generator().manual_seed(1))
    images = images_of(method, stripes, 2).double()
    keys, prompts = method.pool.keys.rows, method.pool.prompts.rows
    entering: list[Tensor] = []

    def naive(layer: int, tokens: Tensor) -> tuple[Tensor, Tensor] | None:
        entering.append(tokens)
        if layer >= 3:
            return None
        answers = []
        for cls in tokens[:, 0]:
            prompt = torch.zeros(4, WIDTH, dtype=torch.float64)
            for k, p in zip(keys[layer], prompts[layer], strict=True):
                prompt = prompt + F.cosine_similarity(cls, k, dim=0) * p.view(4, WIDTH)
            answers.append(prompt)
        both = torch.stack(answers)
        return both[:, :2], both[:, 2:]

    answered = QueriedPrefixes(method.pool)
    found = method.backbone(images, prefix=answered)
    torch.testing.assert_close(found, method.backbone(images, prefix=naive))
    torch.testing.assert_close(method.features(images), found)
    torch.testing.assert_close(answered.queries, torch.stack([t[:, 0] for t in entering[:3]]))


def test_queries_teach_the_prompts_of_earlier_blocks(stripes: Stream) -> None:
    method = os_prompt(**SMALL)
    answered = QueriedPrefixes(method.pool)
    method.backbone(images_of(method, stripes), prefix=answered)
    prompts = method.pool.prompts.newest
    for layer in (0, 1, 2):
        (gradient,) = torch.autograd.grad(answered.queries[layer].sum(), prompts, retain_graph=True)
        reached = gradient.abs().amax((1, 2)) > 0
        assert reached.tolist() == [earlier < layer for earlier in range(3)]


def test_block_zero_is_asked_the_same_by_every_image(stripes: Stream) -> None:
    method = os_prompt(**SMALL)
    answered = QueriedPrefixes(method.pool)
    method.backbone(images_of(method, stripes), prefix=answered)
    first, second = answered.queries[:2]
    assert torch.equal(first, first[:1].expand_as(first))
    assert (second - second[:1]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("name", "training", "predicting"), [("os-prompt", 1, 1), ("os-prompt++", 2, 1)]
)
def test_passes_through_the_backbone(
    name: str,
    training: int,
    predicting: int,
    stripes: Stream,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method = os_prompt(name, **SMALL)
    images, passes = images_of(method, stripes), []
    tokens = method.backbone.tokens

    def counted(*arguments: Any, **named: Any) -> Tensor:
        passes.append(arguments)
        return tokens(*arguments, **named)

    monkeypatch.setattr(method.backbone, "tokens", counted)
    method(images)
    assert len(passes) == predicting
    method.losses(make_batch(method, images, torch.zeros(4, dtype=torch.long)))
    assert len(passes) == predicting + training


def test_similarity_distance_against_loops() -> None:
    queries, reference, keys = (
        normal(2, 3, 5, seed=0),
        normal(3, 5, seed=1),
        normal(2, 4, 5, seed=2),
    )
    expected = 0.0
    for layer in range(2):
        for image in range(3):
            for key in keys[layer]:
                mine = F.cosine_similarity(queries[layer, image], key, dim=0)
                theirs = F.cosine_similarity(reference[image], key, dim=0)
                expected += float((mine - theirs) ** 2) / 3
    assert float(similarity_distance(queries, reference, keys)) == pytest.approx(expected)


def test_feature_distance_against_loops() -> None:
    queries, reference = normal(2, 3, 5, seed=0), normal(3, 5, seed=1)
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
def test_queries_are_held_to_the_reference(
    stripes: Stream, options: dict[str, Any], distance: str
) -> None:
    method = os_prompt("os-prompt++", qr_weight=0.5, **SMALL, **options)
    assert isinstance(method, OSPromptPlus)
    images = images_of(method, stripes)
    losses = method.losses(make_batch(method, images, torch.tensor([0, 1, 2, 0])))
    assert list(losses) == ["ce", "qr"]

    answered = QueriedPrefixes(method.pool)
    method.backbone(images, prefix=answered)
    reference = method.backbone(images)
    expected = (
        similarity_distance(answered.queries, reference, method.pool.keys.rows)
        if distance == "sim"
        else feature_distance(answered.queries, reference)
    )
    torch.testing.assert_close(losses["qr"], 0.5 * expected)

    prompts, keys = method.pool.prompts.newest, method.pool.keys.newest
    to_prompts, to_keys = torch.autograd.grad(losses["qr"], [prompts, keys])
    # The query of the last prompted block depends on the prompts of the two before it.
    assert (to_prompts.abs().amax((1, 2)) > 0).tolist() == [True, True, False]
    # By coordinates, keys learn from it only through the prefixes that follow.
    assert (to_keys.abs().amax((1, 2)) > 0).tolist() == [True, True, distance == "sim"]


def test_without_weight_there_is_no_plus() -> None:
    with pytest.raises(SodapError, match="option 'qr_weight' of os-prompt"):
        os_prompt("os-prompt++", qr_weight=0)
    with pytest.raises(SodapError, match="option 'qr' of os-prompt"):
        os_prompt(qr="sim")


@pytest.mark.parametrize("name", ["os-prompt", "os-prompt++"])
def test_three_stages(name: str) -> None:
    """What trains is one block; what was trained stays to the bit; a state brings all back."""
    stream = make_stream(domains=3)
    learner = learner_of(name, **SMALL)
    kept: list[list[Tensor]] = []
    for number, domain in enumerate(stream.domains, start=1):
        learner.learn(domain)
        method = learner.method
        assert isinstance(method, OSPrompt)
        assert method.trainable_count() == 3 * 6 * WIDTH * (8 + 1) + CLASSES * (WIDTH + 1)
        assert method.pool_sizes() == {"frozen": 6 * (number - 1), "active": 6}
        for stage, block in enumerate(kept):
            for each, once in zip(method.pool.sets, block, strict=True):
                assert torch.equal(each.rows[:, 6 * stage : 6 * (stage + 1)], once)
        kept.append([each.newest.detach().clone() for each in method.pool.sets])

    other = learner_of(name, **SMALL)
    other.restore(learner.method.state(), 3, 3)
    images = stream.domains[0].test.images
    found = other.predict(images).probabilities
    assert torch.equal(found, learner.predict(images).probabilities)
    singly = torch.cat([other.predict(image[None]).probabilities for image in images])
    torch.testing.assert_close(found, singly, rtol=0, atol=1e-5)
