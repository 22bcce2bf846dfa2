"""Choosing prompts by their keys, and what L2P and DualPrompt share."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sodap.backbones import FrozenViT
from sodap.errors import SodapError
from sodap.methods.dual_prompt import DualPrompt
from sodap.methods.l2p import L2P
from sodap.methods.parts.query_key import QueryKeyMethod, most_similar, pull_loss
from sodap.methods.parts.similarity import cosine_similarity
from tests.methods.common import build, decayed, images_of, losses_of

both = pytest.mark.parametrize("method", [L2P, DualPrompt])


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    batch=st.integers(1, 6),
    pool=st.integers(1, 12),
    data=st.data(),
)
def test_most_similar_keys_against_numpy(
    seed: int, batch: int, pool: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, pool))
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(batch, 8, generator=generator)
    keys = torch.randn(pool, 8, generator=generator) * 0.02
    q, k = query.double().numpy(), keys.double().numpy()
    expected = np.array([[a @ b / np.sqrt((a @ a) * (b @ b)) for b in k] for a in q])
    found = cosine_similarity(query, keys)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
    chosen = most_similar(found, count, vote=False).numpy()
    assert all(len(set(row)) == count for row in chosen.tolist())
    best = -np.sort(-expected, axis=1)[:, :count]  # by value, as two keys may be equally similar
    np.testing.assert_allclose(np.take_along_axis(expected, chosen, 1), best, atol=1e-6)


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), batch=st.integers(1, 9), count=st.integers(1, 5))
def test_vote_against_a_loop(seed: int, batch: int, count: int) -> None:
    similarity = torch.rand(batch, 5, generator=torch.Generator().manual_seed(seed))
    votes = [0] * 5
    for row in similarity.tolist():
        for column in sorted(range(5), key=lambda n: -row[n])[:count]:
            votes[column] += 1
    winners = sorted(range(5), key=lambda n: (-votes[n], n))[:count]
    assert most_similar(similarity, count, vote=True).tolist() == [winners] * batch


def test_pull_loss_has_the_gradient_of_the_published_one() -> None:
    similarity = torch.tensor([[0.5, -1.0], [0.0, 0.25]], requires_grad=True)
    ours, published = pull_loss(similarity), -similarity.sum() / 2
    assert ours.item() == pytest.approx((0.5 + 2 + 1 + 0.75) / 2)
    for one, other in zip(
        torch.autograd.grad(ours, similarity),
        torch.autograd.grad(published, similarity),
        strict=True,
    ):
        assert torch.equal(one, other)


@both
def test_initial_values(micro: FrozenViT, method: type[QueryKeyMethod]) -> None:
    for faithful, deviation, largest in ((False, 0.02, 0.15), (True, 3**-0.5, 1.0)):
        built = build(method, micro, faithful=faithful)
        named = built.prompts if isinstance(built, L2P) else built.get_buffer("pool")
        keys = built.keys if isinstance(built, L2P) else built.get_buffer("pool_keys")
        for tensor in (named, keys):
            assert isinstance(tensor, torch.Tensor)
            assert float(tensor.detach().std()) == pytest.approx(deviation, rel=0.1)
            assert float(tensor.detach().abs().max()) <= largest


@both
@pytest.mark.parametrize("faithful", [False, True])
def test_gradients_are_clipped_only_as_published(
    micro: FrozenViT, method: type[QueryKeyMethod], faithful: bool
) -> None:
    built = build(method, micro, faithful=faithful)
    torch.autograd.backward(100 * built.total(losses_of(built, images_of(micro, 6))))
    built.before_step()
    squares = [p.grad.square().sum() for p in built.parameters() if p.grad is not None]
    norm = float(torch.stack(squares).sum().sqrt())
    assert (norm == pytest.approx(1, abs=1e-3)) if faithful else norm > 10


@both
def test_only_the_matrix_of_the_head_decays(micro: FrozenViT, method: type[QueryKeyMethod]) -> None:
    assert decayed(build(method, micro)) == {"head.weight"}


@both
def test_an_image_cannot_choose_more_prompts_than_there_are(
    micro: FrozenViT, method: type[QueryKeyMethod]
) -> None:
    with pytest.raises(SodapError, match=rf"option 'top_k' of {method.name}: .*pool_size.* 4"):
        build(method, micro, pool_size=4)
