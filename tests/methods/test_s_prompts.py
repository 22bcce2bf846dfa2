"""S-Prompts: which domain answers, and that no domain changes another."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sodap.backbones import FrozenViT
from sodap.methods.s_prompts import SPrompts
from sodap.streams import Stream
from tests.methods.common import WIDTH, build, images_of, learner_of

SMALL = {"length": 2, "centres": 3}


def logits_of(model: SPrompts, images: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model.eval()(images)
    return logits


def test_the_domain_of_the_nearest_centre_answers_as_it_did(stripes: Stream) -> None:
    learner, model = learner_of(SPrompts, **SMALL)
    images = torch.cat([domain.test.images for domain in stripes.domains])
    images = model.backbone.prepare(images)
    learner.learn(stripes.domains[0])
    first = logits_of(model, images)
    learner.learn(stripes.domains[1])
    both = logits_of(model, images)

    unit = model.frozen_features(images)
    unit = (unit / unit.norm(dim=1, keepdim=True)).numpy()
    away = np.abs(unit[:, None, None] - model.centres.numpy()[None]).sum(-1)  # [B, T, K]
    nearest = torch.from_numpy(away.min(2).argmin(1))
    assert torch.equal(model.nearest(images), nearest)
    assert set(nearest.tolist()) == {0, 1}
    torch.testing.assert_close(both[nearest == 0], first[nearest == 0])
    assert not torch.isclose(both[nearest == 1], first[nearest == 1]).all()


def test_a_domain_starts_anew_and_is_kept_as_it_ended(stripes: Stream) -> None:
    learner, model = learner_of(SPrompts, **SMALL)
    learner.learn(stripes.domains[0])
    assert torch.equal(model.past_prompts[0], model.prompts)
    assert torch.equal(model.past_weight[0], model.head.weight)
    kept = model.past_prompts.clone(), model.past_weight.clone(), model.centres.clone()
    starts: list[Tensor] = []
    learner.learn(
        stripes.domains[1],
        on_batch=lambda epoch, done, _: starts.append(model.prompts.detach().clone()),
    )
    assert (starts[0] - model.past_prompts[0]).abs().mean() > 0.01
    for now, then in zip((model.past_prompts, model.past_weight, model.centres), kept, strict=True):
        assert torch.equal(now[:1], then)
    assert len(model.past_bias) == 2


def test_centres_are_means_of_their_images(stripes: Stream) -> None:
    learner, model = learner_of(SPrompts, **SMALL)
    learner.learn(stripes.domains[0])
    images = model.backbone.prepare(stripes.domains[0].train.images)
    unit = torch.nn.functional.normalize(model.frozen_features(images)).double()
    centres = model.centres[0].double()
    nearest = torch.cdist(unit, centres).argmin(1)
    for number in range(3):
        torch.testing.assert_close(
            centres[number], unit[nearest == number].mean(0), atol=1e-5, rtol=1e-4
        )


def test_distances_are_sums_of_absolute_differences(micro: FrozenViT) -> None:
    """A centre that is far in one direction is nearer than one that is a little off in all."""
    model = build(SPrompts, micro, **SMALL)
    images = images_of(micro, 1)
    feature = model.unit_features(images)[0]
    far = torch.zeros(WIDTH)
    far[0] = 1.0
    model.centres = torch.stack([feature + 0.02, feature + far]).unsqueeze(1).repeat(1, 3, 1)
    assert model.nearest(images).tolist() == [1]
    assert (feature + 0.02 - feature).norm() < far.norm()
