"""Uncertainty weighting: the balance of the losses is learned with the model (eq. uw)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from sodap.errors import SodapError

LOWEST, HIGHEST = -3.0, 6.0  # weights from 20 (no gradient explodes) to 0.0025 (as good as off)


class UncertaintyWeighting(nn.Module):
    """Total loss Σ e^{-s_i} L_i + s_i with one learned log-variance s_i per named loss.

    For a loss that stands still the minimum is s_i = log L_i, that is a weight of 1 / L_i.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self.names = tuple(names)
        if not self.names or len(set(self.names)) != len(self.names):
            raise SodapError(f"the losses to weigh need distinct names, got {list(self.names)}")
        self.log_variance = nn.Parameter(torch.zeros(len(self.names)))  # s [losses]

    def forward(self, losses: Mapping[str, Tensor]) -> Tensor:
        """The weighted total of scalar losses, one for each name and no other."""
        if set(losses) != set(self.names):
            raise SodapError(
                f"the losses {sorted(self.names)} are weighed, but {sorted(losses)} were given"
            )
        s = self.log_variance
        values = torch.stack([losses[name].to(s.dtype) for name in self.names])
        if values.ndim != 1:
            raise SodapError(f"each loss must be a scalar, got shape {list(values.shape[1:])}")
        return (torch.exp(-s) * values + s).sum()

    @torch.no_grad()
    def project(self) -> None:
        """Bring s back into its range; call this after each step of the optimiser.

        A clamp inside the loss would have no gradient beyond the bound: an s that once stepped
        over it would stay there for good. Projected, it can turn round at any time.
        """
        self.log_variance.clamp_(LOWEST, HIGHEST)

    def weights(self) -> dict[str, Tensor]:
        """The present weight e^{-s} of each loss."""
        return dict(zip(self.names, torch.exp(-self.log_variance.detach()), strict=True))

    @torch.no_grad()
    def reset(self) -> None:
        """Start again from equal weights of 1."""
        self.log_variance.zero_()
