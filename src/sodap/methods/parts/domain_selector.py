"""Guess the domain of an image by how well each domain's autoencoder reconstructs its feature."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sodap.freezing import resize_on_load

LR = 0.01
"""Initial learning rate of the autoencoders (Adam, cosine decay to zero)."""

BATCH = 64


class DomainSelector(nn.Module):
    """One small autoencoder per domain; an image belongs to the domain with the smallest error.

    Autoencoders read features squashed to (0, 1) by a sigmoid. Each is trained on its own domain
    only and never changes again. No feature is kept.
    """

    encoder: Tensor  # [T, D, H]
    encoder_bias: Tensor  # [T, 1, H]
    decoder: Tensor  # [T, H, D]
    decoder_bias: Tensor  # [T, 1, D]

    def __init__(self, width: int, bottleneck: int) -> None:
        super().__init__()
        self.width, self.bottleneck = width, bottleneck
        for name, shape in self._shapes().items():
            self.register_buffer(name, torch.zeros(0, *shape))
        resize_on_load(self, *self._shapes())

    def _shapes(self) -> dict[str, tuple[int, int]]:
        """Shapes of the tensors of one autoencoder."""
        width, bottleneck = self.width, self.bottleneck
        return {
            "encoder": (width, bottleneck),
            "encoder_bias": (1, bottleneck),
            "decoder": (bottleneck, width),
            "decoder_bias": (1, width),
        }

    @property
    def domains(self) -> int:
        """T, the number of domains so far."""
        return len(self.encoder)

    def learn(self, features: Tensor, steps: int, generator: torch.Generator) -> float:
        """Train an autoencoder on the features `[N, D]` of a new domain; return its final error.

        The generator must be on the device of the features.
        """
        squashed = features.float().sigmoid()
        with torch.enable_grad(), torch.autocast(features.device.type, enabled=False):
            weights = [w.requires_grad_() for w in self._initial(squashed, generator)]
            optimizer = torch.optim.Adam(weights, LR)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
            for _ in range(steps):
                drawn = torch.randint(
                    len(squashed), (BATCH,), generator=generator, device=squashed.device
                )
                optimizer.zero_grad()
                _errors(squashed[drawn], *weights).mean().backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
        for name, weight in zip(self._shapes(), weights, strict=True):
            kept = getattr(self, name)
            setattr(self, name, torch.cat([kept, weight.detach().to(kept)]))
        return float(self.errors(features)[:, -1].mean())

    def _initial(self, like: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Initial tensors `[1, ...]` of an autoencoder, uniform within ±1/√fan-in."""
        fan_in = {"encoder": self.width, "decoder": self.bottleneck}
        return [
            like.new_empty(1, *shape).uniform_(-1, 1, generator=generator)
            / fan_in[name.removesuffix("_bias")] ** 0.5
            for name, shape in self._shapes().items()
        ]

    @torch.no_grad()
    def errors(self, features: Tensor) -> Tensor:
        """Mean squared error of every autoencoder: `[B, D] -> [B, T]`."""
        with torch.autocast(features.device.type, enabled=False):
            weights = (self.encoder, self.encoder_bias, self.decoder, self.decoder_bias)
            return _errors(features.float().sigmoid(), *weights).T

    def nearest(self, features: Tensor, *, batchwise: bool = False) -> Tensor:
        """Domain of each image, counted from 0: `[B, D] -> [B]`.

        With `batchwise` the mean error of the batch decides for all its images, which is correct
        only if they come from one domain.
        """
        errors = self.errors(features)
        if batchwise:
            errors = errors.mean(0, keepdim=True).expand_as(errors)
        return errors.argmin(1)


def _errors(
    squashed: Tensor, encoder: Tensor, encoder_bias: Tensor, decoder: Tensor, decoder_bias: Tensor
) -> Tensor:
    """Errors of T autoencoders: `[B, D] -> [T, B]`."""
    code = (squashed @ encoder + encoder_bias).relu()
    reconstruction = (code @ decoder + decoder_bias).sigmoid()
    return (reconstruction - squashed).square().mean(-1)
