"""RanPAC and LayUP: stage 1 adapts the network, every stage solves for the head."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import Ridge as OracleRidge
from torch import Tensor

from sodap.backbones import FrozenViT
from sodap.learning.progress import snapshot
from sodap.methods.layup import LayUP
from sodap.methods.parts.first_session import FirstSessionRidge
from sodap.methods.parts.last_blocks import read_last_blocks, width_of_last_blocks
from sodap.methods.parts.second_moments import PENALTIES
from sodap.methods.ranpac import RanPAC
from sodap.methods.ridge import ProjectedRidge, Ridge
from sodap.streams import Stream
from tests.methods.common import DEPTH, WIDTH, build, images_of, learner_of

Array = NDArray[np.float64]

BOTH = pytest.mark.parametrize(
    ("method", "options"), [(RanPAC, {"projection": 40}), (LayUP, {"layers": 2})]
)


@BOTH
def test_only_stage_1_trains_the_network(
    stripes: Stream, method: type[FirstSessionRidge], options: dict[str, int]
) -> None:
    learner, model = learner_of(method, **options)
    images = model.backbone.prepare(stripes.domains[0].test.images)
    plain = model.features(images)
    first = learner.learn(stripes.domains[0])
    assert len(first.history) == 1
    adapted, state = model.features(images), snapshot(model.state())
    assert not torch.allclose(adapted, plain)
    assert model.trainable_count() == sum(p.numel() for p in model.parameters() if p.requires_grad)

    second = learner.learn(stripes.domains[1])
    assert second.history == []
    assert 0 <= second.best_score <= 1
    assert torch.equal(model.features(images), adapted)
    assert torch.equal(model.head.weight, state["head.weight"])
    assert not torch.equal(model.weight, state["weight"])
    assert model.trainable_count() == model.weight.numel()


def fold_of_each(labels: Tensor, order: list[int], folds: int) -> NDArray[np.int64]:
    """Deal the images of each class to the folds, in the order in which they are seen."""
    dealt: dict[int, int] = {}
    found = np.zeros(len(labels), dtype=np.int64)
    for index in order:
        label = int(labels[index])
        found[index] = dealt.get(label, 0) % folds
        dealt[label] = dealt.get(label, 0) + 1
    return found


@BOTH
def test_head_and_penalty_are_those_of_a_loop(
    stripes: Stream, method: type[FirstSessionRidge], options: dict[str, int]
) -> None:
    """The penalty by folds of the last domain, the head from the images of all domains."""
    learner, model = learner_of(method, **options)
    reports = [learner.learn(domain).ended for domain in stripes.domains]
    xs, ys = [], []
    for domain in stripes.domains:
        features = model.features(model.backbone.prepare(domain.train.images))
        xs.append(features.detach().double().numpy())
        ys.append(np.eye(len(stripes.classes))[domain.train.labels])

    labels = stripes.domains[1].train.labels
    shuffle = model.randomness.generator("reference order", 2)
    order = torch.randperm(len(labels), generator=shuffle).tolist()
    fold = fold_of_each(labels, order, method.folds)
    errors = []
    for penalty in PENALTIES:
        error = 0.0
        for held in range(method.held_out):
            rest = fold != held
            energy = np.square(xs[1][rest]).sum(0).mean()
            oracle = OracleRidge(penalty * energy, solver="cholesky").fit(xs[1][rest], ys[1][rest])
            error += float(np.square(oracle.predict(xs[1][~rest]) - ys[1][~rest]).sum())
        errors.append(error)
    penalty = PENALTIES[int(np.argmin(errors))]
    assert reports[-1] == {"penalty": penalty}

    x, y = np.vstack(xs), np.vstack(ys)
    oracle = OracleRidge(penalty * np.square(x).sum(0).mean(), solver="cholesky").fit(x, y)
    expected = np.vstack([oracle.coef_.T, oracle.intercept_])
    np.testing.assert_allclose(model.weight, expected, atol=1e-4 * np.abs(expected).max())


def tokens_after_blocks(backbone: FrozenViT, images: Tensor) -> list[Tensor]:
    """Tokens after each block, by hooks on timm's own forward pass."""
    found: list[Tensor] = []
    hooks = [
        block.register_forward_hook(lambda _, __, output: found.append(output))
        for block in backbone.vit.blocks
    ]
    backbone.vit.forward_features(images)
    for hook in hooks:
        hook.remove()
    return found


def test_the_last_blocks_are_read_as_timm_computes_them(micro: FrozenViT) -> None:
    images = images_of(micro, 3)
    tokens = tokens_after_blocks(micro, images)
    normed = [micro.vit.norm(t) for each in tokens[-4:] for t in (each[:, 0], each[:, 1:].mean(1))]
    expected = torch.cat(normed, 1)
    torch.testing.assert_close(read_last_blocks(micro, micro.embed(images), 4), expected)
    assert expected.shape[1] == width_of_last_blocks(micro, 4) == 8 * WIDTH
    found = build(LayUP, micro, layers=2).features(images)
    torch.testing.assert_close(found, torch.cat([t[:, 0] for t in tokens[-2:]], 1))
    assert read_last_blocks(micro, micro.embed(images), 99).shape[1] == 2 * DEPTH * WIDTH


def test_ridges_on_the_last_blocks(micro: FrozenViT) -> None:
    images = images_of(micro, 3)
    last = read_last_blocks(micro, micro.embed(images), 4)
    torch.testing.assert_close(build(Ridge, micro, features="last4").features(images), last)
    projected = build(ProjectedRidge, micro, features="last4", projection=7)
    assert projected.projection.shape == (8 * WIDTH, 7)
    torch.testing.assert_close(projected.features(images), (last @ projected.projection).relu())
