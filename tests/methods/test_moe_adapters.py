"""MoE-Adapters: freezing, domain selection and state over three stages."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sodap.backbones import FrozenViT, build_backbone
from sodap.errors import SodapError
from sodap.learning import Learner
from sodap.methods.moe_adapters import MoeAdapters
from tests.conftest import make_stream
from tests.methods.common import HEAD, TRAINING, build, decayed, losses_of, step

THREE = make_stream(domains=3)
SMALL = {"experts": 6, "bottleneck": 8, "selector_steps": 60}
NAMES = ("down", "down_bias", "up", "up_bias")


def taught(stages: int, **options: Any) -> Learner:
    learner = Learner(
        THREE.classes,
        method="moe-adapters",
        options=SMALL | options,
        training=TRAINING,
        device="cpu",
    )
    for domain in THREE.domains[:stages]:
        learner.learn(domain)
    return learner


def method_of(learner: Learner) -> MoeAdapters:
    assert isinstance(learner.method, MoeAdapters)
    return learner.method.eval()


@pytest.fixture(scope="module")
def after_one() -> Learner:
    """After one stage; tests must not change it."""
    return taught(1)


@pytest.fixture(scope="module")
def after_three(after_one: Learner) -> Learner:
    """After three stages; tests must not change it."""
    learner = taught(0)
    learner.restore(copy.deepcopy(after_one.method.state()), 1, 1)
    for domain in THREE.domains[1:]:
        learner.learn(domain)
    return learner


def some_images(count: int = 12) -> Tensor:
    images = torch.cat([domain.test.images[:4] for domain in THREE.domains])
    return build_backbone().prepare(images)[:count]


# ---------------------------------------------------------------------- one batch


def test_the_first_pass_is_that_of_the_backbone(micro: FrozenViT) -> None:
    method, images = build(MoeAdapters, micro, **SMALL), some_images()
    # The last block of a plain pass sums in another order.
    torch.testing.assert_close(method._features(images), micro(images), rtol=1e-5, atol=1e-5)


def test_mixed_precision(after_one: Learner) -> None:
    method, images = copy.deepcopy(method_of(after_one)), some_images()
    exact = method(images)
    with torch.autocast("cpu", torch.bfloat16):
        rough = method(images)
        loss = losses_of(method.train(), images)["ce"]
    torch.autograd.backward(loss)
    assert rough.dtype == loss.dtype == torch.float32
    torch.testing.assert_close(rough, exact, rtol=0.1, atol=0.1 * float(exact.detach().abs().max()))
    gradients = [p.grad for p in method.blocks.parameters()]
    assert all(g is not None and g.dtype == torch.float32 and g.isfinite().all() for g in gradients)


def test_noise_and_dropout_only_in_training(after_one: Learner) -> None:
    method, images = copy.deepcopy(method_of(after_one)), some_images()

    def loss(seed: int) -> float:
        return losses_of(method, images, seed)["ce"].item()

    assert loss(1) == loss(2)
    method.train()
    assert loss(1) != loss(2)
    assert loss(1) == loss(1)


def test_only_the_matrix_of_the_head_decays(micro: FrozenViT) -> None:
    assert decayed(build(MoeAdapters, micro, **SMALL)) == {"head.weight"}


def test_trainable_count(micro: FrozenViT) -> None:
    method = build(MoeAdapters, micro)
    expert, router = 128 * 64 + 64 + 64 * 128 + 128, 2 * 128 * 22
    assert method.trainable_count() == 6 * (22 * expert + router) + HEAD
    assert method.trainable_count() == sum(
        p.numel() for p in method.parameters() if p.requires_grad
    )
    for block in method._blocks():
        block.freeze(torch.tensor([3, 4]))
    assert method.trainable_count() == 6 * (20 * expert + router) + HEAD
    reduced = build(MoeAdapters, micro, variant="reduced")
    assert reduced.trainable_count() == 6 * 2 * (expert + 2 * 128) + HEAD


@pytest.mark.parametrize("options", [{"experts": 2}, {"variant": "reduced"}])
def test_an_image_cannot_use_more_experts_than_there_are(
    micro: FrozenViT, options: dict[str, Any]
) -> None:
    with pytest.raises(SodapError, match="more than 2 experts"):
        build(MoeAdapters, micro, top_k=3, **options)


# ---------------------------------------------------------------------- stages


def test_frozen_experts_and_old_routers_never_change(
    after_one: Learner, after_three: Learner
) -> None:
    before, method = method_of(after_one), copy.deepcopy(method_of(after_three))
    # A harsher optimiser than the training loop's: decay on every parameter.
    optimizer = torch.optim.AdamW(method.train().parameters(), lr=0.1, weight_decay=0.5)
    for seed in range(2):
        step(method, some_images(), optimizer, seed)
    for old, new in zip(before._blocks(), method._blocks(), strict=True):
        mask = old.frozen
        assert int(mask.sum()) == 2
        assert (new.frozen & mask).equal(mask)
        for name in NAMES:
            assert torch.equal(old.expert_weights(name)[mask], new.expert_weights(name)[mask])
        assert torch.equal(new.router.past[0], old.router.weight)
        assert not torch.equal(old.up[~mask], new.up[~mask])
    kept = [block.expert_weights("up")[block.frozen] for block in before._blocks()]
    assert sum(float(weight.detach().abs().sum()) for weight in kept) > 0, "experts had trained"


def test_the_most_used_experts_are_frozen() -> None:
    learner = taught(0)
    method = method_of(learner)
    ended = learner.learn(THREE.domains[0]).ended
    counts = np.zeros((method.backbone.depth, 6), dtype=int)

    def counting(layer: int, tokens: Tensor) -> Tensor:
        block = list(method._blocks())[layer]
        gates = block.route(tokens[:, 0])
        for expert in gates.expert.flatten().tolist():
            counts[layer, expert] += 1
        added: Tensor = block(tokens, gates)
        return added

    for image in method.backbone.prepare(THREE.domains[0].train.images):
        method.backbone(image[None], parallel=counting)
    assert ended["expert_usage"] == counts.tolist()
    for block, row in zip(method._blocks(), counts, strict=True):
        best = sorted(range(6), key=lambda e: (-row[e], e))[:2]
        assert block.frozen.nonzero().flatten().tolist() == sorted(best)


def test_reduced_neither_freezes_nor_selects() -> None:
    method = method_of(taught(2, variant="reduced"))
    assert not any(block.frozen.any() for block in method._blocks())
    assert all(len(block.router.past) == 0 for block in method._blocks())
    assert method.stored() == []
    assert any(block.router.weight.any() for block in method._blocks())


# ---------------------------------------------------------------------- selection


def test_each_image_gets_the_router_of_its_domain(
    after_three: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, images = method_of(after_three), some_images(6)
    chosen = torch.tensor([0, 1, 2, 2, 1, 0])
    monkeypatch.setattr(method.selector, "nearest", lambda features, batchwise: chosen)
    found = method(images)
    for domain in range(3):
        alone = copy.deepcopy(method)
        for block in alone._blocks():
            routers = [*block.router.past, block.router.weight.detach()]
            block.router.weight.data.copy_(routers[domain])
        expected = alone.head(alone._features(images))
        mine = chosen == domain
        torch.testing.assert_close(found[mine], expected[mine], rtol=0, atol=1e-5)
        assert not torch.allclose(found[~mine], expected[~mine], rtol=0, atol=1e-5)


def test_faithful_has_noise_and_selects_by_batch(
    after_three: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    literal = taught(0, faithful=True)
    literal.restore(method_of(after_three).state(), 3, 3)
    default, published, images = method_of(after_three), method_of(literal), some_images()
    assert len(set(published.selector.nearest(published.frozen_features(images)).tolist())) > 1
    selected = published._domain_of(images)
    assert selected is not None
    assert len(set(selected.tolist())) == 1
    assert torch.equal(published(images), published(images))

    # Only the noise, with the same router for both.
    for method in (default, published):
        monkeypatch.setattr(method, "_domain_of", lambda images: None)
    assert not torch.allclose(default(images), published(images), rtol=0, atol=1e-4)


# ---------------------------------------------------------------------- state


def test_states_of_other_stages_replace_each_other(
    after_one: Learner, after_three: Learner
) -> None:
    images = torch.cat([domain.test.images for domain in THREE.domains])
    learner = taught(0)
    for stage, expected in ((3, after_three), (1, after_one)):  # back as well, as after a failure
        learner.restore(expected.method.state(), stage, stage)
        found = learner.predict(images).probabilities
        assert torch.equal(found, expected.predict(images).probabilities)
        assert learner.method.trainable_count() == expected.method.trainable_count()
        assert learner.stored() == expected.stored()
