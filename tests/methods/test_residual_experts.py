"""Residual experts against the same computation image by image, and what must never change."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sodap.learning import Learner, Training
from sodap.learning.progress import snapshot
from sodap.methods import ResidualExperts
from sodap.streams import MissingClassWarning, Split, Stream
from tests.conftest import TINY_VIT, make_stream

TRAINING = Training(epochs=2, batch_size=12, lr=0.01, weight_decay=0.5)


@pytest.fixture(scope="module")
def stream() -> Stream:
    return make_stream(domains=4)


def learner_of(stream: Stream, **options: Any) -> tuple[Learner, ResidualExperts]:
    learner = Learner(
        stream.classes,
        method="residual-experts",
        options=options,
        training=TRAINING,
        device="cpu",
        **TINY_VIT,
    )
    assert isinstance(learner.method, ResidualExperts)
    return learner, learner.method


@pytest.fixture(scope="module")
def learned(stream: Stream) -> Learner:
    """A learner of three domains, which tests must not change."""
    learner, _ = learner_of(stream, rank=2)
    for domain in stream.domains[:3]:
        learner.learn(domain)
    return learner


def prepared(learner: Learner, stream: Stream) -> Tensor:
    """Images of three domains, mixed."""
    images = torch.cat([domain.test.images[:4] for domain in stream.domains[:3]])
    mixed = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return learner.method.backbone.prepare(images[mixed])


def experts_of(learner: Learner) -> ResidualExperts:
    assert isinstance(learner.method, ResidualExperts)
    return learner.method.eval()


def network_with(method: ResidualExperts, *residuals: Tensor) -> Any:
    """timm's network with residuals added to its weights."""
    vit: Any = copy.deepcopy(method.backbone.vit)
    for residual in residuals:
        for block, row in zip(vit.blocks[method.layout.first :], residual, strict=True):
            factors = method.layout.split(row)
            layers = (block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2)
            for layer, (down, up) in zip(layers, factors, strict=True):
                layer.weight.data += up @ down
    return vit


def read(vit: Any, images: Tensor, blocks: int) -> Tensor:
    """CLS and mean patch of the last blocks, by timm's own function."""
    _, between = vit.forward_intermediates(
        images, indices=blocks, return_prefix_tokens=True, output_fmt="NLC"
    )
    rows = []
    for patches, prefix in between:
        rows += [vit.norm(prefix[:, 0]), vit.norm(patches.mean(1))]
    return torch.cat(rows, 1)


@torch.no_grad()
def test_the_answer_is_the_mean_of_base_and_gated_expert(learned: Learner, stream: Stream) -> None:
    method, images = experts_of(learned), prepared(learned, stream)
    blocks = method.network.read_blocks
    assert method.base_residual.abs().max() > 0
    base = method.base(read(network_with(method, method.base_residual), images, blocks)).exp()
    statistics = method.network.statistics(method.network.trunk(images))
    domains = method.gate(statistics).exp()
    assert domains.shape[1] == 16
    assert not domains[:, 3:].any()
    expected = []
    for index, image in enumerate(images):
        probability, expert = domains[index].max(0)
        vit = network_with(method, method.base_residual, method.experts.residuals[expert])
        head = method.experts.weight[expert], method.experts.bias[expert]
        answer = torch.nn.functional.linear(read(vit, image[None], blocks), *head)[0].softmax(0)
        weight = probability / 2
        expected.append(weight * answer + (1 - weight) * base[index])
    torch.testing.assert_close(
        method(images).exp().double(), torch.stack(expected).double(), atol=1e-5, rtol=1e-4
    )


@torch.no_grad()
def test_shown_to_all_experts_and_fast(learned: Learner, stream: Stream) -> None:
    method, images = experts_of(learned), prepared(learned, stream)
    trunk = method.network.trunk(images)
    domains = method.gate(method.network.statistics(trunk)).exp()[:, :3].float()
    each = [method._expert(trunk, torch.full((len(images),), e)).softmax(1) for e in range(3)]
    mixture = torch.einsum("be,ebc->bc", domains, torch.stack(each))
    base = method._base(trunk)
    answers: list[tuple[dict[str, Any], Tensor]] = [
        ({"shown_to": 16}, (base + mixture) / 2),
        ({"fast": True}, torch.stack(each)[domains.argmax(1), torch.arange(len(images))]),
        ({"experts": False}, base),
    ]
    for options, expected in answers:
        other, changed = learner_of(stream, rank=2, **options)
        other.restore(method.state(), 3, 3)
        torch.testing.assert_close(changed.eval()(images).exp(), expected, atol=1e-5, rtol=1e-4)


