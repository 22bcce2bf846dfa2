"""Ridge regression with the penalty that the data themselves make most probable.

With a Gaussian prior on the weights, least squares has a marginal likelihood (the evidence), which
depends on the penalty and on sums over the data only. Its maximum chooses a penalty without any
validation image. The intercept is not penalised: it is integrated out, with the data centred.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sodap.methods.parts.second_moments import SecondMoments

DECADES = range(-6, 4)
"""Powers of ten of the penalties to try first, in units of the mean variance sum of a feature."""


@dataclass(frozen=True)
class EvidenceRidge:
    """A solved ridge regression."""

    head: Tensor
    """W `[D+1, C]` in float64; the last row is the intercept."""
    penalty: float
    """Penalty in units of the mean sum of squares of a centred feature."""
    mean: Tensor
    """Mean of the features `[D]`."""
    factor: Tensor
    """Lower Cholesky factor of the centred second moments plus the penalty `[D, D]`."""
    count: Tensor
    """Number of images, `[]`."""

    def leave_one_out(self, features: Tensor, labels: Tensor) -> Tensor:
        """Scores `[B, C]` that images `[B, D]` of the sums get from a head learned without them.

        Exact for one image at a time: ŷ without i = (ŷ_i - h_i y_i) / (1 - h_i), with the leverage
        h_i of image i.
        """
        centred = features.double() - self.mean
        scores = centred @ self.head[:-1] + (self.mean @ self.head[:-1] + self.head[-1])
        root = torch.linalg.solve_triangular(self.factor, centred.T, upper=False)
        leverage = (root.square().sum(0) + 1 / self.count).clamp(max=1 - 1e-6).unsqueeze(1)
        target = F.one_hot(labels, self.head.shape[1]).double()
        without: Tensor = (scores - leverage * target) / (1 - leverage)
        return without


@torch.no_grad()
def solve_by_evidence(sums: SecondMoments) -> EvidenceRidge:
    """Solve for the penalty with the largest evidence, to a quarter of a decade."""
    centred = CentredMoments.of(sums)
    tried = {float(decade): centred.evidence(10.0**decade) for decade in DECADES}
    for step in (0.5, 0.25):
        best = max(tried, key=tried.__getitem__)
        for near in (best - step, best + step):
            tried[near] = centred.evidence(10.0**near)
    # Without an image of a second class nothing speaks for any penalty: the largest is the safest.
    return centred.solve(10.0 ** max(sorted(tried, reverse=True), key=tried.__getitem__))


@dataclass(frozen=True)
class CentredMoments:
    """Sums over centred features and targets."""

    gram: Tensor  # [D, D]
    cross: Tensor  # [D, C]
    square: Tensor  # Σ y² of each target [C]
    mean: Tensor  # of the features [D]
    target: Tensor  # mean of the targets [C]
    count: Tensor  # []
    energy: Tensor  # mean Σ x² of a feature, the unit of the penalty, []

    @classmethod
    def of(cls, sums: SecondMoments) -> CentredMoments:
        """Centre the sums of features and one-hot labels."""
        count = sums.count.clamp(min=1)
        mean, target = sums.gram[-1, :-1] / count, sums.cross[-1] / count
        gram = sums.gram[:-1, :-1] - count * torch.outer(mean, mean)
        cross = sums.cross[:-1] - count * torch.outer(mean, target)
        square = sums.cross[-1] - count * target.square()  # one-hot: Σ y² = Σ y
        energy = gram.diagonal().mean()
        unit = torch.where(energy > 1e-12 * sums.gram.diagonal()[:-1].mean(), energy, 1.0)
        return cls(gram, cross, square, mean, target, count, unit)

    def factor(self, penalty: float) -> Tensor:
        """Cholesky factor of the second moments plus the penalty."""
        added = (penalty * self.energy).expand(len(self.gram))
        result: Tensor = torch.linalg.cholesky(self.gram + torch.diag(added))
        return result

    def evidence(self, penalty: float) -> float:
        """Logarithm of the marginal likelihood up to a constant, summed over the targets.

        The variance of the noise of each target is at its most probable value.
        """
        factor = self.factor(penalty)
        root = torch.linalg.solve_triangular(factor, self.cross, upper=False)
        varies = self.square > 1e-9  # a class of all images, or of none, says nothing
        left = (self.square - root.square().sum(0))[varies]  # Σ residual² + λ |w|²
        left = left.clamp(min=1e-12)
        volume = len(factor) * torch.log(penalty * self.energy) / 2 - factor.diagonal().log().sum()
        fit = -(self.count - 1) / 2 * left.log().sum()
        return float(fit + varies.sum() * volume)

    def solve(self, penalty: float) -> EvidenceRidge:
        """The regression with this penalty."""
        factor = self.factor(penalty)
        weight = torch.cholesky_solve(self.cross, factor)
        head = torch.cat([weight, (self.target - self.mean @ weight).unsqueeze(0)])
        return EvidenceRidge(head, penalty, self.mean, factor, self.count)
