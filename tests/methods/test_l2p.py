"""L2P: which prompts are chosen, what the head reads, what trains."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sodap.backbones import FrozenViT
from sodap.methods.l2p import L2P
from sodap.streams import Stream
from tests.methods.common import CLASSES, WIDTH, build, images_of, learner_of, losses_of, step


def ranking(query: Tensor, keys: Tensor) -> list[list[int]]:
    """Indices of the keys for each query, most similar first, in float64."""
    cosines = F.cosine_similarity(query[:, None].double(), keys.detach().double(), dim=-1)
    ranked: list[list[int]] = cosines.argsort(descending=True).tolist()
    return ranked


def test_the_head_reads_the_mean_of_the_prompt_tokens(micro: FrozenViT) -> None:
    """Against timm's own modules, one image at a time."""
    method = build(L2P, micro, top_k=3, length=2)
    method.trained.fill_(True)
    images, vit = images_of(micro, 4), micro.vit
    rows = []
    for image, ranked in zip(images, ranking(micro(images), method.keys), strict=True):
        tokens = vit._pos_embed(vit.patch_embed(image[None]))
        chosen = [method.prompts[n] for n in ranked[:3]]
        tokens = torch.cat([tokens[0, :1], *chosen, tokens[0, 1:]])[None]
        last = vit.norm(vit.blocks(tokens))[0, 1:7]
        rows.append(last.mean(0) @ method.head.weight.T + method.head.bias)
    torch.testing.assert_close(method(images), torch.stack(rows), rtol=0, atol=1e-5)


def test_the_order_of_prompts_does_not_matter(micro: FrozenViT) -> None:
    method, images = build(L2P, micro), images_of(micro, 2)
    one, other = (torch.tensor([order] * 2) for order in ([0, 1, 2, 3, 4], [4, 2, 0, 1, 3]))
    features = [method.prompted_features(images, chosen) for chosen in (one, other)]
    torch.testing.assert_close(*features, rtol=0, atol=1e-5)


def test_losses(micro: FrozenViT) -> None:
    method, images = build(L2P, micro, pull=0.3), images_of(micro, 6)
    losses = losses_of(method, images)
    assert list(losses) == ["ce", "pull"]
    cosines = F.cosine_similarity(micro(images)[:, None], method.keys.detach(), dim=-1)
    expected = 0.3 * (5 - cosines.topk(5).values.sum() / 6)
    torch.testing.assert_close(losses["pull"].detach(), expected)
    chosen = torch.tensor([row[:5] for row in ranking(micro(images), method.keys)])
    logits = method.head(method.prompted_features(images, chosen))
    torch.testing.assert_close(losses["ce"], F.cross_entropy(logits, torch.arange(6) % CLASSES))


@pytest.mark.parametrize(("pool", "length"), [(10, 5), (7, 2)])
def test_trainable_count(micro: FrozenViT, pool: int, length: int) -> None:
    count = build(L2P, micro, pool_size=pool, length=length).trainable_count()
    assert count == pool * length * WIDTH + pool * WIDTH + WIDTH * CLASSES + CLASSES


def test_a_step_changes_only_the_chosen_prompts(micro: FrozenViT) -> None:
    """Weight decay would shrink the others."""
    method, images = build(L2P, micro, top_k=2), images_of(micro, 1)
    prompts, keys = method.prompts.detach().clone(), method.keys.detach().clone()
    chosen = ranking(micro(images), keys)[0][:2]
    step(method, images, torch.optim.AdamW(method.parameter_groups(0.01, 0.5)))
    changed = [n in chosen for n in range(10)]
    assert (method.prompts != prompts).flatten(1).any(1).tolist() == changed
    assert (method.keys != keys).any(1).tolist() == changed
    assert method.trained.tolist() == changed


def test_pull_moves_keys_towards_their_queries(micro: FrozenViT) -> None:
    method, images = build(L2P, micro), images_of(micro, 6)
    optimizer = torch.optim.AdamW(method.parameter_groups(1e-3, 0.0))
    before = losses_of(method, images)["pull"].item()
    for _ in range(5):
        step(method, images, optimizer)
    assert losses_of(method, images)["pull"].item() < before - 0.1


def chosen_at_test(method: L2P, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    seen: list[Tensor] = []
    plain = method.prompted_features

    def spy(images: Tensor, chosen: Tensor) -> Tensor:
        seen.append(chosen)
        return plain(images, chosen)

    with monkeypatch.context() as patch:
        patch.setattr(method, "prompted_features", spy)
        method(images)
    chosen: list[list[int]] = seen[0].tolist()
    return chosen


def test_untrained_keys_come_last_except_as_published(
    micro: FrozenViT, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = images_of(micro, 4)
    for faithful in (False, True):
        method = build(L2P, micro, top_k=2, faithful=faithful)
        with torch.no_grad():
            method.keys[7] = micro(images).mean(0)  # most similar of all, but untrained
        method.trained[[1, 4, 5]] = True
        chosen = chosen_at_test(method, images, monkeypatch)
        if faithful:
            assert all(7 in row for row in chosen)
        else:
            ranked = ranking(micro(images), method.keys)
            assert chosen == [[n for n in row if n in (1, 4, 5)][:2] for row in ranked]


def test_a_prediction_depends_on_the_batch_only_as_published(micro: FrozenViT) -> None:
    images = torch.cat([images_of(micro, 4), images_of(micro, 3, tint=120)])
    change = {}
    for faithful in (False, True):
        method = build(L2P, micro, top_k=1, faithful=faithful)
        with torch.no_grad():  # two kinds of images, two keys: the majority wins the vote
            method.keys[2], method.keys[3] = micro(images[:4]).mean(0), micro(images[4:]).mean(0)
            method.prompts[3] += 1
            method.head.weight *= 20
            method.trained[2:4] = True
            alone = torch.cat([method(image[None]) for image in images])
            change[faithful] = np.abs(method(images).numpy() - alone.numpy()).max()
    assert change[False] < 1e-5
    assert change[True] > 1e-2


def test_a_stage_reports_how_many_prompts_were_trained(stripes: Stream) -> None:
    learner, method = learner_of(L2P, pool_size=6, top_k=2)
    for domain in stripes.domains:
        ended = learner.learn(domain).ended
        assert ended == {"prompts_trained": int(method.trained.sum())}
        assert ended["prompts_trained"] >= 2
    assert learner.stored() == []
