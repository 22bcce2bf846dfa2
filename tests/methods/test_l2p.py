"""L2P: which prompts are chosen, what the head sees, what trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.conftest import make_batch, make_split
from torch import Tensor

from sodap.backbones import FrozenViT, build_backbone
from sodap.errors import SodapError
from sodap.learning import Learner, Training, load
from sodap.methods import build_method
from sodap.methods.l2p import L2P
from sodap.methods.parts.query_key import most_similar
from sodap.methods.parts.similarity import cosine_similarity
from sodap.randomness import Randomness
from sodap.streams import Stream

CLASSES = 3


@pytest.fixture(scope="module")
def micro() -> FrozenViT:
    return build_backbone("micro")


def l2p(backbone: FrozenViT, **options: Any) -> L2P:
    return cast(L2P, build_method("l2p", options, backbone, CLASSES, Randomness(0)))


def images_of(backbone: FrozenViT, count: int, tint: float = 0.0) -> Tensor:
    return backbone.prepare(make_split(count, CLASSES, tint, seed=5).images)


def step(method: L2P, images: Tensor, labels: Tensor, optimizer: torch.optim.Optimizer) -> None:
    losses = method.losses(make_batch(method, images, labels))
    optimizer.zero_grad()
    method.total(losses).backward()  # type: ignore[no-untyped-call]
    method.before_step()
    optimizer.step()
    method.after_step()


def likeness_in_numpy(query: Tensor, keys: Tensor) -> NDArray[np.float64]:
    """Cosines, one pair at a time, in double precision."""
    q, k = (t.detach().double().numpy() for t in (query, keys))
    return np.array([[a @ b / np.sqrt((a @ a) * (b @ b)) for b in k] for a in q])


# ---------------------------------------------------------------- matching


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    batch=st.integers(1, 6),
    pool=st.integers(1, 12),
    data=st.data(),
)
def test_the_nearest_keys(seed: int, batch: int, pool: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, pool))
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(batch, 8, generator=generator)
    keys = torch.randn(pool, 8, generator=generator) * 0.02
    expected = likeness_in_numpy(query, keys)
    found = cosine_similarity(query, keys)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
    chosen = most_similar(found, count, vote=False).numpy()
    assert all(len(set(row)) == count for row in chosen.tolist())
    best = -np.sort(-expected, axis=1)[:, :count]  # by value: two keys may be as near as rounding
    np.testing.assert_allclose(np.take_along_axis(expected, chosen, 1), best, atol=1e-6)


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), batch=st.integers(1, 9), count=st.integers(1, 5))
def test_a_vote(seed: int, batch: int, count: int) -> None:
    likeness = torch.rand(batch, 5, generator=torch.Generator().manual_seed(seed))
    votes = [0] * 5
    for row in likeness.tolist():
        for column in sorted(range(5), key=lambda n: -row[n])[:count]:
            votes[column] += 1
    winners = sorted(range(5), key=lambda n: (-votes[n], n))[:count]
    assert most_similar(likeness, count, vote=True).tolist() == [winners] * batch


# ---------------------------------------------------------------- one pass


def test_the_head_reads_the_mean_of_the_prompts(micro: FrozenViT) -> None:
    """timm's own modules, one image at a time, prompts by a plain loop."""
    method = l2p(micro, top_k=3, length=2)
    method.trained.fill_(True)
    images, vit = images_of(micro, 4), micro.vit
    scores = likeness_in_numpy(micro(images), method.keys)
    rows = []
    for image, row in zip(images, scores, strict=True):
        tokens = vit._pos_embed(vit.patch_embed(image[None]))
        chosen = [method.prompts[n] for n in np.argsort(-row)[:3]]
        tokens = torch.cat([tokens[0, :1], *chosen, tokens[0, 1:]])[None]
        leaving = vit.norm(vit.blocks(tokens))[0, 1:7]
        rows.append(leaving.mean(0) @ method.head.weight.T + method.head.bias)
    torch.testing.assert_close(method(images), torch.stack(rows), rtol=0, atol=1e-5)


def test_prompts_are_a_set(micro: FrozenViT) -> None:
    """Without position embeddings their order says nothing."""
    method, images = l2p(micro), images_of(micro, 2)
    one, other = torch.tensor([[0, 1, 2, 3, 4]] * 2), torch.tensor([[4, 2, 0, 1, 3]] * 2)
    torch.testing.assert_close(
        method.prompted_features(images, one),
        method.prompted_features(images, other),
        rtol=0,
        atol=1e-5,
    )


def test_the_pull_is_the_published_one_but_for_a_constant(micro: FrozenViT) -> None:
    method, images = l2p(micro, pull=0.3), images_of(micro, 6)
    scores = likeness_in_numpy(micro(images), method.keys)
    best = np.sort(scores, axis=1)[:, -5:]
    losses = method.losses(make_batch(method, images, torch.zeros(6, dtype=torch.long)))
    assert float(losses["pull"].detach()) == pytest.approx(0.3 * (5 - best.sum() / 6), abs=1e-5)
    assert set(losses) == {"ce", "pull"}


# ---------------------------------------------------------------- what trains


@pytest.mark.parametrize(("pool", "length"), [(10, 5), (7, 2)])
def test_trainable_count(micro: FrozenViT, pool: int, length: int) -> None:
    method = l2p(micro, pool_size=pool, length=length)
    assert method.trainable_count() == pool * length * 128 + pool * 128 + 128 * CLASSES + CLASSES


