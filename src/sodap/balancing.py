"""Uncertainty weighting: loss weights that are learned with the model, section 3.4 of the paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from sodap.errors import SodapError

LOWEST, HIGHEST = -3.0, 6.0
"""Bounds of s: weights from 20, so that gradients stay bounded, down to 0.0025, nearly off."""


class UncertaintyWeighting(nn.Module):
    """Total loss Σ e^{-s_i} L_i + s_i, equation (21), with one learned log-variance s_i per loss.

    For a constant loss the minimum is s_i = log L_i, a weight of 1 / L_i.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self.names = tuple(names)
        if not self.names or len(set(self.names)) != len(self.names):
            raise SodapError(f"weighted losses need distinct names, got {list(self.names)}")
        self.log_variance = nn.Parameter(torch.zeros(len(self.names)))  # s [losses]

    def forward(self, losses: Mapping[str, Tensor]) -> Tensor:
        """Return the weighted total of scalar losses, exactly one for each name."""
        if set(losses) != set(self.names):
            raise SodapError(f"expected the losses {sorted(self.names)}, but got {sorted(losses)}")
        s = self.log_variance
        values = torch.stack([losses[name].to(s.dtype) for name in self.names])
        if values.ndim != 1:
            raise SodapError(f"each loss must be a scalar, got shape {list(values.shape[1:])}")
        return (torch.exp(-s) * values + s).sum()

    @torch.no_grad()
    def project(self) -> None:
        """Clamp s to its bounds; call this after each optimiser step.

        A clamp inside the loss has zero gradient beyond the bound, so that an s that stepped over
        it could never come back.
        """
        self.log_variance.clamp_(LOWEST, HIGHEST)

    def weights(self) -> dict[str, Tensor]:
        """Return the current weight e^{-s} of each loss."""
        return dict(zip(self.names, torch.exp(-self.log_variance.detach()), strict=True))

    @torch.no_grad()
    def reset(self) -> None:
        """Set all weights to 1."""
        self.log_variance.zero_()
