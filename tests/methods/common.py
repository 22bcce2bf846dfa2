"""Helpers for the tests of methods."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

from sodap.backbones import FrozenViT
from sodap.learning import Learner, Training
from sodap.methods import Method, build_method
from sodap.randomness import Randomness
from tests.conftest import make_batch, make_split

CLASSES = 3
WIDTH, DEPTH = 128, 6
"""Of the backbone `micro`."""
HEAD = CLASSES * (WIDTH + 1)
"""Weights of a linear head."""

TRAINING = Training(epochs=1, batch_size=12, lr=0.01, weight_decay=0.5)
"""A weight decay strong enough to move whatever it should not."""

M = TypeVar("M", bound=Method)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(method: type[M], backbone: FrozenViT, **options: Any) -> M:
    """A method for three classes that has learned nothing yet."""
    built = build_method(method.name, options, backbone, CLASSES, Randomness(0))
    assert isinstance(built, method)
    return built


def learner_of(method: type[M], **options: Any) -> tuple[Learner, M]:
    """A learner of the classes of `tiny_stream`, and its method."""
    names = [f"class {index}" for index in range(CLASSES)]
    learner = Learner(names, method=method.name, options=options, training=TRAINING, device="cpu")
    assert isinstance(learner.method, method)
    return learner, learner.method


def images_of(backbone: FrozenViT, count: int, tint: float = 0.0) -> Tensor:
    """Prepared images `[count, 3, S, S]`."""
    return backbone.prepare(make_split(count, CLASSES, tint, seed=5).images)


def losses_of(method: Method, images: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """Losses of a step on `images`, whose labels are 0, 1, 2, 0, ..."""
    labels = torch.arange(len(images)) % CLASSES
    return method.losses(make_batch(method, images, labels, torch.Generator().manual_seed(seed)))


def step(method: Method, images: Tensor, optimizer: torch.optim.Optimizer, seed: int = 0) -> None:
    """One training step as in the training loop."""
    optimizer.zero_grad()
    torch.autograd.backward(method.total(losses_of(method, images, seed)))
    method.before_step()
    optimizer.step()
    method.after_step()


def decayed(method: Method) -> set[str]:
    """Names of the parameters with weight decay; checks that every trained one is in a group."""
    groups = method.parameter_groups(1e-3, 0.5)
    rates = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    trained = {name: id(p) for name, p in method.named_parameters() if p.requires_grad}
    assert sorted(rates) == sorted(trained.values())
    return {name for name, key in trained.items() if rates[key]}
