"""Gaussians of the features of each class in each domain, to draw features from."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sodap.freezing import resize_on_load

JITTER = 1e-4
"""Variance that is added to every direction, as in the release of SLCA."""


class FeatureGaussians(nn.Module):
    """One Gaussian per class and domain, each with a full covariance."""

    mean: Tensor  # [G, D]
    factor: Tensor  # lower Cholesky factors of the covariances [G, D, D]
    label: Tensor  # class of each [G]

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(0, width))
        self.register_buffer("factor", torch.zeros(0, width, width))
        self.register_buffer("label", torch.zeros(0, dtype=torch.int64))
        resize_on_load(self, "mean", "factor", "label")

    def __len__(self) -> int:
        return len(self.label)

    @torch.no_grad()
    def learn(self, features: Tensor, labels: Tensor) -> None:
        """Add a Gaussian for each class of a domain's features `[N, D]` with labels `[N]`."""
        features = features.double()
        noise = JITTER * torch.eye(features.shape[1], dtype=features.dtype, device=features.device)
        for label in torch.unique(labels):
            own = features[labels == label]
            mean = own.mean(0)
            covariance = (own - mean).T @ (own - mean) / max(len(own) - 1, 1)
            factor = torch.linalg.cholesky(covariance + noise)
            self.mean = torch.cat([self.mean, mean.to(self.mean)[None]])
            self.factor = torch.cat([self.factor, factor.to(self.factor)[None]])
            self.label = torch.cat([self.label, label[None]])

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Features `[count, D]` and labels `[count]`; all Gaussians are equally likely."""
        device = self.mean.device
        chosen = torch.randint(len(self), (count,), generator=generator, device=device)
        noise = torch.randn(
            count, self.mean.shape[1], generator=generator, device=device, dtype=self.mean.dtype
        )
        drawn = self.mean[chosen]
        for number, factor in enumerate(self.factor):  # gathered factors would fill the memory
            own = (chosen == number).unsqueeze(1)
            drawn = drawn + (noise * own) @ factor.T
        return drawn, self.label[chosen]
