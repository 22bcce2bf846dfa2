"""p(d | x): which of the known domains an image is from, in closed form from sums over all domains.

Linear discriminant analysis: a domain is a Gaussian around its mean, and all share one covariance.
Ridge regression on the same sums would not do. If the means of three domains lie on a line (the
same images with more and more of a colour), its scores for the middle one are never the largest.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sodap.methods.parts.second_moments import SecondMoments, with_constant
from sodap.methods.parts.temperature import RunningSharpness, fit_sharpness
from sodap.preserving.exact import ExactModule

ROUNDING = 1e-9
"""Variance below this share of a feature's mean square is rounding error of the sums."""


class DomainGate(ExactModule):
    """Probabilities of at most `capacity` domains, all equally frequent beforehand.

    The temperature is fitted on one half of a new domain's images, with the other half in the sums.
    """

    head: Tensor  # [D+1, E]
    whitening: Tensor  # [D, D]; x · whitening has the identity as covariance within a domain

    def __init__(self, capacity: int, width: int) -> None:
        super().__init__()
        self.sums = SecondMoments(capacity, width)
        self.sharpness = RunningSharpness()
        self.register_buffer("head", torch.zeros(width + 1, capacity, dtype=torch.float64))
        self.register_buffer("whitening", torch.eye(width, dtype=torch.float64))

    @property
    def counts(self) -> Tensor:
        """Number of images of each domain `[E]`."""
        return self.sums.cross[-1]

    @property
    def means(self) -> Tensor:
        """Mean features of each domain `[E, D]`; zero for one without an image."""
        return (self.sums.cross[:-1] / self.counts.clamp(min=1)).T

    @torch.no_grad()
    def learn(self, features: Tensor, domain: int) -> dict[str, float]:
        """Add the features `[N, D]` of a domain, in random order, and solve."""
        labels = torch.full((len(features),), domain, device=features.device)
        half = len(features) // 2
        others = bool((self.counts > 0).sum() > (self.counts[domain] > 0).int())
        if not half or not others:  # one domain is certain at any temperature
            self.sums.update(features, labels)
            self.solve()
            return {}
        self.sums.update(features[:half], labels[:half])
        self.solve()
        scores = self.scores(features[half:])
        fitted = fit_sharpness(scores, labels[half:])
        self.sharpness.add(fitted, len(scores))
        self.sums.update(features[half:], labels[half:])
        self.solve()
        right = (scores.argmax(1) == domain).double().mean()
        return {"sharpness": fitted, "recognised": float(right)}

    @torch.no_grad()
    def solve(self) -> None:
        """Solve for the scores, after a change of the sums."""
        means, count = self.means, self.sums.count.clamp(min=1)
        power = self.sums.gram.diagonal()[:-1] / count
        covariance = (self.sums.gram[:-1, :-1] - (means.T * self.counts) @ means) / count
        variance = covariance.diagonal()
        scale = variance.where(variance > ROUNDING * power, power.clamp(min=ROUNDING)).rsqrt()
        factor = torch.linalg.cholesky(shrunk(covariance * torch.outer(scale, scale), count))
        identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
        inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
        self.whitening.copy_(scale.unsqueeze(1) * inverse.T)
        white = means @ self.whitening  # [E, D]
        self.head[:-1] = self.whitening @ white.T
        self.head[-1] = -white.square().sum(1) / 2

    def scores(self, features: Tensor) -> Tensor:
        """Log-likelihoods of each domain, up to a constant: `[B, E]`; -inf for an unused one."""
        scores = with_constant(features.double()) @ self.head
        return scores.masked_fill(self.counts == 0, -torch.inf)

    def forward(self, features: Tensor) -> Tensor:
        """Logarithms of p(d | x): `[B, D] -> [B, E]`."""
        with torch.autocast(features.device.type, enabled=False):
            return (self.sharpness.value * self.scores(features)).log_softmax(1)

    @torch.no_grad()
    def nearest_pair(self) -> tuple[int, int]:
        """The two domains whose means are nearest to each other, in units of their spread."""
        white = self.means @ self.whitening
        distances = (white.unsqueeze(0) - white.unsqueeze(1)).norm(dim=2)
        unused = self.counts == 0
        distances[unused] = distances[:, unused] = torch.inf
        distances.fill_diagonal_(torch.inf)
        one, other = divmod(int(distances.argmin()), len(distances))
        return one, other

    @torch.no_grad()
    def merge(self, one: int, other: int) -> None:
        """Make domain `other` part of domain `one`: the sums over both are sums over one."""
        self.sums.cross[:, one] += self.sums.cross[:, other]
        self.sums.cross[:, other] = 0

    @torch.no_grad()
    def move(self, source: int, target: int) -> None:
        """Give a domain the number `target`, which is free."""
        self.sums.cross[:, target] = self.sums.cross[:, source]
        self.sums.cross[:, source] = 0


def shrunk(covariance: Tensor, count: Tensor) -> Tensor:
    """Oracle approximating shrinkage (Chen et al., 2010) of a covariance `[D, D]` over `count`."""
    width = len(covariance)
    mean = covariance.diagonal().mean()
    square = covariance.square().mean()
    above = square + mean.square()
    below = (count + 1) * (square - mean.square() / width)
    share = torch.where(below > 0, above / below, 1.0).clamp(max=1)
    spherical = mean.clamp(min=ROUNDING) * torch.eye(width, dtype=mean.dtype, device=mean.device)
    return (1 - share) * covariance + share * spherical
