"""DualPrompt: who gets which keys and values, what is frozen, what is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from tests.conftest import NO_IMAGES, make_batch, make_split, make_stream
from torch import Tensor

from sodap.backbones import FrozenViT, build_backbone
from sodap.errors import SodapError
from sodap.learning import Learner, Training, load
from sodap.methods import build_method
from sodap.methods.dual_prompt import DualPrompt
from sodap.randomness import Randomness
from sodap.streams import Stream

CLASSES = 3
SMALL = {"pool_size": 6, "top_k": 2, "general_length": 3, "expert_length": 2}


@pytest.fixture(scope="module")
def micro() -> FrozenViT:
    return build_backbone("micro")


def dual(backbone: FrozenViT, **options: Any) -> DualPrompt:
    method = build_method("dual-prompt", options, backbone, CLASSES, Randomness(0))
    return cast(DualPrompt, method)


def images_of(backbone: FrozenViT, count: int, tint: float = 0.0) -> Tensor:
    return backbone.prepare(make_split(count, CLASSES, tint, seed=5).images)


def best_in_numpy(query: Tensor, keys: Tensor, count: int) -> list[list[int]]:
    """The keys of highest cosine for each query, in double precision."""
    q, k = (t.detach().double().numpy() for t in (query, keys))
    cos = (q @ k.T) / np.linalg.norm(q, axis=1)[:, None] / np.linalg.norm(k, axis=1)
    found: list[list[int]] = np.argsort(-cos, axis=1)[:, :count].tolist()
    return found


def begin(method: DualPrompt, stage: int) -> None:
    """Stages up to `stage`, without training: each ends as it began."""
    for number in range(1, stage + 1):
        if number > 1:
            method.end_stage(number - 1, NO_IMAGES, NO_IMAGES)
        method.begin_stage(number, NO_IMAGES)


Prefixes = dict[int, tuple[Tensor, Tensor]]


def prefixes_of(method: DualPrompt, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> Prefixes:
    """The keys and values that the blocks get when the method predicts."""
    given: Prefixes = {}
    plain = method.backbone.forward

    def spy(pixels: Tensor, *ports: Any, prefix: Any = None, **rest: Any) -> Tensor:
        if prefix is not None:
            for layer in range(method.backbone.depth):
                pair = prefix(layer, torch.empty(0))
                if pair is not None:
                    given[layer] = pair
        return plain(pixels, *ports, prefix=prefix, **rest)

    with monkeypatch.context() as patch:
        patch.setattr(method.backbone, "forward", spy)
        method(images)
    return given


def mark(method: DualPrompt) -> None:
    """Every token of the pool carries its address: layer, key or value, prompt, place."""
    with torch.no_grad():
        for layer, kind, prompt, place in np.ndindex(*method.pool.shape[:4]):
            address = 1000 * layer + 100 * kind + 10 * prompt + place
            method.pool[layer, kind, prompt, place] = address
        method.experts.copy_(method.pool[:, :, method._rows(method.stage)])


# ---------------------------------------------------------------- who gets what


def test_keys_and_values_reach_their_images(
    micro: FrozenViT, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, images = dual(micro, **SMALL), images_of(micro, 5)
    begin(method, 2)
    mark(method)
    given = prefixes_of(method, images, monkeypatch)
    chosen = best_in_numpy(micro(images), method.pool_keys[:4], 2)
    assert len({tuple(row) for row in chosen}) > 1, "a mix-up of images would stay unseen"
    assert sorted(given) == [0, 1, 2, 3, 4]
    for layer in (0, 1):
        for kind, tensor in enumerate(given[layer]):
            assert torch.equal(tensor, method.general[layer, kind].expand(5, 3, micro.width))
    for index, layer in enumerate((2, 3, 4)):
        for kind, tensor in enumerate(given[layer]):
            for image, prompts in enumerate(chosen):
                addresses = [
                    1000 * index + 100 * kind + 10 * prompt + place
                    for prompt in prompts
                    for place in range(2)
                ]
                assert tensor[image, :, 0].tolist() == addresses
                assert (tensor[image] == tensor[image, :, :1]).all()


def test_logits_against_one_image_at_a_time(micro: FrozenViT) -> None:
    method, images = dual(micro, **SMALL), images_of(micro, 4)
    begin(method, 2)
    with torch.no_grad():
        for tensor in (method.general, method.experts, method.pool):
            tensor *= 20  # so that a wrong prefix shows
        method.keys.copy_(method.pool_keys[4:])
    # The slice of stage 2 is still in training: rows 2 and 3 are not those of the pool.
    pool = method.pool.clone()
    pool[:, :, 2:4] = method.experts.detach()
    keys = torch.cat([method.pool_keys[:2], method.keys])
    rows = []
    for image, chosen in zip(images, best_in_numpy(micro(images), keys, 2), strict=True):
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


def test_training_forces_the_slice_of_the_stage(micro: FrozenViT) -> None:
    method, images = dual(micro, **SMALL, pull=0.3), images_of(micro, 4)
    begin(method, 2)
    losses = method.losses(make_batch(method, images, torch.zeros(4, dtype=torch.long)))
    assert set(losses) == {"ce", "pull"}
    query = micro(images).double()
    cos = torch.nn.functional.cosine_similarity(query[:, None], method.keys.double(), dim=-1)
    assert float(losses["pull"].detach()) == pytest.approx(
        0.3 * (2 - float(cos.detach().sum()) / 4), abs=1e-5
    )
    experts = method.experts[:, :, None].expand(-1, -1, 4, -1, -1, -1)
    logits = method.head(method.prompted_features(images, experts))
    torch.testing.assert_close(losses["ce"], -logits.log_softmax(-1)[:, 0].mean())
    method.total(losses).backward()  # type: ignore[no-untyped-call]
    for tensor in (method.general, method.experts, method.keys, method.head.weight):
        assert tensor.grad is not None
        assert tensor.grad.abs().sum() > 0


# ---------------------------------------------------------------- counts


def formula(width: int, layers: tuple[int, int], k: int) -> int:
    """General prompts, the experts of one slice, their keys, and the head; lengths of 4."""
    general, experts = layers[0] * 2 * 4 * width, layers[1] * 2 * k * 4 * width
    return general + experts + k * width + width * CLASSES + CLASSES


def test_counts_on_micro(micro: FrozenViT) -> None:
    method = dual(micro)
    assert method.trainable_count() == formula(128, (2, 3), 5)
    begin(method, 3)
    assert method.trainable_count() == formula(128, (2, 3), 5)


def test_counts_at_the_size_of_the_paper() -> None:
    method = dual(build_backbone("vit_base", "random", 32))
    assert method.general.numel() == 12_288
    assert method.pool.numel() == 1_843_200
    assert method.pool_keys.numel() == 76_800
    # Of the pool one slice of 5 in 100 trains in a stage.
    head = 768 * CLASSES + CLASSES
    assert method.trainable_count() == 12_288 + 1_843_200 // 20 + 76_800 // 20 + head


def test_layers_that_a_small_backbone_lacks_are_left_out(micro: FrozenViT) -> None:
    method = dual(micro, general_layers=(0, 9), expert_layers=(5, 6, 7))
    assert (method.general_layers, method.expert_layers) == ([0], [5])
    assert method.trainable_count() == formula(128, (1, 1), 5)
    assert method(images_of(micro, 2)).shape == (2, CLASSES)
    with pytest.raises(SodapError, match="micro has only 6 blocks"):
        dual(micro, expert_layers=(6, 7))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"general_layers": (1, 2)}, "option 'expert_layers' .*each block only once"),
        ({"expert_layers": (3, 3)}, "option 'expert_layers' .*each block only once"),
        ({"expert_layers": ()}, "option 'expert_layers'"),
        ({"pool_size": 4}, "option 'top_k' .*at most pool_size"),
    ],
)
def test_options_that_do_not_fit(micro: FrozenViT, options: dict[str, Any], words: str) -> None:
    with pytest.raises(SodapError, match=words):
        dual(micro, **options)


def test_no_general_prompts(micro: FrozenViT) -> None:
    method = dual(micro, general_layers=())
    assert method.trainable_count() == formula(128, (0, 3), 5)
    assert method(images_of(micro, 2)).isfinite().all()


# ---------------------------------------------------------------- stages


def learner_of(stream: Stream, **options: Any) -> Learner:
    training = Training(epochs=2, batch_size=8, lr=0.01, weight_decay=0.5)
    return Learner(
        stream.classes, method="dual-prompt", training=training, options=options, device="cpu"
    )


def test_old_slices_stay_identical_to_the_bit(stripes: Stream) -> None:
    learner = learner_of(stripes, **SMALL)
    method = cast(DualPrompt, learner.method)
    start = {"experts": method.pool.clone(), "keys": method.pool_keys.clone()}
    assert learner.learn(stripes.domains[0]).begun == {"slice": [0, 2]}
    experts, keys = method.pool.clone(), method.pool_keys.clone()
    assert torch.equal(experts[:, :, :2], method.experts)
    assert not torch.isclose(experts[:, :, :2], start["experts"][:, :, :2]).all()
    assert not torch.isclose(keys[:2], start["keys"][:2]).all()

    assert learner.learn(stripes.domains[1]).begun == {"slice": [2, 4]}
    assert torch.equal(method.pool[:, :, :2], experts[:, :, :2])
    assert torch.equal(method.pool_keys[:2], keys[:2])
    assert not torch.isclose(method.pool[:, :, 2:4], start["experts"][:, :, 2:4]).all()
    # Rows that no stage has reached are as they were drawn.
    assert torch.equal(method.pool[:, :, 4:], start["experts"][:, :, 4:])
    assert torch.equal(method.pool_keys[4:], start["keys"][4:])


def test_no_optimiser_reaches_an_old_slice(micro: FrozenViT) -> None:
    """Not even one that decays everything it is given."""
    method, images = dual(micro, **SMALL), images_of(micro, 6)
    begin(method, 2)
    pool, experts = method.pool.clone(), method.experts.detach().clone()
    optimizer = torch.optim.AdamW(
        [p for p in method.parameters() if p.requires_grad], 0.1, weight_decay=0.5
    )
    for _ in range(2):
        losses = method.losses(make_batch(method, images, torch.arange(6) % 3))
        method.total(losses).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert torch.equal(method.pool, pool)
    assert not torch.isclose(method.experts, experts).any()


def test_a_slice_starts_as_a_copy_of_the_one_before(micro: FrozenViT) -> None:
    method = dual(micro, **SMALL)
    drawn = method.pool_keys.clone()
    method.begin_stage(1, NO_IMAGES)
    with torch.no_grad():
        method.experts.add_(1)
        method.keys.add_(1)
    trained = method.experts.detach().clone()
    method.end_stage(1, NO_IMAGES, NO_IMAGES)
    method.begin_stage(2, NO_IMAGES)
    assert torch.equal(method.experts, trained)
    assert torch.equal(method.pool[:, :, :2], trained)
    assert torch.equal(method.keys, drawn[2:4])  # keys are not handed on
    with torch.no_grad():
        method.experts.add_(1)  # no view of the pool
    assert torch.equal(method.pool[:, :, :2], trained)


def test_the_pool_runs_out(micro: FrozenViT) -> None:
    stream = make_stream(domains=2)
    learner = learner_of(stream, pool_size=3, top_k=2)
    learner.learn(stream.domains[0])
    before = learner.predict(stream.domains[0].test.images).probabilities
    with pytest.raises(SodapError, match=r"2 of its 3 expert prompts .* stage 2"):
        learner.learn(stream.domains[1])
    after = learner.predict(stream.domains[0].test.images).probabilities
    assert torch.equal(before, after)


@pytest.mark.parametrize("faithful", [False, True])
def test_save_and_load(tmp_path: Path, stripes: Stream, faithful: bool) -> None:
    learner = learner_of(stripes, **SMALL, faithful=faithful)
    for domain in stripes.domains:
        learner.learn(domain)
    learner.save(tmp_path)
    again = load(tmp_path, device="cpu")
    images = stripes.domains[0].test.images
    expected = learner.predict(images).probabilities
    assert torch.equal(again.predict(images).probabilities, expected)
    for name, tensor in learner.method.state().items():
        assert torch.equal(again.method.state()[name], tensor)


# ---------------------------------------------------------------- what may be chosen


@pytest.mark.parametrize("faithful", [False, True])
def test_only_trained_keys_are_matched(
    micro: FrozenViT, monkeypatch: pytest.MonkeyPatch, faithful: bool
) -> None:
    method, images = dual(micro, **SMALL, faithful=faithful), images_of(micro, 1)
    begin(method, 2)
    with torch.no_grad():
        method.pool_keys[5] = micro(images)[0]  # the perfect key, of a stage to come
    mark(method)
    keys, _ = prefixes_of(method, images, monkeypatch)[2]
    chosen = {int(address) // 10 for address in keys[0, :, 0]}
    assert (5 in chosen) == faithful
    assert faithful or chosen <= {0, 1, 2, 3}


def two_parties(micro: FrozenViT, faithful: bool) -> tuple[DualPrompt, Tensor]:
    """Four images near slice 1 and three near slice 2, whose prompts differ much."""
    images = torch.cat([images_of(micro, 4), images_of(micro, 3, tint=120)])
    method = dual(micro, **SMALL, faithful=faithful)
    begin(method, 2)
    with torch.no_grad():
        mean, other = micro(images[:4]).mean(0), micro(images[4:]).mean(0)
        method.pool_keys[:2] = mean - other
        method.keys.copy_((other - mean).expand(2, -1))
        method.experts.add_(torch.randn(method.experts.shape, generator=torch.Generator()))
        method.head.weight *= 20
    return method, images


@pytest.mark.parametrize("faithful", [False, True])
def test_a_prediction_depends_on_the_batch_only_as_published(
    micro: FrozenViT, faithful: bool
) -> None:
    method, images = two_parties(micro, faithful)
    with torch.no_grad():
        alone = torch.cat([method(image[None]) for image in images])
        together = method(images)
        backwards = method(images.flip(0)).flip(0)
    spread = max(float((each - alone).abs().max()) for each in (together, backwards))
    assert spread > 1e-2 if faithful else spread < 1e-5


def test_the_published_reshape(micro: FrozenViT, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its known symptoms: halves of the batch, and a batch of one that is right."""
    method, images = dual(micro, **SMALL, faithful=True), images_of(micro, 4)
    begin(method, 2)
    mark(method)
    for layer, (keys, values) in prefixes_of(method, images, monkeypatch).items():
        if layer < 2:
            continue  # general prompts are right
        assert torch.equal(keys, values)
        kinds = keys[..., 0].long() % 1000 // 100
        assert kinds.tolist() == [[0] * 4] * 2 + [[1] * 4] * 2
    keys, values = prefixes_of(method, images[:1], monkeypatch)[3]
    assert (keys[..., 0].long() % 1000 // 100 == 0).all()
    assert torch.equal(values, keys + 100)


def test_the_published_reshape_crosses_images(
    micro: FrozenViT, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were prompts chosen by image, image b would get those of images 2b and 2b + 1."""
    method, images = dual(micro, **SMALL, faithful=True), images_of(micro, 4)
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


def test_start_values(micro: FrozenViT) -> None:
    for faithful, deviation in ((False, 0.02), (True, 3**-0.5)):
        method = dual(micro, faithful=faithful)
        for tensor in (method.general, method.pool, method.pool_keys):
            assert float(tensor.detach().std()) == pytest.approx(deviation, rel=0.1)
        assert torch.equal(method.experts, method.pool[:, :, :5])
        assert torch.equal(method.keys, method.pool_keys[:5])


@pytest.mark.parametrize("faithful", [False, True])
def test_gradients_are_clipped_as_published(micro: FrozenViT, faithful: bool) -> None:
    method, images = dual(micro, faithful=faithful), images_of(micro, 6)
    losses = method.losses(make_batch(method, images, torch.arange(6) % 3))
    (100 * method.total(losses)).backward()  # type: ignore[no-untyped-call]
    method.before_step()
    squares = [p.grad.square().sum() for p in method.parameters() if p.grad is not None]
    norm = float(torch.stack(squares).sum().sqrt())
    assert (norm == pytest.approx(1, abs=1e-3)) if faithful else norm > 10