def test_the_gate_sees_the_domain(learned: Learner, stream: Stream) -> None:
    method = experts_of(learned)
    for number, domain in enumerate(stream.domains[:3]):
        images = method.backbone.prepare(domain.test.images)
        found = method.gate(method.network.statistics(method.network.trunk(images))).argmax(1)
        assert (found == number).all()


def test_experts_and_the_base_network_never_change_again(stream: Stream) -> None:
    learner, method = learner_of(stream)
    kept: dict[str, Tensor] = {}
    for number, domain in enumerate(stream.domains[:3]):
        learner.learn(domain)
        state = snapshot(method.state())
        experts = {k: v[: number + 1] for k, v in state.items() if k.startswith("experts.")}
        for name, before in kept.items():
            now = state[name] if name == "base_residual" else experts[name][: len(before)]
            assert torch.equal(now, before), name
        kept = {**experts, "base_residual": state["base_residual"]}
    assert not method.experts.residuals[0].any(), "the first expert is the base's network"
    assert method.experts.residuals[1:3].flatten(1).any(1).all()


def test_an_expert_starts_with_the_answers_of_the_base(stream: Stream) -> None:
    learner, method = learner_of(stream)
    learner.learn(stream.domains[0])
    images = method.backbone.prepare(stream.domains[1].test.images)
    found: list[Tensor] = []

    def first(epoch: int, done: int, total: int) -> None:
        raise KeyboardInterrupt

    groups: Any = method.parameter_groups

    def begin(lr: float, decay: float) -> list[dict[str, Any]]:
        with torch.no_grad():
            trunk = method.network.trunk(images)
            found.extend((method._newest(trunk).softmax(1), method._base(trunk)))
        return list(groups(lr, decay))

    method.parameter_groups = begin
    before = snapshot(method.state())
    with pytest.raises(KeyboardInterrupt):
        learner.learn(stream.domains[1], on_batch=first)
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)
    after = method.state()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_the_base_does_not_depend_on_the_order_of_later_domains(stream: Stream) -> None:
    heads = []
    for order in ((0, 1, 2), (0, 2, 1)):
        learner, method = learner_of(stream)
        for index in order:
            learner.learn(stream.domains[index])
        heads.append(method.base.head)
    torch.testing.assert_close(*heads)


def test_a_budget_of_experts(stream: Stream) -> None:
    learner, method = learner_of(stream, budget=2, rank=2)
    shapes = {name: value.shape for name, value in method.state().items()}
    counts = [len(domain.train) for domain in stream.domains]
    for number, domain in enumerate(stream.domains, start=1):
        learner.learn(domain)
        shapes["expert_of"] = torch.Size([number])
        assert {name: value.shape for name, value in method.state().items()} == shapes
    expert_of = method.expert_of.tolist()
    for expert in range(2):
        images = sum(n for n, e in zip(counts, expert_of, strict=True) if e == expert)
        assert method.gate.counts[expert] == method.experts.class_counts[expert].sum() == images > 0
    assert int(method.experts_in_use) == 2
    assert learner.evaluate(stream.domains[3]).accuracy == 1
    again, other = learner_of(stream, budget=2, rank=2)
    again.restore(method.state(), 4, 4)
    images = method.backbone.prepare(stream.domains[0].test.images)
    with torch.no_grad():
        assert torch.equal(other.eval()(images), method.eval()(images))


def test_without_adaptation_the_base_reads_the_plain_network(stream: Stream) -> None:
    learner, method = learner_of(stream, adapt=False)
    learner.learn(stream.domains[0])
    assert not method.base_residual.any()
    images = prepared(learner, stream)
    with torch.no_grad():
        plain = read(method.backbone.vit, images, method.network.read_blocks)
        found = method._base(method.network.trunk(images))
        torch.testing.assert_close(found.double(), method.base(plain).exp(), atol=1e-5, rtol=1e-4)


