"""Tiny streams that are quick to make and to learn."""

from __future__ import annotations

import torch

from sodap.streams import Domain, Split, Stream


def tiny_split(count: int, classes: int, tint: float, seed: int, size: int = 32) -> Split:
    """Noisy images; the position of a bright stripe is the class, the tint is the domain."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    images = torch.rand(count, 3, size, size, generator=generator) * 90
    for index, label in enumerate(labels.tolist()):
        width = size // classes
        images[index, :, :, label * width : (label + 1) * width] += 120
    images[:, 0] += tint
    return Split(images.clamp(0, 255).to(torch.uint8), labels)


def tiny_stream(domains: int = 2, classes: int = 3, count: int = 24, *, size: int = 32) -> Stream:
    """A stream of stripes with `count` training images per domain; always the same images."""
    return Stream(
        "stripes",
        tuple(f"class {c}" for c in range(classes)),
        tuple(
            Domain(
                f"domain {d}",
                train=tiny_split(count, classes, 40.0 * d, 10 * d + 1, size),
                val=tiny_split(12, classes, 40.0 * d, 10 * d + 2, size),
                test=tiny_split(12, classes, 40.0 * d, 10 * d + 3, size),
            )
            for d in range(domains)
        ),
    )
