"""DualPrompt: which images get which keys and values, what is frozen, what is chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sodap.backbones import FrozenViT, build_backbone
from sodap.errors import SodapError
from sodap.methods.dual_prompt import DualPrompt
from sodap.streams import Stream
from tests.conftest import NO_IMAGES
from tests.methods.common import CLASSES, build, images_of, learner_of, losses_of, step

SMALL = {"pool_size": 6, "top_k": 2, "general_length": 3, "expert_length": 2}

Prefixes = dict[int, tuple[Tensor, Tensor]]


def dual(backbone: FrozenViT, stage: int = 0, **options: Any) -> DualPrompt:
    """A small method after the start of `stage`; earlier stages ended as they began."""
    method = build(DualPrompt, backbone, **SMALL | options)
    for number in range(1, stage + 1):
        if number > 1:
            method.end_stage(number - 1, NO_IMAGES, NO_IMAGES)
        method.begin_stage(number, NO_IMAGES)
    return method


def most_similar(query: Tensor, keys: Tensor) -> list[list[int]]:
    """The two most similar keys for each query, in float64."""
    cosines = F.cosine_similarity(query[:, None].double(), keys.detach().double(), dim=-1)
    chosen: list[list[int]] = cosines.topk(2).indices.tolist()
    return chosen


def prefixes_of(method: DualPrompt, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> Prefixes:
    """Keys and values that the blocks get when the method predicts."""
    given: Prefixes = {}
    plain = method.backbone.forward

    def spy(pixels: Tensor, *ports: Any, prefix: Any = None, **rest: Any) -> Tensor:
        if prefix is not None:
            pairs = {n: prefix(n, torch.empty(0)) for n in range(method.backbone.depth)}
            given.update({layer: pair for layer, pair in pairs.items() if pair is not None})
        return plain(pixels, *ports, prefix=prefix, **rest)

    with monkeypatch.context() as patch:
        patch.setattr(method.backbone, "forward", spy)
        method(images)
    return given


def label_tokens(method: DualPrompt) -> None:
    """Fill every token of the pool with its address: layer, key or value, prompt, position."""
    with torch.no_grad():
        for layer, kind, prompt, position in np.ndindex(*method.pool.shape[:4]):
            address = 1000 * layer + 100 * kind + 10 * prompt + position
            method.pool[layer, kind, prompt, position] = address
        method.experts.copy_(method.pool[:, :, method._rows(method.stage)])


# ---------------------------------------------------------------- one batch


def test_each_image_gets_its_own_keys_and_values(
    micro: FrozenViT, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, images = dual(micro, stage=2), images_of(micro, 5)
    label_tokens(method)
    given = prefixes_of(method, images, monkeypatch)
    chosen = most_similar(micro(images), method.pool_keys[:4])
    assert len({tuple(row) for row in chosen}) > 1, "otherwise mixed-up images go unnoticed"
    assert sorted(given) == [0, 1, 2, 3, 4]
    for layer in (0, 1):
        for kind, tensor in enumerate(given[layer]):
            assert torch.equal(tensor, method.general[layer, kind].expand(5, 3, micro.width))
    for index, layer in enumerate((2, 3, 4)):
        for kind, tensor in enumerate(given[layer]):
            base = 1000 * index + 100 * kind
            addresses = [[base + 10 * n + at for n in row for at in (0, 1)] for row in chosen]
            assert tensor[..., 0].tolist() == addresses
            assert (tensor == tensor[..., :1]).all()


def test_logits_against_one_image_at_a_time(micro: FrozenViT) -> None:
    method, images = dual(micro, stage=2), images_of(micro, 4)
    with torch.no_grad():
        for tensor in (method.general, method.experts, method.pool):
            tensor *= 20  # so that a wrong prefix changes the logits
        method.keys.copy_(method.pool_keys[4:])
    # Stage 2 is still in training: rows 2 and 3 are the parameters, not those of the pool.
    pool = method.pool.clone()
    pool[:, :, 2:4] = method.experts.detach()
    keys = torch.cat([method.pool_keys[:2], method.keys])
    rows = []
    for image, chosen in zip(images, most_similar(micro(images), keys), strict=True):
        prefixes = {layer: method.general[layer] for layer in (0, 1)} | {
            layer: torch.stack([torch.cat([pool[at, kind, n] for n in chosen]) for kind in (0, 1)])
            for at, layer in enumerate((2, 3, 4))
        }
        feature = micro(
            image[None],
            prefix=lambda layer, _, p=prefixes: (
                (p[layer][0][None], p[layer][1][None]) if layer in p else None
            ),
        )
        rows.append(feature @ method.head.weight.T + method.head.bias)
    torch.testing.assert_close(method(images), torch.cat(rows), rtol=0, atol=1e-5)


def test_training_uses_the_slice_of_the_stage(micro: FrozenViT) -> None:
    method, images = dual(micro, stage=2, pull=0.3), images_of(micro, 4)
    losses = losses_of(method, images)
    assert list(losses) == ["ce", "pull"]
    cosines = F.cosine_similarity(micro(images)[:, None].double(), method.keys.double(), dim=-1)
    expected = 0.3 * (2 - cosines.detach().sum().item() / 4)
    assert losses["pull"].item() == pytest.approx(expected, abs=1e-5)
    experts = method.experts[:, :, None].expand(-1, -1, 4, -1, -1, -1)
    logits = method.head(method.prompted_features(images, experts))
    torch.testing.assert_close(losses["ce"], F.cross_entropy(logits, torch.arange(4) % CLASSES))
    torch.autograd.backward(method.total(losses))
    for tensor in (method.general, method.experts, method.keys, method.head.weight):
        assert tensor.grad is not None
        assert tensor.grad.abs().sum() > 0


# ---------------------------------------------------------------- sizes


def trained_numbers(width: int, general: int, experts: int, k: int = 5, length: int = 4) -> int:
    """Of prompts in so many layers, the keys of one slice, and the head."""
    return (general + experts * k) * 2 * length * width + k * width + CLASSES * (width + 1)


def test_sizes_on_the_papers_backbone() -> None:
    method = build(DualPrompt, build_backbone("vit_base", "random", 32))
    assert method.general.numel() == 12_288
    assert method.pool.numel() == 1_843_200
    assert method.pool_keys.numel() == 76_800
    assert method.trainable_count() == trained_numbers(768, 2, 3)


@pytest.mark.parametrize(
    ("general", "experts", "kept"),
    [
        ((0, 1), (2, 3, 4), ([0, 1], [2, 3, 4])),
        ((0, 9), (5, 6, 7), ([0], [5])),  # layers that the backbone lacks are ignored
        ((), (2, 3), ([], [2, 3])),
    ],
)
def test_prompted_layers(
    micro: FrozenViT,
    general: tuple[int, ...],
    experts: tuple[int, ...],
    kept: tuple[list[int], list[int]],
) -> None:
    method = build(DualPrompt, micro, general_layers=general, expert_layers=experts)
    assert (method.general_layers, method.expert_layers) == kept
    assert method.trainable_count() == trained_numbers(128, len(kept[0]), len(kept[1]))
    assert method(images_of(micro, 2)).isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"general_layers": (1, 2)}, "option 'expert_layers' .*each block only once"),
        ({"expert_layers": (3, 3)}, "option 'expert_layers' .*each block only once"),
        ({"expert_layers": ()}, "option 'expert_layers'"),
        ({"expert_layers": (6, 7)}, "micro has only 6 blocks"),
    ],
)
def test_options_that_do_not_fit(micro: FrozenViT, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SodapError, match=message):
        build(DualPrompt, micro, **options)


# ---------------------------------------------------------------- stages


def test_finished_slices_never_change(stripes: Stream) -> None:
    learner, method = learner_of(DualPrompt, **SMALL)
    start, start_keys = method.pool.clone(), method.pool_keys.clone()
    assert learner.learn(stripes.domains[0]).begun == {"slice": [0, 2]}
    first, first_keys = method.pool.clone(), method.pool_keys.clone()
    assert torch.equal(first[:, :, :2], method.experts)
    assert not torch.isclose(first[:, :, :2], start[:, :, :2]).all()
    assert not torch.isclose(first_keys[:2], start_keys[:2]).all()

    assert learner.learn(stripes.domains[1]).begun == {"slice": [2, 4]}
    assert torch.equal(method.pool[:, :, :2], first[:, :, :2])
    assert torch.equal(method.pool_keys[:2], first_keys[:2])
    assert not torch.isclose(method.pool[:, :, 2:4], start[:, :, 2:4]).all()
    # Rows of later stages have their initial values.
    assert torch.equal(method.pool[:, :, 4:], start[:, :, 4:])
    assert torch.equal(method.pool_keys[4:], start_keys[4:])

    # Without a slice left, a further stage changes nothing.
    learner.learn(replace(stripes.domains[0], name="a third"))
    images = stripes.domains[0].test.images
    before = learner.predict(images).probabilities
    with pytest.raises(SodapError, match=r"2 of its 6 expert prompts .* stage 4"):
        learner.learn(replace(stripes.domains[1], name="a fourth"))
    assert torch.equal(learner.predict(images).probabilities, before)


def test_no_optimiser_reaches_a_finished_slice(micro: FrozenViT) -> None:
    """Not even one with decay on all parameters."""
    method, images = dual(micro, stage=2), images_of(micro, 6)
    pool, experts = method.pool.clone(), method.experts.detach().clone()
    trained = [p for p in method.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, 0.1, weight_decay=0.5)
    for _ in range(2):
        step(method, images, optimizer)
    assert torch.equal(method.pool, pool)
    assert not torch.isclose(method.experts, experts).any()


def test_a_slice_starts_as_a_copy_of_the_previous_one(micro: FrozenViT) -> None:
    method = dual(micro, stage=1)
    initial_keys = method.pool_keys.clone()
    with torch.no_grad():
        method.experts.add_(1)
        method.keys.add_(1)
    trained = method.experts.detach().clone()
    method.end_stage(1, NO_IMAGES, NO_IMAGES)
    method.begin_stage(2, NO_IMAGES)
    assert torch.equal(method.experts, trained)
    assert torch.equal(method.keys, initial_keys[2:4])  # keys are not copied
    with torch.no_grad():
        method.experts.add_(1)  # a copy, not a view of the pool
    assert torch.equal(method.pool[:, :, :2], trained)


# ---------------------------------------------------------------- published behaviour


@pytest.mark.parametrize("faithful", [False, True])
def test_untrained_keys_are_chosen_only_as_published(
    micro: FrozenViT, monkeypatch: pytest.MonkeyPatch, faithful: bool
) -> None:
    method, images = dual(micro, stage=2, faithful=faithful), images_of(micro, 1)
    with torch.no_grad():
        method.pool_keys[5] = micro(images)[0]  # a perfect key, but of a later stage
    label_tokens(method)
    keys, _ = prefixes_of(method, images, monkeypatch)[2]
    chosen = {int(address) // 10 for address in keys[0, :, 0]}
    assert (5 in chosen) == faithful
    assert faithful or chosen <= {0, 1, 2, 3}


@pytest.mark.parametrize("faithful", [False, True])
def test_a_prediction_depends_on_the_batch_only_as_published(
    micro: FrozenViT, faithful: bool
) -> None:
    """Four images that choose slice 1 and three that choose slice 2, with different prompts."""
    images = torch.cat([images_of(micro, 4), images_of(micro, 3, tint=120)])
    method = dual(micro, stage=2, faithful=faithful)
    with torch.no_grad():
        mean, other = micro(images[:4]).mean(0), micro(images[4:]).mean(0)
        method.pool_keys[:2] = mean - other
        method.keys.copy_((other - mean).expand(2, -1))
        method.experts.add_(torch.randn(method.experts.shape, generator=torch.Generator()))
        method.head.weight *= 20
        alone = torch.cat([method(image[None]) for image in images])
        batches = (method(images), method(images.flip(0)).flip(0))
    change = max(float((each - alone).abs().max()) for each in batches)
    assert change > 1e-2 if faithful else change < 1e-5


def test_the_published_reshape(micro: FrozenViT, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves of the batch get only keys or only values; a batch of one is correct."""
    method, images = dual(micro, stage=2, faithful=True), images_of(micro, 4)
    label_tokens(method)
    for layer, (keys, values) in prefixes_of(method, images, monkeypatch).items():
        if layer >= 2:  # general prompts are correct
            assert torch.equal(keys, values)
            kinds = keys[..., 0].long() % 1000 // 100
            assert kinds.tolist() == [[0] * 4] * 2 + [[1] * 4] * 2
    keys, values = prefixes_of(method, images[:1], monkeypatch)[3]
    assert (keys[..., 0].long() % 1000 // 100 == 0).all()
    assert torch.equal(values, keys + 100)


def test_the_published_reshape_mixes_up_images(
    micro: FrozenViT, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If images chose for themselves, image b would get the prompts of images 2b and 2b + 1."""
    method, images = dual(micro, faithful=True), images_of(micro, 4)
    experts = torch.zeros(3, 2, 4, 2, 2, micro.width)
    for kind, image in np.ndindex(2, 4):
        experts[:, kind, image] = 10 * kind + image
    seen: list[Tensor] = []

    def spy(pixels: Tensor, prefix: Any) -> Tensor:
        seen.extend(prefix(2, pixels))
        return torch.zeros(len(pixels), micro.width)

    monkeypatch.setattr(method.backbone, "forward", spy)
    method.prompted_features(images, experts)
    keys, values = (tensor[:, 0, 0].tolist() for tensor in seen)
    assert keys == [0, 2, 10, 12]
    assert values == [1, 3, 11, 13]
