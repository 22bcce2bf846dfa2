"""The growing pool: orthogonal rows, freezing, and its state."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from sodap.methods.parts.growing_pool import (
    GrowingPool,
    GrowingRows,
    orthogonal_rows,
    orthogonality_penalty,
    weighted_prefix,
)
from sodap.methods.parts.similarity import attended_cosine_similarity, cosine_similarity
from tests.methods.common import drawn as draw


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gram_schmidt(earlier: Tensor, drawn: Tensor) -> Tensor:
    """Row by row, `[F, W], [R, W] -> [R, W]`: what a QR decomposition does at once."""
    basis: list[Tensor] = []
    for row in [*earlier, *drawn]:
        for other in basis:
            row = row - (row @ other) * other
        basis.append(row / row.norm())
    return torch.stack(basis[len(earlier) :])


@settings(deadline=None, max_examples=40)
@given(
    layers=st.integers(1, 3),
    width=st.integers(4, 12),
    used=st.integers(0, 14),
    count=st.integers(1, 6),
    seed=st.integers(0, 999),
)
def test_new_rows_are_those_of_gram_schmidt(
    layers: int, width: int, used: int, count: int, seed: int
) -> None:
    earlier = draw(layers, used, width, seed=seed)  # trained rows are not orthonormal themselves
    rows = orthogonal_rows(earlier, count, seeded(seed + 1))
    drawn = draw(layers, count, width, seed=seed + 1)
    fitting = max(0, min(count, width - used))
    torch.testing.assert_close(rows.norm(dim=-1), torch.ones(layers, count, dtype=torch.float64))
    for layer in range(layers):
        if fitting:
            expected = gram_schmidt(earlier[layer], drawn[layer, :fitting])
            torch.testing.assert_close(rows[layer, :fitting], expected, rtol=1e-5, atol=1e-5)
        # Beyond the last dimension: random directions.
        beyond = F.normalize(drawn[layer, fitting:], dim=-1)
        torch.testing.assert_close(rows[layer, fitting:], beyond)


def test_earlier_rows_may_repeat_or_be_zero() -> None:
    one = draw(1, 1, 8, seed=0)
    earlier = torch.cat([one, one, torch.zeros_like(one)], dim=1)
    rows = orthogonal_rows(earlier, 3, seeded(1))
    torch.testing.assert_close(rows[0] @ rows[0].mT, torch.eye(3, dtype=torch.float64))
    assert (rows[0] @ one[0].mT).abs().max() < 1e-12


def test_three_stages_are_orthogonal_in_every_layer() -> None:
    rows = GrowingRows(4, 40, 6, seeded(0))
    for stage in (1, 2):
        rows.grow(6, seeded(stage))
    gram = rows.rows @ rows.rows.mT
    torch.testing.assert_close(gram, torch.eye(18).expand(4, 18, 18), atol=1e-6, rtol=0)
    assert (rows.rows[0] - rows.rows[1]).abs().max() > 0.1  # each layer has its own


def train(pool: GrowingPool, steps: int = 4) -> None:
    """Large gradients that tie old rows to new ones, and a decay on everything that trains."""
    optimiser = torch.optim.AdamW(pool.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(steps):
        optimiser.zero_grad()
        torch.autograd.backward(
            torch.stack(
                [each.rows.sum().square() + orthogonality_penalty(each.rows) for each in pool.sets]
            ).sum()
        )
        optimiser.step()


@pytest.mark.parametrize("attention", [False, True])
def test_frozen_rows_never_change(attention: bool) -> None:
    pool = GrowingPool(6, layers=2, length=2, rows=3, attention=attention, generator=seeded(0))
    assert len(pool.sets) == 2 + attention
    train(pool)
    for stage in range(1, 4):
        before = [each.rows.detach().clone() for each in pool.sets]
        pool.grow(3, seeded(stage))
        fresh = [each.newest.detach().clone() for each in pool.sets]
        train(pool)
        assert (pool.frozen_count, pool.active_count) == (3 * stage, 3)
        for each, old, new in zip(pool.sets, before, fresh, strict=True):
            assert torch.equal(each.rows[:, : 3 * stage], old)
            assert not torch.equal(each.newest, new)
            assert each.newest.grad is not None
            assert each.newest.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("rows", "length", "attention", "total"),
    [(100, 4, True, 2_304_000), (150, 8, False, 5_184_000)],
    ids=["coda", "os"],
)
def test_size_on_a_vit_b(rows: int, length: int, attention: bool, total: int) -> None:
    """Five layers of width 768: `5 · M · 768 · (length + 1)`, or `+ 2` with attention."""
    per_stage = rows // 2
    pool = GrowingPool(
        768, layers=5, length=length, rows=per_stage, attention=attention, generator=seeded(0)
    )
    pool.grow(per_stage, seeded(1))
    trained = sum(p.numel() for p in pool.parameters())
    assert trained == 5 * per_stage * 768 * (length + 1 + attention)
    assert trained + sum(b.numel() for b in pool.buffers()) == total


@settings(deadline=None, max_examples=30)
@given(
    batch=st.integers(1, 4),
    layers=st.integers(1, 3),
    rows=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_attended_cosine_is_the_cosine_of_the_attended_query(
    batch: int, layers: int, rows: int, seed: int
) -> None:
    """Against the form with B x N x D numbers, values and gradients, in float64."""
    query = draw(batch, 7, seed=seed).requires_grad_()
    attention = draw(layers, rows, 7, seed=seed + 1).requires_grad_()
    keys = draw(layers, rows, 7, seed=seed + 2).requires_grad_()
    upstream = draw(layers, batch, rows, seed=seed + 3)

    found = attended_cosine_similarity(query, attention, keys)
    attended = query[None, :, None] * attention[:, None]  # [L, B, N, D]
    naive = F.cosine_similarity(attended, keys[:, None], dim=-1)
    torch.testing.assert_close(found, naive)
    inputs = (query, attention, keys)
    for ours, theirs in zip(
        torch.autograd.grad(found, inputs, upstream),
        torch.autograd.grad(naive, inputs, upstream),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_an_attention_of_zero_answers_nothing() -> None:
    query, keys = draw(2, 5, seed=0).float(), draw(1, 3, 5, seed=1).float()
    attention = torch.zeros(1, 3, 5, requires_grad=True)
    weights = attended_cosine_similarity(query, attention, keys)
    assert (weights == 0).all()
    (gradient,) = torch.autograd.grad(weights.sum(), attention)
    assert gradient.isfinite().all()


def test_cosine_against_loops() -> None:
    query, keys = draw(3, 5, seed=0), draw(2, 4, 5, seed=1)
    expected = [
        [[F.cosine_similarity(q, k, dim=0) for k in layer] for q in query] for layer in keys
    ]
    torch.testing.assert_close(
        cosine_similarity(query, keys), torch.tensor(expected, dtype=torch.float64)
    )


def test_first_half_keys_second_half_values() -> None:
    weights, prompts = draw(2, 3, 4, seed=0), draw(2, 4, 6 * 5, seed=1)
    keys, values = weighted_prefix(weights, prompts, 5)
    assert keys.shape == values.shape == (2, 3, 3, 5)
    for layer in range(2):
        for image in range(3):
            blend = sum(weights[layer, image, n] * prompts[layer, n].view(6, 5) for n in range(4))
            assert isinstance(blend, Tensor)
            torch.testing.assert_close(keys[layer, image], blend[:3])
            torch.testing.assert_close(values[layer, image], blend[3:])


def test_orthogonality_against_loops() -> None:
    rows = draw(2, 4, 5, seed=0)
    expected = 0.0
    for layer in rows:
        for i in range(4):
            for j in range(4):
                expected += (float(layer[i] @ layer[j]) - (i == j)) ** 2 / 16
    assert float(orthogonality_penalty(rows)) == pytest.approx(expected)
    assert float(orthogonality_penalty(torch.eye(5)[None])) == 0


def test_state_of_any_number_of_stages() -> None:
    pool = GrowingPool(8, layers=2, length=2, rows=3, attention=True, generator=seeded(0))
    for stage in range(1, 4):
        pool.grow(stage, seeded(stage))  # blocks need not be of one size
        other = GrowingPool(8, layers=2, length=2, rows=3, attention=True, generator=seeded(9))
        other.load_state_dict(pool.state_dict())
        assert (other.frozen_count, other.active_count) == (pool.frozen_count, stage)
        for mine, theirs in zip(pool.sets, other.sets, strict=True):
            assert torch.equal(mine.rows, theirs.rows)
            assert theirs.newest.requires_grad
