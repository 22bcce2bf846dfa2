from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sodap.learning import Learner
from sodap.learning.forward import WORTH_RECORDING, Forward
from sodap.streams import Stream


@pytest.fixture(scope="module")
def learner(stripes: Stream) -> Learner:
    return Learner(stripes.classes, method="sequential", device="cpu")


def records(learner: Learner, batches: int = WORTH_RECORDING, **how: Any) -> bool:
    """Whether a GPU would record: what is asked of it here needs none."""
    gpu: Any = SimpleNamespace(device=torch.device("cuda"))
    return Forward(learner.method, gpu, 4, batches, **how).records


def test_only_what_is_worth_it_and_wanted_is_recorded(
    learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert records(learner)
    assert not records(learner, record=False)
    assert not records(learner, WORTH_RECORDING - 1)
    assert not Forward(learner.method, learner.fabric, 4, WORTH_RECORDING).records
    hook = learner.method.backbone.register_forward_hook(lambda *_: None)
    assert not records(learner), "who listens would hear nothing"
    hook.remove()
    assert records(learner)
    monkeypatch.setattr(type(learner.method), "steps_alike", False)
    assert not records(learner)


def test_logits_of_batches_of_any_size(learner: Learner, stripes: Stream) -> None:
    learner.method.train()  # a prediction does not depend on how the method was left
    images = stripes.domains[0].test.images
    forward = Forward(learner.method, learner.fabric, 5, 2)
    found = torch.cat([forward(some) for some in torch.split(images, 5)])
    with torch.no_grad():
        expected = learner.method.eval()(learner.method.backbone.prepare(images))
    torch.testing.assert_close(found, expected)
    assert not found.requires_grad
