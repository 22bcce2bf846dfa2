from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sodap.errors import SodapError
from sodap.learning import Learner, Training, load
from sodap.methods.coda_prompt import CodaPrompt
from sodap.streams import Stream
from tests.conftest import make_batch, make_stream

TRAINING = Training(epochs=2, patience=2, batch_size=12, lr=0.01, weight_decay=0.5)
WIDTH, DEPTH = 128, 6  # of the `micro` backbone
CLASSES = 3


def coda(**options: Any) -> CodaPrompt:
    learner = learner_of(**options)
    assert isinstance(learner.method, CodaPrompt)
    return learner.method


def learner_of(**options: Any) -> Learner:
    names = [f"class {c}" for c in range(CLASSES)]
    return Learner(names, method="coda-prompt", options=options, training=TRAINING, device="cpu")


@pytest.fixture(scope="module")
def three() -> Stream:
    return make_stream(domains=3)


def images_of(method: CodaPrompt, stream: Stream, count: int = 4) -> Tensor:
    return method.backbone.prepare(stream.domains[0].train.images[:count])


def rows_of(method: CodaPrompt) -> tuple[Tensor, Tensor, Tensor]:
    pool = method.pool
    assert pool.attention is not None
    return pool.keys.rows, pool.prompts.rows, pool.attention.rows


def test_prefixes_are_those_of_the_paper_s_formula(stripes: Stream) -> None:
    """Image by image, prompt by prompt, in float64."""
    method = coda(rows_per_stage=5, length=6, layers=3).double()
    method.pool.grow(4, torch.Generator().manual_seed(1))
    query = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    keys, prompts, attention = rows_of(method)
    found_keys, found_values = method.prefixes(query)
    assert found_keys.shape == found_values.shape == (3, 3, 3, WIDTH)
    for layer in range(3):
        for image, q in enumerate(query):
            prompt = torch.zeros(6, WIDTH, dtype=torch.float64)
            for k, p, a in zip(keys[layer], prompts[layer], attention[layer], strict=True):
                prompt = prompt + F.cosine_similarity(q * a, k, dim=0) * p.view(6, WIDTH)
            torch.testing.assert_close(found_keys[layer, image], prompt[:3])
            torch.testing.assert_close(found_values[layer, image], prompt[3:])


