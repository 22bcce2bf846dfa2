"""A classifier in closed form with calibrated probabilities, from sums over all domains."""

from __future__ import annotations

import torch
from torch import Tensor

from sodap.methods.parts.evidence import EvidenceRidge, solve_by_evidence
from sodap.methods.parts.second_moments import SecondMoments, with_constant
from sodap.methods.parts.temperature import RunningSharpness, fit_sharpness
from sodap.preserving.exact import ExactModule

CALIBRATION_IMAGES = 4096
"""Images of a domain that the temperature is fitted on, at most."""


class RidgeClassifier(ExactModule):
    """Ridge regression on one-hot labels: penalty by evidence, softmax at a fitted temperature.

    It cannot forget, because its sums over several domains are those over all their images at once.
    The temperature is fitted on the scores that a domain's images get from a head without them.
    """

    head: Tensor  # [D+1, C]

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.sums = SecondMoments(classes, width)
        self.sharpness = RunningSharpness()
        self.register_buffer("head", torch.zeros(width + 1, classes, dtype=torch.float64))

    @property
    def counts(self) -> Tensor:
        """Number of images of each class `[C]`."""
        return self.sums.cross[-1]

    @property
    def images(self) -> int:
        """Number of images that the sums are over."""
        return int(self.sums.count)

    @torch.no_grad()
    def learn(self, features: Tensor, labels: Tensor) -> dict[str, float]:
        """Add the features `[N, D]` of a domain with labels `[N]`, and solve."""
        self.sums.update(features, labels)
        solved = self.solve()
        if int((self.counts > 0).sum()) < 2:
            return {"penalty": solved.penalty}  # one class is certain at any temperature
        some = slice(CALIBRATION_IMAGES)
        scores = solved.leave_one_out(features[some], labels[some])
        fitted = fit_sharpness(self._masked(scores), labels[some])
        self.sharpness.add(fitted, len(scores))
        return {"penalty": solved.penalty, "sharpness": fitted}

    @torch.no_grad()
    def solve(self) -> EvidenceRidge:
        """Solve for the head again, after a change of the sums."""
        solved = solve_by_evidence(self.sums)
        self.head.copy_(solved.head)
        return solved

    @torch.no_grad()
    def clear(self) -> None:
        """Forget everything, before the features change."""
        for buffer in self.buffers():
            buffer.zero_()

    def linear(self) -> tuple[Tensor, Tensor]:
        """The logits as a linear layer: weight `[C, D]` and bias `[C]`."""
        head = self.head * self.sharpness.value
        return head[:-1].T, head[-1]

    def forward(self, features: Tensor) -> Tensor:
        """Logarithms of the probabilities `[B, C]`; -inf for a class without an image."""
        with torch.autocast(features.device.type, enabled=False):
            scores = with_constant(features.double()) @ self.head
            return (self.sharpness.value * self._masked(scores)).log_softmax(1)

    def _masked(self, scores: Tensor) -> Tensor:
        return scores.masked_fill(self.counts == 0, -torch.inf)
