"""Five ways to change images, at strengths from 1 (hardly visible) to 5."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from sodap.randomness import Randomness

STRENGTHS = (1, 2, 3, 4, 5)


def brighter(images: Tensor, strength: int, noise: Tensor) -> Tensor:
    return images + 0.04 * strength


def paler(images: Tensor, strength: int, noise: Tensor) -> Tensor:
    mean = images.mean((1, 2, 3), keepdim=True)
    return mean + (images - mean) * (1 - 0.1 * strength)


def noisy(images: Tensor, strength: int, noise: Tensor) -> Tensor:
    return images + 0.02 * strength * noise


def redder(images: Tensor, strength: int, noise: Tensor) -> Tensor:
    cast = torch.tensor([1.0, 0.0, -1.0]).view(1, 3, 1, 1)
    return images + 0.02 * strength * cast


def blurred(images: Tensor, strength: int, noise: Tensor) -> Tensor:
    """A part of each pixel is replaced by the mean of its 3 x 3 neighbourhood."""
    smooth = F.avg_pool2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    return torch.lerp(images, smooth, 0.2 * strength)


CORRUPTIONS: dict[str, Callable[[Tensor, int, Tensor], Tensor]] = {
    "brighter": brighter,
    "paler": paler,
    "noisy": noisy,
    "redder": redder,
    "blurred": blurred,
}


def corrupted(images: Tensor, name: str, strength: int) -> Tensor:
    """Images `[N, 3, H, W]` (uint8) after a corruption."""
    generator = Randomness(0).generator("noise")
    noise = torch.randn(images.shape, generator=generator)
    changed = CORRUPTIONS[name](images.float() / 255, strength, noise)
    return changed.clamp(0, 1).mul(255).round().to(torch.uint8)