def test_the_query_is_an_unprompted_pass_without_gradient(
    stripes: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = coda(rows_per_stage=4)
    images = images_of(method, stripes)
    asked: list[Tensor] = []
    prefixes = method.prefixes

    def listening(query: Tensor) -> tuple[Tensor, Tensor]:
        asked.append(query)
        return prefixes(query)

    monkeypatch.setattr(method, "prefixes", listening)
    method(images)
    assert not asked[0].requires_grad
    torch.testing.assert_close(asked[0], method.backbone(images))


def test_prompts_reach_the_first_blocks_and_no_others(stripes: Stream) -> None:
    method = coda(rows_per_stage=4, layers=2)
    images = images_of(method, stripes)
    with torch.no_grad():
        keys, values = method.prefixes(method.backbone(images))
        by_hand = method.backbone(
            images, prefix=lambda layer, _: (keys[layer], values[layer]) if layer < 2 else None
        )
        torch.testing.assert_close(method.features(images), by_hand)
        assert (by_hand - method.backbone(images)).abs().max() > 1e-4
    assert len(coda(layers=99).pool.keys.rows) == DEPTH


def test_penalty_counts_old_rows_and_new(stripes: Stream) -> None:
    method = coda(rows_per_stage=3, layers=2, length=2)
    method.pool.grow(3, torch.Generator().manual_seed(1))
    with torch.no_grad():
        for each in method.pool.sets:
            each.newest.add_(0.1)
    expected = 0.0
    for rows in rows_of(method):
        for layer in rows:
            gram = (layer @ layer.mT).tolist()
            entries = [(gram[i][j] - (i == j)) ** 2 for i in range(6) for j in range(6)]
            expected += sum(entries) / len(entries)
    assert method.penalty().item() == pytest.approx(expected, rel=1e-4)
    torch.autograd.backward(method.penalty())
    for each in method.pool.sets:
        assert each.newest.grad is not None
        assert each.newest.grad.abs().max() > 0


@pytest.mark.parametrize(("faithful", "weight"), [(False, 0.2), (True, 0.2e-6)])
def test_weight_of_the_penalty(stripes: Stream, faithful: bool, weight: float) -> None:
    method = coda(rows_per_stage=70, layers=1, ortho=0.2, faithful=faithful)
    method.pool.grow(70, torch.Generator().manual_seed(1))  # 140 rows of 128: never orthogonal
    split = stripes.domains[0].train
    losses = method.losses(make_batch(method, method.backbone.prepare(split.images), split.labels))
    assert losses["ortho"].item() == pytest.approx(weight * method.penalty().item(), rel=1e-5)
    assert losses["ortho"].item() > 0
    off = coda(rows_per_stage=4, ortho=0)
    losses = off.losses(make_batch(off, off.backbone.prepare(split.images), split.labels))
    assert list(losses) == ["ce"]


def test_a_prompt_splits_in_two(stripes: Stream) -> None:
    with pytest.raises(SodapError, match="option 'length' of coda-prompt"):
        coda(length=5)


def test_three_stages(three: Stream) -> None:
    """What trains is one block; what was trained stays to the bit; a state brings all back."""
    learner = learner_of(rows_per_stage=6, layers=3)
    head = CLASSES * (WIDTH + 1)
    kept: list[tuple[Tensor, ...]] = []
    for number, domain in enumerate(three.domains, start=1):
        progress = learner.learn(domain)
        method = learner.method
        assert isinstance(method, CodaPrompt)
        assert method.trainable_count() == 3 * 6 * WIDTH * (4 + 1 + 1) + head
        assert progress.begun["pool"] == {"frozen": 6 * (number - 1), "active": 6}
        for stage, block in enumerate(kept):
            for rows, once in zip(rows_of(method), block, strict=True):
                assert torch.equal(rows[:, 6 * stage : 6 * (stage + 1)], once)
        kept.append(tuple(rows[:, -6:].detach().clone() for rows in rows_of(method)))

    other = learner_of(rows_per_stage=6, layers=3)
    other.restore(learner.method.state(), 3, 3)
    images = three.domains[0].test.images
    found = other.predict(images).probabilities
    assert torch.equal(found, learner.predict(images).probabilities)
    singly = torch.cat([other.predict(image[None]).probabilities for image in images])
    torch.testing.assert_close(found, singly, rtol=0, atol=1e-5)
    # A fourth stage goes on from both alike.
    for each in (learner, other):
        each.learn(three.domains[0])
    assert torch.equal(other.predict(images).probabilities, learner.predict(images).probabilities)


def test_a_stage_that_breaks_off_leaves_no_rows(
    three: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learner_of(rows_per_stage=6)
    learner.learn(three.domains[0])
    before = {key: value.clone() for key, value in learner.method.state().items()}

    def broken(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(learner.method, "after_step", broken)
        with pytest.raises(KeyboardInterrupt):
            learner.learn(three.domains[1])
    state = learner.method.state()
    assert state.keys() == before.keys()
    assert all(torch.equal(state[key], before[key]) for key in before)


def test_a_model_of_one_stage_is_saved_with_its_empty_past(three: Stream, tmp_path: Path) -> None:
    learner = learner_of(rows_per_stage=6)
    learner.learn(three.domains[0])
    learner.save(tmp_path)
    images = three.domains[0].test.images
    loaded = load(tmp_path, device="cpu")
    assert torch.equal(loaded.predict(images).probabilities, learner.predict(images).probabilities)


def test_decay_pulls_on_the_head_alone() -> None:
    method = coda(rows_per_stage=4)
    decayed, free = method.parameter_groups(1e-3, 0.5)
    assert decayed["params"] == [method.head.weight]
    assert decayed["weight_decay"] == 0.5
    assert free["weight_decay"] == 0
    trained = {id(p) for p in method.parameters() if p.requires_grad}
    assert {id(p) for group in (decayed, free) for p in group["params"]} == trained