def test_experts_are_calibrated_on_validation_images(stream: Stream) -> None:
    heads, sharpness = [], []
    for calibrate in (False, True):
        learner, method = learner_of(stream, calibrate=calibrate)
        progress = learner.learn(stream.domains[0])
        heads.append(method.experts.weight[0])
        sharpness.append(progress.ended["sharpness"])
        assert torch.equal(method.experts.weight[1:], torch.zeros_like(method.experts.weight[1:]))
    assert sharpness[0] == 1
    torch.testing.assert_close(heads[1], heads[0] * sharpness[1])
    assert 0.01 < sharpness[1] < 100
    assert sharpness[1] != 1


def test_what_is_stored_is_listed(learned: Learner) -> None:
    method, assets = experts_of(learned), learned.stored()
    experts = 3 * method.experts.bytes_each
    state = method.state().items()
    sums = sum(v.nbytes for name, v in state if name.startswith(("base.", "gate.")))
    assert sum(asset.bytes for asset in assets) == sums + experts
    assert "3" in next(asset.name for asset in assets if asset.bytes == experts)


def test_predictions_name_the_nearest_domain(learned: Learner, stream: Stream) -> None:
    for domain in stream.domains[:3]:
        found = learned.predict(domain.test.images)
        assert found.domains == [domain.name] * len(domain.test)
        assert found.domain_probabilities is not None
        assert found.domain_probabilities.shape == (len(domain.test), 3)
        torch.testing.assert_close(found.domain_probabilities.sum(1), torch.ones(len(domain.test)))


def test_other_methods_name_no_domain(stream: Stream) -> None:
    learner = Learner(stream.classes, method="ridge", device="cpu", **TINY_VIT)
    learner.learn(stream.domains[0])
    found = learner.predict(stream.domains[0].test.images)
    assert found.domains is None
    assert found.domain_probabilities is None


def test_merged_domains_share_their_probability(stream: Stream) -> None:
    learner, method = learner_of(stream, budget=2, rank=2)
    for domain in stream.domains[:3]:
        learner.learn(domain)
    found = learner.predict(stream.domains[0].test.images).domain_probabilities
    assert found is not None
    torch.testing.assert_close(found.sum(1), torch.ones(len(found)))
    one, other = (i for i, e in enumerate(method.expert_of) if (method.expert_of == e).sum() == 2)
    assert torch.equal(found[:, one], found[:, other])


@torch.no_grad()
def test_balance_takes_the_class_frequencies_out(learned: Learner, stream: Stream) -> None:
    method, images = experts_of(learned), prepared(learned, stream)
    state = method.state()
    counts = torch.tensor([[50.0, 5.0, 0.0], [1.0, 1.0, 30.0], [7.0, 7.0, 7.0]])
    state["experts.class_counts"] = state["experts.class_counts"].clone()
    state["experts.class_counts"][:3] = counts
    answers = []
    for balance in (0.0, 0.5, 1.0):
        other, changed = learner_of(stream, rank=2, balance=balance)
        other.restore(state, 3, 3)
        answers.append(changed.eval()(images).softmax(1))
    domains = method.domain_probabilities(images)
    prior = domains @ ((counts + 1) / (counts + 1).sum(1, keepdim=True))
    for share, found in zip((0.5, 1.0), answers[1:], strict=True):
        expected = answers[0] / prior**share
        torch.testing.assert_close(found, expected / expected.sum(1, keepdim=True))


def test_a_class_that_an_expert_never_saw_is_left_to_the_base(stream: Stream) -> None:
    learner, method = learner_of(stream)
    first, second = stream.domains[0], stream.domains[1]
    seen = first.train.labels != 2
    known = replace(first, train=Split(first.train.images[seen], first.train.labels[seen]))
    with pytest.warns(MissingClassWarning):
        learner.learn(known)
    assert (learner.predict(first.test.images).probabilities[:, 2] < 1e-6).all()
    learner.learn(second)
    found = learner.predict(first.test.images)
    assert found.domains == [first.name] * len(first.test)
    images = method.backbone.prepare(first.test.images)
    with torch.no_grad():
        base = method._base(method.network.trunk(images))
    torch.testing.assert_close(found.probabilities[:, 2], base[:, 2], atol=1e-5, rtol=1e-3)


def test_a_state_without_names_of_domains_predicts(stream: Stream) -> None:
    learner, method = learner_of(stream)
    learner.learn(stream.domains[0])
    other, _ = learner_of(stream)
    other.restore(method.state(), 1, 1)
    assert other.predict(stream.domains[0].test.images[:2]).domains == ["domain 1"] * 2