def test_only_chosen_prompts_change(micro: FrozenViT) -> None:
    """Decay would make the others fade, so it must not reach them."""
    method, images = l2p(micro, top_k=2), images_of(micro, 1)
    prompts, keys = method.prompts.detach().clone(), method.keys.detach().clone()
    chosen = np.argsort(-likeness_in_numpy(micro(images), keys)[0])[:2]
    step(method, images, torch.tensor([1]), torch.optim.AdamW(method.parameter_groups(0.01, 0.5)))
    touched = np.isin(np.arange(10), chosen)
    assert np.array_equal((method.prompts != prompts).flatten(1).any(1).numpy(), touched)
    assert np.array_equal((method.keys != keys).any(1).numpy(), touched)
    assert np.array_equal(method.trained.numpy(), touched)


def test_a_pull_brings_keys_nearer(micro: FrozenViT) -> None:
    method, images, labels = l2p(micro), images_of(micro, 6), torch.arange(6) % 3
    optimizer = torch.optim.AdamW(method.parameter_groups(1e-3, 0.0))
    first = float(method.losses(make_batch(method, images, labels))["pull"].detach())
    for _ in range(5):
        step(method, images, labels, optimizer)
    assert float(method.losses(make_batch(method, images, labels))["pull"].detach()) < first - 0.1


def chosen_at_test(method: L2P, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    seen: list[Tensor] = []
    plain = method.prompted_features

    def spy(images: Tensor, chosen: Tensor) -> Tensor:
        seen.append(chosen)
        return plain(images, chosen)

    with monkeypatch.context() as patch:
        patch.setattr(method, "prompted_features", spy)
        method(images)
    return seen[0]


def test_untrained_keys_come_last(micro: FrozenViT, monkeypatch: pytest.MonkeyPatch) -> None:
    sane, faithful = l2p(micro, top_k=2), l2p(micro, top_k=2, faithful=True)
    images = images_of(micro, 4)
    for method in (sane, faithful):
        with torch.no_grad():
            method.keys[7] = micro(images).mean(0)  # nearest of all, but never trained
        method.trained[[1, 4, 5]] = True
    chosen = chosen_at_test(sane, images, monkeypatch)
    allowed = likeness_in_numpy(micro(images), sane.keys[[1, 4, 5]])
    expected = np.array([1, 4, 5])[np.argsort(-allowed, axis=1)[:, :2]]
    assert np.array_equal(chosen.numpy(), expected)
    assert 7 in chosen_at_test(faithful, images, monkeypatch)


# ---------------------------------------------------------------- as published


def batch_dependence(method: L2P, images: Tensor) -> float:
    """How far logits of a mixed batch are from those of each image alone."""
    with torch.no_grad():
        alone = torch.cat([method(image[None]) for image in images])
        return float((method(images) - alone).abs().max())


def test_a_prediction_depends_on_the_batch_only_as_published(micro: FrozenViT) -> None:
    images = torch.cat([images_of(micro, 4), images_of(micro, 3, tint=120)])
    spread = {}
    for faithful in (False, True):
        method = l2p(micro, top_k=1, faithful=faithful)
        with torch.no_grad():  # two kinds of images, two keys: the larger party wins the vote
            method.keys[2], method.keys[3] = micro(images[:4]).mean(0), micro(images[4:]).mean(0)
            method.prompts[3] += 1
            method.head.weight *= 20
        method.trained[2:4] = True
        spread[faithful] = batch_dependence(method, images)
    assert spread[False] < 1e-5
    assert spread[True] > 1e-2


def test_start_values(micro: FrozenViT) -> None:
    sane, faithful = l2p(micro), l2p(micro, faithful=True)
    for tensor in (sane.prompts, sane.keys):
        assert float(tensor.detach().std()) == pytest.approx(0.02, rel=0.1)
    for tensor in (faithful.prompts, faithful.keys):
        assert float(tensor.detach().std()) == pytest.approx(3**-0.5, rel=0.1)
        assert 0.9 < float(tensor.detach().abs().max()) <= 1


@pytest.mark.parametrize("faithful", [False, True])
def test_gradients_are_clipped_as_published(micro: FrozenViT, faithful: bool) -> None:
    method = l2p(micro, faithful=faithful)
    images = images_of(micro, 6)
    losses = method.losses(make_batch(method, images, torch.arange(6) % 3))
    (100 * method.total(losses)).backward()  # type: ignore[no-untyped-call]
    method.before_step()
    squares = [p.grad.square().sum() for p in method.parameters() if p.grad is not None]
    norm = float(torch.stack(squares).sum().sqrt())
    assert (norm == pytest.approx(1, abs=1e-3)) if faithful else norm > 10


# ---------------------------------------------------------------- as a learner


@pytest.mark.parametrize("faithful", [False, True])
def test_save_and_load(tmp_path: Path, stripes: Stream, faithful: bool) -> None:
    training = Training(epochs=2, batch_size=8, weight_decay=0.5)
    learner = Learner(
        stripes.classes,
        method="l2p",
        training=training,
        options={"faithful": faithful},
        device="cpu",
    )
    for domain in stripes.domains:
        assert learner.learn(domain).ended["prompts_trained"] >= 5
    learner.save(tmp_path)
    images = stripes.domains[0].test.images
    again = load(tmp_path, device="cpu").predict(images).probabilities
    assert torch.equal(again, learner.predict(images).probabilities)
    assert learner.stored() == []


def test_a_pool_must_hold_the_choice(micro: FrozenViT) -> None:
    with pytest.raises(SodapError, match=r"option 'top_k' of l2p: .*at most pool_size"):
        l2p(micro, pool_size=4)
