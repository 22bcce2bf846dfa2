"""SLCA: the Gaussians of past features, and the alignment of the head."""

from __future__ import annotations

import torch
from torch import Tensor

from sodap.methods.parts.gaussians import FeatureGaussians
from sodap.methods.slca import SLCA
from sodap.streams import Stream
from tests.methods.common import drawn, learner_of


def test_draws_have_the_moments_of_the_features() -> None:
    mixing = drawn(4, 4)
    features = drawn(2000, 4, seed=1) @ mixing + torch.tensor([5.0, 0.0, -3.0, 1.0])
    labels = torch.arange(2000) % 2
    features[labels == 1] *= 0.5
    gaussians = FeatureGaussians(4)
    gaussians.learn(features, labels)
    gaussians.learn(features[:1], labels[:1])  # a single image is a class, too
    assert gaussians.label.tolist() == [0, 1, 0]
    found, classes = gaussians.draw(60_000, torch.Generator().manual_seed(2))
    assert abs(float((classes == 0).float().mean()) - 2 / 3) < 0.02
    own, expected = found[classes == 1], features[labels == 1].float()
    torch.testing.assert_close(own.mean(0), expected.mean(0), atol=0.05, rtol=0.05)
    torch.testing.assert_close(torch.cov(own.T), torch.cov(expected.T), atol=0.1, rtol=0.1)


def test_later_stages_align_the_head_and_nothing_else(stripes: Stream) -> None:
    learner, model = learner_of(SLCA)
    trained: list[dict[str, Tensor]] = []

    def keep(*_: object) -> None:
        trained.append({name: value.clone() for name, value in model.state().items()})

    learner.learn(stripes.domains[0], on_epoch=keep)
    for name in ("head.weight", "head.bias"):
        assert torch.equal(model.state()[name], trained[0][name])
    learner.learn(stripes.domains[1], on_epoch=keep)
    second = model.state()
    changed = {name for name, value in trained[1].items() if not torch.equal(value, second[name])}
    assert {"head.weight", "head.bias"} <= changed
    assert not {name for name in changed if name.startswith("network.")}
    assert model.gaussians.label.tolist() == [0, 1, 2] * 2
    assert all(parameter.grad is None for parameter in model.head.parameters())


def test_alignment_makes_a_head_fit_all_gaussians(stripes: Stream) -> None:
    learner, model = learner_of(SLCA, align_epochs=50)
    for domain in stripes.domains:
        learner.learn(domain)
    with torch.no_grad():
        model.head.weight.normal_(generator=torch.Generator().manual_seed(0))
    model._align()
    features, labels = model.gaussians.draw(600, torch.Generator().manual_seed(0))
    assert (model.head(features).argmax(1) == labels).float().mean() > 0.9


def test_the_network_learns_slowly() -> None:
    _, model = learner_of(SLCA)
    rates = {name: model.lr_factor(name) for name, _ in model.named_parameters()}
    assert {rate for name, rate in rates.items() if name.startswith("network.")} == {0.01}
    assert rates["head.weight"] == 1.0
