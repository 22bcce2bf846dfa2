"""Domain selection by autoencoders."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from sodap.methods.parts.domain_selector import DomainSelector
from tests.methods.common import drawn


def separable() -> list[Tensor]:
    """Three domains `[60, 16]`, each around its own centre."""
    centres = 2 * drawn(3, 16, seed=3)
    return [(centre + 0.5 * drawn(60, 16, seed=4 + d)).float() for d, centre in enumerate(centres)]


def test_selector_finds_the_domain_of_each_image() -> None:
    selector, domains = DomainSelector(16, 6), separable()
    before = torch.random.get_rng_state()
    for number, features in enumerate(domains):
        kept = selector.encoder.clone()
        error = selector.learn(features[:40], 150, torch.Generator().manual_seed(number))
        assert error < features.sigmoid().var(0).mean() * 2
        assert torch.equal(selector.encoder[:number], kept)
    assert torch.equal(torch.random.get_rng_state(), before)
    unseen = torch.cat([features[40:] for features in domains])
    truth = torch.arange(3).repeat_interleave(20)
    assert (selector.nearest(unseen) == truth).float().mean() > 0.95

    # Image by image it is the same; as a batch, the majority decides.
    single = torch.cat([selector.nearest(feature[None]) for feature in unseen])
    assert torch.equal(single, selector.nearest(unseen))
    mixed = unseen[:21]
    assert set(selector.nearest(mixed).tolist()) == {0, 1}
    assert set(selector.nearest(mixed, batchwise=True).tolist()) == {0}


def test_selector_errors_against_a_loop() -> None:
    selector = DomainSelector(16, 6)
    for number, features in enumerate(separable()):
        selector.learn(features, 3, torch.Generator().manual_seed(number))
    features = drawn(5, 16, seed=8).float()
    found = selector.errors(features)
    for b, t in np.ndindex(5, 3):
        x = 1 / (1 + np.exp(-features[b].numpy().astype(float)))
        code = np.maximum(x @ selector.encoder[t].numpy() + selector.encoder_bias[t, 0].numpy(), 0)
        out = code @ selector.decoder[t].numpy() + selector.decoder_bias[t, 0].numpy()
        expected = np.mean((1 / (1 + np.exp(-out)) - x) ** 2)
        assert float(found[b, t]) == pytest.approx(expected, rel=1e-4)
