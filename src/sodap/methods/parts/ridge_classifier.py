"""A classifier in closed form with calibrated probabilities, from sums over all domains."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sodap.methods.parts.evidence import EvidenceRidge, solve_by_evidence
from sodap.methods.parts.second_moments import SecondMoments, with_constant
from sodap.methods.parts.temperature import fit_sharpness
from sodap.preserving.exact import ExactModule

CALIBRATION_IMAGES = 4096
"""Images of a domain that the temperature is fitted on, at most."""


class RidgeClassifier(ExactModule):
    """Ridge regression on one-hot labels: penalty by evidence, softmax at a fitted temperature.

    It cannot forget, because its sums over several domains are those over all their images at once.
    The temperature is fitted on the scores that a domain's images get from a head without them. It
    is a mean over the domains, in the logarithm.
    """

    head: Tensor  # [D+1, C]
    log_sharpness: Tensor  # []
    calibrated: Tensor  # number of images behind the temperature, []

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.sums = SecondMoments(classes, width)
        self.register_buffer("head", torch.zeros(width + 1, classes, dtype=torch.float64))
        self.register_buffer("log_sharpness", torch.zeros((), dtype=torch.float64))
        self.register_buffer("calibrated", torch.zeros((), dtype=torch.float64))

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
        sharpness = fit_sharpness(self._masked(scores), labels[some])
        new = len(scores)
        share = new / (float(self.calibrated) + new)
        self.log_sharpness.lerp_(self.log_sharpness.new_tensor(math.log(sharpness)), share)
        self.calibrated += new
        return {"penalty": solved.penalty, "sharpness": sharpness}

    @torch.no_grad()
    def solve(self) -> EvidenceRidge:
        """Solve for the head again, after a change of the sums."""
        solved = solve_by_evidence(self.sums)
        self.head.copy_(solved.head)
        return solved

    @torch.no_grad()
    def distances(self) -> Tensor:
        """Distance of the mean features of two classes in units of their spread: `[C, C]`.

        Infinite between a class and itself, and to a class without an image.
        """
        solved = solve_by_evidence(self.sums)
        means = self.sums.cross[:-1] / self.counts.clamp(min=1)  # [D, C]
        white = torch.linalg.solve_triangular(solved.factor, means, upper=False).T
        away: Tensor = (white.unsqueeze(0) - white.unsqueeze(1)).norm(dim=2)
        known = self.counts > 0
        apart = known & known.unsqueeze(1) & ~torch.eye(len(known), dtype=torch.bool).to(known)
        return away.where(apart, torch.inf)

    @torch.no_grad()
    def merge(self, one: int, other: int) -> None:
        """Make class `other` part of class `one`; its sums are those of both."""
        for sums in (self.sums.cross, self.head):
            sums[:, one] += sums[:, other]
            sums[:, other] = 0

    @torch.no_grad()
    def move(self, source: int, target: int) -> None:
        """Give a class the number `target`, which is free."""
        for sums in (self.sums.cross, self.head):
            sums[:, target] = sums[:, source]
            sums[:, source] = 0

    @torch.no_grad()
    def clear(self) -> None:
        """Forget everything, before the features change."""
        for buffer in self.buffers():
            buffer.zero_()

    def linear(self) -> tuple[Tensor, Tensor]:
        """The logits as a linear layer: weight `[C, D]` and bias `[C]`."""
        head = self.head * self.log_sharpness.exp()
        return head[:-1].T, head[-1]

    def forward(self, features: Tensor) -> Tensor:
        """Logarithms of the probabilities `[B, C]`; -inf for a class without an image."""
        with torch.autocast(features.device.type, enabled=False):
            scores = with_constant(features.double()) @ self.head
            return (self.log_sharpness.exp() * self._masked(scores)).log_softmax(1)

    def _masked(self, scores: Tensor) -> Tensor:
        return scores.masked_fill(self.counts == 0, -torch.inf)
