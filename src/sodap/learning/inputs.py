"""Images to predict, from files or tensors, as batches of RGB images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from sodap.errors import SodapError, UnreadableImageError
from sodap.execution import EVALUATION_BATCH
from sodap.streams import read_images
from sodap.streams.grey import GreyRanges

Images = Tensor | str | Path | Sequence[str | Path]
"""One image file or several, or a tensor of images."""


OnError = Literal["raise", "skip"]
"""What to do about a file that cannot be read."""


class PredictInput:
    """Batches `[B, 3, H, W]` (uint8) of the images that can be read.

    Files are read as squares of `size` pixels.
    """

    def __init__(self, images: Images, size: int, ranges: GreyRanges, on_error: OnError) -> None:
        self.images = [images] if isinstance(images, (str, Path)) else images
        if not isinstance(self.images, Tensor) and not (
            isinstance(self.images, Sequence)
            and all(isinstance(each, (str, Path)) for each in self.images)
        ):
            raise SodapError(
                "predict takes image files (paths) or a uint8 tensor [N, 3, height, width]"
            )
        if on_error not in get_args(OnError):
            raise SodapError(f"on_error takes 'raise' or 'skip', not {on_error!r}")
        self.size, self.ranges, self.on_error = size, ranges, on_error
        self.errors: dict[int, str] = {}
        """Why files could not be read, by their position; complete after the last batch."""

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[Tensor]:
        for start in range(0, len(self.images), EVALUATION_BATCH):
            some = self.images[start : start + EVALUATION_BATCH]
            batch = self._as_rgb(some) if isinstance(some, Tensor) else self._read(some, start)
            if len(batch):
                yield batch

    def aligned(self, rows: Tensor) -> Tensor:
        """Results `[readable, C]` as one row for each image; NaN for files with an error."""
        readable = [place for place in range(len(self)) if place not in self.errors]
        whole = torch.full((len(self), rows.shape[1]), torch.nan)
        whole[readable] = rows
        return whole

    def _read(self, files: Sequence[str | Path], start: int) -> Tensor:
        found = [torch.empty(0, 3, self.size, self.size, dtype=torch.uint8)]
        for position, file in enumerate(files, start=start):
            try:
                found.append(read_images([Path(file)], self.size, self.ranges))
            except UnreadableImageError as error:
                if self.on_error == "raise":
                    raise
                self.errors[position] = str(error)
        return torch.cat(found)

    def _as_rgb(self, images: Tensor) -> Tensor:
        if images.dtype == torch.uint16:
            images = _from_deep_grey(images, self.ranges)
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise SodapError(
                f"images must be uint8 [N, 3, height, width], "
                f"got {images.dtype} {list(images.shape)}"
            )
        return images


def most_probable(probabilities: Tensor, names: Sequence[str]) -> list[str | None]:
    """The name of the largest of each row `[N, C]`; None for a row of NaN."""
    unknown = probabilities.isnan().any(1).tolist()
    best = probabilities.argmax(1).tolist()
    return [None if skip else names[i] for skip, i in zip(unknown, best, strict=True)]


def _from_deep_grey(images: Tensor, ranges: GreyRanges) -> Tensor:
    """Grey images `[N, 1, H, W]` (uint16) as RGB `[N, 3, H, W]` (uint8)."""
    if images.ndim != 4 or images.shape[1] != 1:
        raise SodapError(
            f"uint16 images must be grey, [N, 1, height, width], got {list(images.shape)}"
        )
    scaled = ranges.scale("deep", images.cpu().numpy(), Path("the tensor"))
    return torch.from_numpy(np.rint(scaled * 255).astype(np.uint8)).expand(-1, 3, -1, -1)
