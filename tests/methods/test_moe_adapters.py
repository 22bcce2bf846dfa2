"""MoE-Adapters: gates, experts, freezing and selection, each against something simpler."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from sodap.backbones import FrozenViT, build_backbone
from sodap.backbones.weights import load_weights
from sodap.errors import SodapError
from sodap.learning import Learner, Training, load
from sodap.methods import build_method
from sodap.methods.moe_adapters import MoeAdapters
from sodap.methods.parts.experts import DomainRouter, ExpertBlock, Gates, top_gates
from sodap.methods.parts.text_head import TextHead
from sodap.randomness import Randomness
from tests.conftest import make_batch, make_stream

THREE = make_stream(domains=3)
TRAINING = Training(epochs=2, patience=2, batch_size=16, lr=0.01, weight_decay=0.5)
SMALL = {"experts": 6, "bottleneck": 8, "selector_steps": 60}


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


@pytest.fixture(scope="module")
def seasoned() -> Learner:
    """After three stages; tests must leave it as it is."""
    return taught(3)


def method_of(learner: Learner) -> MoeAdapters:
    assert isinstance(learner.method, MoeAdapters)
    return learner.method.eval()


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def some_images(count: int = 12) -> Tensor:
    images = torch.cat([domain.test.images[:4] for domain in THREE.domains])
    return build_backbone().prepare(images)[:count]


# ---------------------------------------------------------------------- gates


def naive_gates(logits: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """`[B, E]`, image by image."""
    gates = np.zeros_like(logits)
    for row, values in zip(gates, logits, strict=True):
        best = sorted(range(len(values)), key=lambda e: (-values[e], e))[:count]
        total = sum(np.exp(values[e]) for e in best)
        for e in best:
            row[e] = np.exp(values[e]) / total
    return gates


def dense(gates: Gates, experts: int) -> Tensor:
    return torch.zeros(len(gates.weight), experts, dtype=gates.weight.dtype).scatter(
        1, gates.expert, gates.weight
    )


@pytest.mark.parametrize("count", [1, 2, 5])
def test_gates_against_a_plain_count(count: int) -> None:
    logits = drawn(40, 5)
    logits[7:12] = 0.0  # all equal: the lower numbers win
    logits[12, 1:4] = logits[12].max() + 1
    found = dense(top_gates(logits, count), 5)
    np.testing.assert_allclose(found.numpy(), naive_gates(logits.numpy(), count), atol=1e-14)


def test_router_against_its_formula() -> None:
    router = DomainRouter(7, 4).double()
    with torch.no_grad():
        router.weight.copy_(drawn(2, 7, 4))
    first = router.weight.detach().numpy().copy()
    router.start_domain()
    assert not router.weight.any()
    with torch.no_grad():
        router.weight.copy_(drawn(2, 7, 4, seed=1))
    both = [first, router.weight.detach().numpy()]

    token, domain = drawn(9, 7, seed=2), torch.arange(9) % 2
    plain = np.stack([x @ both[d][0] for x, d in zip(token.numpy(), domain, strict=True)])
    np.testing.assert_allclose(router(token, domain).detach().numpy(), plain, atol=1e-12)
    np.testing.assert_allclose(router(token).detach().numpy(), token.numpy() @ both[1][0])

    ε = drawn(9, 4, seed=5).numpy()
    width = np.stack([x @ both[d][1] for x, d in zip(token.numpy(), domain, strict=True)])
    noisy = plain + ε * (np.log1p(np.exp(width)) + 0.01)
    found = router(token, domain, torch.Generator().manual_seed(5))
    np.testing.assert_allclose(found.detach().numpy(), noisy, atol=1e-12)


# ---------------------------------------------------------------------- experts


def filled_block(experts: int, chosen: int) -> ExpertBlock:
    block = ExpertBlock(
        8,
        experts=experts,
        top_k=chosen,
        bottleneck=3,
        scale=0.1,
        dropout=0.5,
        generator=torch.Generator().manual_seed(0),
    ).double()
    with torch.no_grad():
        for seed, parameter in enumerate(block.parameters()):
            parameter.copy_(drawn(*parameter.shape, seed=seed))
    return block


@pytest.mark.parametrize(("experts", "chosen"), [(5, 2), (5, 1), (2, 2)])
def test_layer_against_a_loop_over_images_and_experts(experts: int, chosen: int) -> None:
    block, before = filled_block(experts, chosen), filled_block(experts, chosen)
    block.freeze(torch.tensor([1]))
    with torch.no_grad():
        block.down[1] = block.up[1] = 7.0  # what decay would do: nobody may read it
    tokens = drawn(6, 4, 8, seed=9)
    gates = block.route(tokens[:, 0])
    found = block(tokens, gates)

    # Autograd through the loop gives the gradients to compare with as well.
    expected = torch.zeros_like(tokens)
    for b, row in enumerate(dense(gates, experts)):
        for e, gate in enumerate(row):
            own = before if e == 1 else block
            hidden = (tokens[b] @ own.down[e].T + own.down_bias[e]).relu()
            expected[b] += gate * 0.1 * (hidden @ own.up[e] + own.up_bias[e])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)

    weigh = drawn(6, 4, 8, seed=10)
    trained = [block.down, block.down_bias, block.up, block.up_bias, block.router.weight]
    ours = torch.autograd.grad((found * weigh).sum(), trained, retain_graph=True)
    theirs = torch.autograd.grad((expected * weigh).sum(), trained)
    loose = torch.arange(experts) != 1
    for one, two in zip(ours[:4], theirs[:4], strict=True):
        torch.testing.assert_close(one[loose], two[loose], rtol=1e-10, atol=1e-12)
        assert not one[1].any(), "a frozen expert passes no gradient on to its parameter"
    torch.testing.assert_close(ours[4], theirs[4], rtol=1e-10, atol=1e-12)


def test_dropout_keeps_the_mean_and_is_drawn_from_the_generator() -> None:
    block = filled_block(4, 2)
    tokens = drawn(2, 3, 8).repeat(4000, 1, 1)
    gates = block.route(tokens[:, 0])
    dropped = block(tokens, gates, torch.Generator().manual_seed(1)).view(4000, 2, 3, 8)
    again = block(tokens, gates, torch.Generator().manual_seed(1)).view(4000, 2, 3, 8)
    assert torch.equal(dropped, again)
    whole = block(tokens, gates).view(4000, 2, 3, 8)[0]
    error = (dropped.mean(0) - whole).abs() / (dropped.std(0) / 4000**0.5 + 1e-12)
    assert dropped.std(0).max() > 0.01
    assert error.max() < 5


def test_at_the_start_features_are_the_backbones() -> None:
    method, images = method_of(taught(0)), some_images()
    untouched = method.backbone(images)  # whose last block adds up in another order
    torch.testing.assert_close(method._features(images), untouched, rtol=1e-5, atol=1e-5)


def test_mixed_precision() -> None:
    method, images = method_of(taught(1)), some_images()
    labels = torch.arange(len(images)) % 3
    exact = method(images)
    with torch.autocast("cpu", torch.bfloat16):
        rough = method(images)
        method.train()
        loss = method.losses(make_batch(method, images, labels, torch.Generator().manual_seed(0)))[
            "ce"
        ]
    loss.backward()  # type: ignore[no-untyped-call]
    assert rough.dtype == loss.dtype == torch.float32
    torch.testing.assert_close(rough, exact, rtol=0.1, atol=0.1 * float(exact.detach().abs().max()))
    gradients = [p.grad for p in method.blocks.parameters()]
    assert all(g is not None and g.dtype == torch.float32 and g.isfinite().all() for g in gradients)


# ---------------------------------------------------------------------- stages


def frozen_weights(method: MoeAdapters) -> list[Tensor]:
    names = ("down", "down_bias", "up", "up_bias")
    return [b.expert_weights(n)[b.frozen].detach().clone() for b in method._blocks() for n in names]


def test_frozen_experts_and_old_routers_are_bit_identical() -> None:
    learner = taught(1)
    method = method_of(learner)
    masks = [block.frozen.clone() for block in method._blocks()]
    assert [int(mask.sum()) for mask in masks] == [2] * method.backbone.depth
    kept = frozen_weights(method)
    assert sum(float(weight.abs().sum()) for weight in kept) > 0
    routers = [block.router.weight.detach().clone() for block in method._blocks()]
    loose = [block.up[~block.frozen].detach().clone() for block in method._blocks()]

    learner.learn(THREE.domains[1])
    # A harsher optimiser than the loop's: decay on everything that is a parameter.
    method.train()
    optimizer = torch.optim.AdamW(method.parameters(), lr=0.1, weight_decay=0.5)
    images = method.backbone.prepare(THREE.domains[1].train.images)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        loss = method.losses(make_batch(method, images, THREE.domains[1].train.labels, generator))[
            "ce"
        ]
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    names = ("down", "down_bias", "up", "up_bias")
    now = [
        block.expert_weights(name)[mask]
        for block, mask in zip(method._blocks(), masks, strict=True)
        for name in names
    ]
    assert all(torch.equal(one, two) for one, two in zip(kept, now, strict=True))
    for block, mask, router, up in zip(method._blocks(), masks, routers, loose, strict=True):
        assert torch.equal(block.router.past[0], router)
        assert not torch.equal(block.up[~mask], up)
        assert (block.frozen & mask).equal(mask)


def test_the_most_used_experts_are_frozen() -> None:
    learner = taught(0)
    method = method_of(learner)
    ended = learner.learn(THREE.domains[0]).ended
    images = method.backbone.prepare(THREE.domains[0].train.images)
    counts = np.zeros((method.backbone.depth, 6), dtype=int)

    def counting(layer: int, tokens: Tensor) -> Tensor:
        block = list(method._blocks())[layer]
        gates = block.route(tokens[:, 0])
        for expert in gates.expert.flatten().tolist():
            counts[layer, expert] += 1
        added: Tensor = block(tokens, gates)
        return added

    for image in images:  # one at a time
        method.backbone(image[None], beside=counting)
    assert ended["expert_usage"] == counts.tolist()
    for block, row in zip(method._blocks(), counts, strict=True):
        best = sorted(range(6), key=lambda e: (-row[e], e))[:2]
        assert block.frozen.nonzero().flatten().tolist() == sorted(best)


def test_frozen_experts_stay_selectable_and_freezing_ends() -> None:
    block = filled_block(3, 2)
    block.freeze(torch.tensor([0, 2]))
    kept = block.expert_weights("up")[0].clone()
    with torch.no_grad():
        block.up.zero_()
    block.freeze(torch.tensor([2, 1]))
    assert torch.equal(block.expert_weights("up")[0], kept)
    assert block.frozen.all()
    assert not block.expert_weights("up")[1].any()
    assert block.trainable_count() == block.router.weight.numel()


def test_counts_by_hand() -> None:
    learner = Learner(
        THREE.classes, method="moe-adapters", options={"selector_steps": 5}, training=TRAINING
    )
    method = method_of(learner)
    expert = 128 * 64 + 64 + 64 * 128 + 128
    router, head = 2 * 128 * 22, 3 * 128 + 3
    assert method.trainable_count() == 6 * (22 * expert + router) + head
    assert method.trainable_count() == sum(
        p.numel() for p in method.parameters() if p.requires_grad
    )
    for block in method._blocks():
        block.freeze(torch.tensor([3, 4]))
    assert method.trainable_count() == 6 * (20 * expert + router) + head

    reduced = method_of(taught(0, variant="reduced", bottleneck=64))
    assert reduced.trainable_count() == 6 * 2 * (expert + 2 * 128) + head


def test_reduced_neither_freezes_nor_selects() -> None:
    method = method_of(taught(2, variant="reduced"))
    assert not any(block.frozen.any() for block in method._blocks())
    assert all(len(block.router.past) == 0 for block in method._blocks())
    assert method.stored() == []
    assert any(block.router.weight.any() for block in method._blocks())


def test_only_the_head_decays() -> None:
    method = method_of(taught(0))
    groups = method.parameter_groups(1.0, 0.1)
    trained = [id(p) for p in method.parameters() if p.requires_grad]
    assert sorted(id(p) for group in groups for p in group["params"]) == sorted(trained)
    for group in groups:
        if group["weight_decay"]:
            assert [tuple(p.shape) for p in group["params"]] == [(3, 128)]


def test_noise_and_dropout_only_in_training() -> None:
    method, images = method_of(taught(1)), some_images()
    labels = torch.arange(len(images)) % 3

    def loss(seed: int) -> float:
        generator = torch.Generator().manual_seed(seed)
        return float(method.losses(make_batch(method, images, labels, generator))["ce"].detach())

    assert loss(1) == loss(2)
    method.train()
    assert loss(1) != loss(2)
    assert loss(1) == loss(1)


@pytest.mark.parametrize("experts", [2, 3])
def test_gates_keep_their_precision_under_autocast(experts: int) -> None:
    """Two experts that say +1 and -1: what is left is the difference of their gates."""
    block = ExpertBlock(
        4,
        experts=experts,
        top_k=2,
        bottleneck=3,
        scale=1.0,
        dropout=0.0,
        generator=torch.Generator().manual_seed(0),
    )
    block.up_bias.data[0], block.up_bias.data[1] = 1.0, -1.0
    gates = Gates(torch.tensor([[0, 1]]), torch.tensor([[0.5005, 0.4995]]))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = block(torch.ones(1, 2, 4), gates)
    torch.testing.assert_close(found, torch.full((1, 2, 4), 0.001), rtol=1e-3, atol=0)


# ---------------------------------------------------------------------- selection


def test_each_image_gets_the_router_of_its_domain(
    seasoned: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, images = method_of(seasoned), some_images(6)
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


def test_faithful_has_noise_and_decides_by_batch(
    seasoned: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    literal = taught(0, faithful=True)
    literal.restore(method_of(seasoned).state(), 3, 3)
    sane, published, images = method_of(seasoned), method_of(literal), some_images()
    assert len(set(published.selector.nearest(published.frozen_features(images)).tolist())) > 1
    decided = published._domain_of(images)
    assert decided is not None
    assert len(set(decided.tolist())) == 1
    assert torch.equal(published(images), published(images))

    # Noise alone, with the same router for both.
    for method in (sane, published):
        monkeypatch.setattr(method, "_domain_of", lambda images: None)
    assert not torch.allclose(sane(images), published(images), rtol=0, atol=1e-4)


# ---------------------------------------------------------------------- state


def test_round_trip_after_three_stages(seasoned: Learner, tmp_path: Path) -> None:
    images = torch.cat([domain.test.images for domain in THREE.domains])
    expected = seasoned.predict(images).probabilities
    seasoned.save(tmp_path / "model")
    assert torch.equal(load(tmp_path / "model").predict(images).probabilities, expected)

    # A later stage that breaks off: the state of an earlier one has other shapes.
    other = taught(1)
    first, single = method_of(other).state(), other.predict(images).probabilities
    first = {key: value.clone() for key, value in first.items()}
    other.restore(method_of(seasoned).state(), 3, 3)
    assert torch.equal(other.predict(images).probabilities, expected)
    assert method_of(other).trainable_count() == method_of(seasoned).trainable_count()
    assert other.stored() == seasoned.stored()
    other.restore(first, 1, 1)
    assert torch.equal(other.predict(images).probabilities, single)


def test_too_many_choices() -> None:
    for options in ({"experts": 2, "top_k": 3}, {"variant": "reduced", "top_k": 3}):
        with pytest.raises(SodapError, match="more than 2 experts"):
            build_method("moe-adapters", options, build_backbone(), 3, Randomness(0))


# ---------------------------------------------------------------------- text head


def test_text_head_against_cosines() -> None:
    head = TextHead(drawn(8, 5), drawn(3, 5, seed=1), torch.tensor(20.0))
    features = drawn(4, 8, seed=2)
    found = head(features.float())
    for b, c in np.ndindex(4, 3):
        image, text = (features[b] @ drawn(8, 5)).numpy(), drawn(3, 5, seed=1)[c].numpy()
        cosine = image @ text / np.linalg.norm(image) / np.linalg.norm(text)
        assert float(found[b, c]) == pytest.approx(20 * cosine, abs=1e-4)
    assert not list(head.parameters())


WORDINGS = ("a photo of a cat", "a photo of a dog", "a drawing of a house")


def text_method(backbone: FrozenViT, **options: Any) -> MoeAdapters:
    method = build_method(
        "moe-adapters", SMALL | {"head": "text"} | options, backbone, 3, Randomness(0)
    )
    assert isinstance(method, MoeAdapters)
    return method.eval()


def test_text_head_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "clip.safetensors"
    whole = {"prompts": WORDINGS, "text_model": "ViT-B-16", "text_weights": str(file)}
    backbone = build_backbone()
    for lacking in whole:
        some = {key: value for key, value in whole.items() if key != lacking}
        with pytest.raises(SodapError, match=r"needs prompts \(3 wordings"):
            text_method(backbone, **some)
    with pytest.raises(SodapError, match="there is no weights file"):
        text_method(backbone, **whole)
    save_file({"nothing": torch.zeros(1)}, file)
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(SodapError, match=r"pip install 'sodap\[clip\]'"):
        text_method(backbone, **whole)


def test_a_clip_model_as_backbone_and_head(tmp_path: Path) -> None:
    open_clip = pytest.importorskip(
        "open_clip", reason="open_clip is not installed (pip install 'sodap[clip]')"
    )
    shape = {
        "embed_dim": 24,
        "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "patch_size": 8},
        "text_cfg": {
            "context_length": 77,
            "vocab_size": 49408,
            "width": 32,
            "heads": 2,
            "layers": 1,
        },
    }
    (tmp_path / "Tiny-CLIP.json").write_text(json.dumps(shape))
    (tmp_path / "Other-CLIP.json").write_text(json.dumps(shape | {"embed_dim": 16}))
    open_clip.add_model_config(tmp_path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        clip = open_clip.create_model("Tiny-CLIP").eval()
    file = tmp_path / "clip.safetensors"
    save_file({key: value.contiguous() for key, value in clip.state_dict().items()}, file)

    vit = VisionTransformer(32, 8, num_classes=0, embed_dim=64, depth=2, num_heads=1, pre_norm=True)
    for module in vit.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-5
    other = copy.deepcopy(vit)
    load_weights(vit, file, "tiny")
    fine = {"prompts": WORDINGS, "text_model": "Tiny-CLIP", "text_weights": str(file)}

    def frozen(network: VisionTransformer) -> FrozenViT:
        return FrozenViT(network, name="tiny", mean=(0.5,) * 3, std=(0.5,) * 3)

    method = text_method(frozen(vit), **fine)
    images = drawn(4, 3, 32, 32).float()
    with torch.no_grad():
        joint, texts = (
            clip.encode_image(images),
            clip.encode_text(open_clip.get_tokenizer("Tiny-CLIP")(list(WORDINGS))),
        )
        cosine = torch.nn.functional.cosine_similarity(joint[:, None], texts[None], dim=-1)
        expected = clip.logit_scale.exp() * cosine
    torch.testing.assert_close(method(images), expected, rtol=1e-4, atol=1e-4)
    assert method.trainable_count() == sum(block.trainable_count() for block in method._blocks())
    assert torch.optim.AdamW(method.parameter_groups(0.1, 0.1))

    with pytest.raises(SodapError, match="is not the image encoder"):
        text_method(frozen(other), **fine)
    with pytest.raises(SodapError, match="no model 'Tiny'"):
        text_method(frozen(vit), **fine | {"text_model": "Tiny"})
    with pytest.raises(SodapError, match="does not fit the model Other-CLIP"):
        text_method(frozen(vit), **fine | {"text_model": "Other-CLIP"})
