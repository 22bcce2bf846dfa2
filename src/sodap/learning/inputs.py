"""Images to predict, from files or tensors, as batches of RGB images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sodap.errors import SodapError
from sodap.execution import EVALUATION_BATCH
from sodap.streams import read_images
from sodap.streams.grey import GreyRanges

Images = Tensor | str | Path | Sequence[str | Path]
"""One image file or several, or a tensor of images."""


def image_batches(images: Images, size: int, ranges: GreyRanges) -> Iterator[Tensor]:
    """Batches `[B, 3, H, W]` (uint8); files are read as squares of `size` pixels."""
    if isinstance(images, (str, Path)):
        images = [images]
    if not isinstance(images, Tensor) and not (
        isinstance(images, Sequence) and all(isinstance(each, (str, Path)) for each in images)
    ):
        raise SodapError(
            "predict takes image files (paths) or a uint8 tensor [N, 3, height, width]"
        )
    for start in range(0, len(images), EVALUATION_BATCH):
        some = images[start : start + EVALUATION_BATCH]
        if not isinstance(some, Tensor):
            some = read_images([Path(file) for file in some], size, ranges)
        if some.dtype == torch.uint16:
            some = _from_deep_grey(some, ranges)
        if some.dtype != torch.uint8 or some.ndim != 4 or some.shape[1] != 3:
            raise SodapError(
                f"images must be uint8 [N, 3, height, width], got {some.dtype} {list(some.shape)}"
            )
        yield some


def _from_deep_grey(images: Tensor, ranges: GreyRanges) -> Tensor:
    """Grey images `[N, 1, H, W]` (uint16) as RGB `[N, 3, H, W]` (uint8)."""
    if images.ndim != 4 or images.shape[1] != 1:
        raise SodapError(
            f"uint16 images must be grey, [N, 1, height, width], got {list(images.shape)}"
        )
    scaled = ranges.scale("deep", images.cpu().numpy(), Path("the tensor"))
    return torch.from_numpy(np.rint(scaled * 255).astype(np.uint8)).expand(-1, 3, -1, -1)
