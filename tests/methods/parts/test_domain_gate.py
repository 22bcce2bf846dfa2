"""The gate against densities of Gaussians (scipy) and shrinkage (scikit-learn)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal  # type: ignore[import-untyped]
from sklearn.covariance import OAS
from torch import Tensor

from sodap.backbones import FrozenViT
from sodap.methods.parts.domain_gate import DomainGate, shrunk
from sodap.methods.residual_experts.network import TrunkAndBranches
from sodap.streams import load_stream

WIDTH, CAPACITY = 6, 5


def domain(seed: int, shift: float, count: int = 60) -> Tensor:
    """Correlated features of different scales, shifted along one direction."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(99))
    drawn = torch.randn(count, WIDTH, generator=generator) @ mixing
    return (drawn + shift) * 10.0 ** torch.linspace(-1, 1, WIDTH)


def gate_of(*domains: Tensor) -> DomainGate:
    gate = DomainGate(CAPACITY, WIDTH)
    for number, features in enumerate(domains):
        gate.learn(features, number)
    return gate


def test_scores_are_densities_of_gaussians_with_one_covariance() -> None:
    domains = [domain(seed, 2.0 * seed, 40 + seed).double().numpy() for seed in range(3)]
    gate = gate_of(*map(torch.from_numpy, domains))
    within = np.concatenate([each - each.mean(0) for each in domains])
    scale = within.std(0)
    standardised = OAS(assume_centered=True).fit(within / scale).covariance_
    covariance = standardised * np.outer(scale, scale)
    fresh = domain(7, 2.5).double()
    expected = np.stack(
        [multivariate_normal(each.mean(0), covariance).logpdf(fresh.numpy()) for each in domains]
    ).T
    found = gate.scores(fresh)[:, :3].numpy()
    np.testing.assert_allclose(np.diff(found), np.diff(expected), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("count", "width"), [(40, 6), (5, 12)])
def test_shrinkage_is_that_of_scikit_learn(count: int, width: int) -> None:
    rows = np.random.default_rng(0).normal(size=(count, width)) * np.linspace(0.1, 3, width)
    oracle = OAS().fit(rows)
    covariance = np.cov(rows.T, bias=True)
    found = shrunk(torch.tensor(covariance), torch.tensor(float(count)))
    np.testing.assert_allclose(found, oracle.covariance_)


def test_domains_on_a_line_are_told_apart() -> None:
    gate = gate_of(*(domain(seed, 3.0 * seed, 200) for seed in range(4)))
    for number in range(4):
        found = gate(domain(10 + number, 3.0 * number))
        assert (found.argmax(1) == number).double().mean() > 0.9
        torch.testing.assert_close(found.exp().sum(1), torch.ones(60, dtype=torch.float64))
        assert (found[:, 4] == -torch.inf).all()


def test_probabilities_are_calibrated() -> None:
    gate = gate_of(domain(0, 0.0, 500), domain(1, 0.4, 500))
    found = gate(torch.cat([domain(2, 0.0, 2000), domain(3, 0.4, 2000)])).exp()
    truth = torch.arange(2).repeat_interleave(2000)
    right = (found.argmax(1) == truth).double().mean()
    assert 0.55 < right < 0.95
    assert abs(found.amax(1).mean() - right) < 0.05


def test_the_order_of_domains_does_not_matter() -> None:
    domains = [domain(seed, 2.0 * seed) for seed in range(3)]
    one = gate_of(*domains)
    two = DomainGate(CAPACITY, WIDTH)
    for number in (2, 0, 1):
        two.learn(domains[number], number)
    torch.testing.assert_close(one.head, two.head)


def test_merged_domains_are_learned_as_one() -> None:
    domains = [domain(seed, shift) for seed, shift in enumerate((0.0, 9.0, 1.0, 5.0))]
    gate = gate_of(*domains)
    assert gate.nearest_pair() == (0, 2)
    gate.merge(0, 2)
    gate.move(3, 2)
    gate.solve()
    expected = gate_of(torch.cat([domains[0], domains[2]]), domains[1], domains[3])
    torch.testing.assert_close(gate.head, expected.head)
    torch.testing.assert_close(gate.counts, expected.counts)


@pytest.mark.parametrize("count", [1, 2])
def test_domains_of_few_images(count: int) -> None:
    gate = gate_of(domain(0, 0.0, count), domain(1, 9.0, count))
    assert gate(domain(2, 9.0))[:, :2].isfinite().all()
    assert gate.nearest_pair() == (0, 1)


@torch.no_grad()
def test_domains_of_the_digits_are_seen_in_the_first_blocks(micro: FrozenViT) -> None:
    network = TrunkAndBranches(micro, share=0.25, read_blocks=4)
    assert network.length == 2

    def statistics(images: Tensor) -> Tensor:
        return network.statistics(network.trunk(micro.prepare(images)))

    domains = load_stream("digits").domains
    gate = DomainGate(len(domains), network.statistics_width)
    for number, each in enumerate(domains):
        gate.learn(statistics(each.train.images[:200]), number)
    for number, each in enumerate(domains):
        found = gate(statistics(each.test.images[:100])).argmax(1)
        assert (found == number).double().mean() >= 0.95
