"""Image files into uint8 tensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from sodap.errors import SodapError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")

# A file of a few bytes can claim to be an image of many gigabytes.
MAX_PIXELS = 200_000_000


def read_image(path: Path, size: int) -> Tensor:
    """The centre square of an image file, `[3, size, size]` uint8, upright and in RGB."""
    try:
        with Image.open(path) as file:
            if file.width * file.height > MAX_PIXELS:
                raise SodapError(
                    f"{path} has {file.width} x {file.height} pixels; "
                    f"at most {MAX_PIXELS // 1_000_000} million are read"
                )
            upright = ImageOps.exif_transpose(file).convert("RGB")
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, FileNotFoundError):
            raise SodapError(f"there is no image at {path}") from error
        raise SodapError(f"{path} cannot be read as an image") from error
    square = ImageOps.fit(upright, (size, size), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(square)).permute(2, 0, 1).contiguous()


def read_images(paths: Sequence[Path], size: int) -> Tensor:
    """`[N, 3, size, size]` uint8."""
    images = torch.empty(len(paths), 3, size, size, dtype=torch.uint8)
    for index, path in enumerate(paths):
        images[index] = read_image(path, size)
    return images
