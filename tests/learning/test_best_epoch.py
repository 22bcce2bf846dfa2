"""Early stopping: the best epoch by the score that the method names is restored."""

from __future__ import annotations

import pytest
import torch
from tests.conftest import TINY_VIT, make_split
from torch import Tensor, nn

from sodap.learning import Learner, Training
from sodap.methods import Batch, Method, MethodConfig
from sodap.streams import Domain, Split

# Ten validation images, nine of class 0. After each epoch: how many of class 0 are predicted right,
# and whether the one of class 1 is.
SCRIPT = [(9, False), (6, True), (8, True), (9, False), (3, True), (9, True)]


class Scripted(Method):
    """Predicts what the script says after each epoch."""

    name = "scripted"
    family = "test"
    trains = "a number"
    stores = "nothing"
    Config = MethodConfig

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.steps = nn.Parameter(torch.zeros(()))

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return {"ce": 0 * self.steps}

    def after_step(self) -> None:
        self.steps.data.add_(1)

    def forward(self, images: Tensor) -> Tensor:
        right, found = SCRIPT[int(self.steps) - 1]
        classes = torch.tensor([int(row >= right) for row in range(9)] + [int(found)])
        return nn.functional.one_hot(classes[: len(images)], 2).float()


class Confident(Scripted):
    """All predictions are right; how confident it is depends on the epoch, from 0."""

    selects_by = "nll"
    margins = (1.0, 0.5, 2.0, 3.0, 2.5, 2.5, 2.5)

    def forward(self, images: Tensor) -> Tensor:
        logits = torch.tensor([[0.0, 0.0]] * 10)
        logits[:9, 0] = logits[9, 1] = self.margins[int(self.steps)]
        return logits[: len(images)]


class Untouched(Confident):
    """It is best before it is trained."""

    keeps_start = True
    margins = (3.0, 0.5, 2.0, 2.0, 2.5, 2.5, 2.5)


@pytest.mark.parametrize(
    ("method", "patience", "best", "epochs"),
    [
        (Scripted, 1, 3, 4),
        (Scripted, 2, 3, 5),
        (Scripted, 9, 6, 6),
        (Confident, 2, 3, 5),
        (Untouched, 2, 0, 2),
        (Untouched, 9, 0, 6),
    ],
)
def test_the_best_epoch_is_restored(
    method: type[Scripted], patience: int, best: int, epochs: int
) -> None:
    training = Training(epochs=6, patience=patience, batch_size=4)
    learner = Learner(
        ("no", "yes"), method="sequential", training=training, device="cpu", **TINY_VIT
    )
    old = learner.method
    learner.method = method(old.backbone, 2, old.randomness, MethodConfig())
    val = make_split(10, 2, 0.0, 1)
    domain = Domain(
        "one",
        train=make_split(4, 2, 0.0, 0),
        val=Split(val.images, torch.tensor([0] * 9 + [1])),
        test=val,
    )
    progress = learner.learn(domain)
    assert (progress.best_epoch, progress.epoch) == (best, epochs)
    assert int(learner.method.steps) == best
