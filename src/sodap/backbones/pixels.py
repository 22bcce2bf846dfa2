"""Pixels as a network wants them: a square, standardised."""

from __future__ import annotations

import torch
from torch import Tensor


def central_square(images: Tensor) -> Tensor:
    """Central square; one side is a pixel longer if it could not be centred otherwise."""
    high, wide = images.shape[-2:]
    side = min(high, wide)
    top, left = (high - side) // 2, (wide - side) // 2
    return images[..., top : high - top, left : wide - left]


def standardise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """`(images - mean) / std` for uint8 images or floats in [0, 1]; allocates one tensor."""
    if images.dtype == torch.uint8:
        return images.float().sub_(255 * mean).div_(255 * std)
    return (images - mean).div_(std)
