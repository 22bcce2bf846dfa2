"""Which domain an image comes from, told by how well each domain's autoencoder rebuilds it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sodap.freezing import resize_on_load

RATE, BATCH = 0.01, 64  # of the autoencoder's own Adam; the rate falls to zero along a cosine


class DomainSelector(nn.Module):
    """One small autoencoder a domain: an image belongs where its feature is rebuilt best.

    The autoencoder of a domain sees the features of that domain alone, squashed into (0, 1) by a
    sigmoid, and never changes again. Nothing is kept of the features themselves.
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
        """The tensors of one autoencoder."""
        width, bottleneck = self.width, self.bottleneck
        return {
            "encoder": (width, bottleneck),
            "encoder_bias": (1, bottleneck),
            "decoder": (bottleneck, width),
            "decoder_bias": (1, width),
        }

    @property
    def domains(self) -> int:
        """T, the domains met so far."""
        return len(self.encoder)

    def learn(self, features: Tensor, steps: int, generator: torch.Generator) -> float:
        """Train one more autoencoder on features `[N, D]` of a new domain; its error at the end.

        The generator must live on the device of the features.
        """
        squashed = features.float().sigmoid()
        with torch.enable_grad(), torch.autocast(features.device.type, enabled=False):
            weights = [weight.requires_grad_() for weight in self._drawn(squashed, generator)]
            optimizer = torch.optim.Adam(weights, RATE)
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

    def _drawn(self, like: Tensor, generator: torch.Generator) -> list[Tensor]:
        """A fresh autoencoder `[1, ...]`, uniform within ±1/√fan-in."""
        spans = {"encoder": self.width, "decoder": self.bottleneck}
        return [
            like.new_empty(1, *shape).uniform_(-1, 1, generator=generator)
            / spans[name.removesuffix("_bias")] ** 0.5
            for name, shape in self._shapes().items()
        ]

    @torch.no_grad()
    def errors(self, features: Tensor) -> Tensor:
        """Features `[B, D]` -> mean squared error of every domain's autoencoder `[B, T]`."""
        with torch.autocast(features.device.type, enabled=False):
            weights = (self.encoder, self.encoder_bias, self.decoder, self.decoder_bias)
            return _errors(features.float().sigmoid(), *weights).T

    def nearest(self, features: Tensor, *, together: bool = False) -> Tensor:
        """Features `[B, D]` -> the number of a domain, from 0, for each of them `[B]`.

        `together` lets the batch decide as a whole, which is right only if all of it comes from
        one domain: something that nobody tells a classifier.
        """
        errors = self.errors(features)
        if together:
            errors = errors.mean(0, keepdim=True).expand_as(errors)
        return errors.argmin(1)


def _errors(
    squashed: Tensor, encoder: Tensor, encoder_bias: Tensor, decoder: Tensor, decoder_bias: Tensor
) -> Tensor:
    """`[B, D]` through T autoencoders -> `[T, B]`."""
    code = (squashed @ encoder + encoder_bias).relu()
    rebuilt = (code @ decoder + decoder_bias).sigmoid()
    return (rebuilt - squashed).square().mean(-1)
