"""CODA-Prompt: prefixes and penalty against plain loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sodap.backbones import FrozenViT
from sodap.errors import SodapError
from sodap.methods.coda_prompt import CodaPrompt
from tests.methods.common import DEPTH, WIDTH, build, drawn, images_of, losses_of


def rows_of(method: CodaPrompt) -> tuple[Tensor, Tensor, Tensor]:
    pool = method.pool
    assert pool.attention is not None
    return pool.keys.rows, pool.prompts.rows, pool.attention.rows


def test_prefixes_against_the_papers_formula(micro: FrozenViT) -> None:
    """Image by image and prompt by prompt, in float64."""
    method = build(CodaPrompt, micro, rows_per_stage=5, length=6, layers=3)
    method.pool.double().grow(4, torch.Generator().manual_seed(1))
    query = drawn(3, WIDTH, seed=2)
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


def test_prefixes_of_a_plain_query_reach_the_first_blocks(micro: FrozenViT) -> None:
    method, images = build(CodaPrompt, micro, rows_per_stage=4, layers=2), images_of(micro, 4)
    plain = micro(images)
    assert not plain.requires_grad
    keys, values = method.prefixes(plain)
    expected = micro(
        images, prefix=lambda layer, _: (keys[layer], values[layer]) if layer < 2 else None
    )
    found = method.features(images)
    torch.testing.assert_close(found, expected)
    assert (found - plain).abs().max() > 1e-4
    # No gradient flows through the query: the derivative is that of fixed prefixes.
    key = method.pool.keys.newest
    (ours,), (theirs,) = (torch.autograd.grad(each.sum(), key) for each in (found, expected))
    torch.testing.assert_close(ours, theirs)
    assert len(build(CodaPrompt, micro, layers=99).pool.keys.rows) == DEPTH


def test_penalty_includes_frozen_rows(micro: FrozenViT) -> None:
    method = build(CodaPrompt, micro, rows_per_stage=3, layers=2, length=2)
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
def test_weight_of_the_penalty(micro: FrozenViT, faithful: bool, weight: float) -> None:
    method = build(CodaPrompt, micro, rows_per_stage=70, layers=1, ortho=0.2, faithful=faithful)
    method.pool.grow(70, torch.Generator().manual_seed(1))  # 140 rows cannot be orthogonal in 128
    losses = losses_of(method, images_of(micro, 3))
    assert list(losses) == ["ce", "ortho"]
    assert losses["ortho"].item() == pytest.approx(weight * method.penalty().item(), rel=1e-5)
    assert losses["ortho"].item() > 0
    without = build(CodaPrompt, micro, rows_per_stage=4, ortho=0)
    assert list(losses_of(without, images_of(micro, 3))) == ["ce"]


def test_a_prompt_has_as_many_keys_as_values(micro: FrozenViT) -> None:
    with pytest.raises(SodapError, match="option 'length' of coda-prompt"):
        build(CodaPrompt, micro, length=5)
