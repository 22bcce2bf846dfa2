"""Fingerprints of image files, a few kilobytes each, to recognise copies."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from PIL import Image, ImageOps

from sodap.errors import SodapError
from sodap.streams.conversions import conversions
from sodap.streams.grey import NO_RANGES, GreyRanges
from sodap.streams.images import decode_image, read_file
from sodap.streams.names import printable

SIDE = 64
"""Side of the grey thumbnail that is compared."""

_FREQUENCIES = 8  # of the cosine transform, per side
_WINDOW = 5  # pixels; structures within a window count as detail
_NOISE = 4.0  # grey levels; weaker detail is noise
_SCALE = 40  # scales detail to the range of int8

# Row u is a cosine with u half waves over the thumbnail's side.
_COSINES = np.cos(np.outer(np.arange(_FREQUENCIES), 2 * np.arange(SIDE) + 1) * np.pi / (2 * SIDE))


@dataclass(frozen=True)
class Fingerprint:
    """What is compared to find copies of an image file."""

    digest: bytes
    """SHA-256 of the file, for exact copies."""
    shorter_side: int | None
    """Shorter side in pixels; None for formats that Pillow does not know, such as DICOM."""
    hash: int
    """64 bits, from `perceptual_hash`."""
    detail: NDArray[np.int8]
    """`[64, 64]`, from `local_detail`."""
    conversions: tuple[str, ...] = ()
    """Keys of `sodap.streams.conversions.CONVERSIONS`."""


def read_fingerprint(path: Path, ranges: GreyRanges = NO_RANGES) -> Fingerprint | str:
    """The fingerprint of a file, or what is wrong with the file."""
    try:
        # A run reads images with the same functions, so it refuses the same files.
        content = read_file(path)
        decoded = decode_image(content, path, SIDE, ranges)
    except SodapError as error:
        if isinstance(error.__cause__, FileNotFoundError):  # this message ends with the path
            return "cannot be read: no such file or directory"
        return str(error).removeprefix(f"{printable(path)} ")
    converted = conversions(content, path)
    shorter_side = None
    small = Image.fromarray(decoded.transpose(1, 2, 0)).convert("L")
    try:
        with Image.open(io.BytesIO(content)) as file:
            shorter_side = min(file.size)
            if "deep" not in converted:  # Pillow would cut all values above 255
                # JPEG files can be decoded at a fraction of their size; others ignore this.
                file.draft("L", (2 * SIDE, 2 * SIDE))
                grey = ImageOps.exif_transpose(file).convert("L")
                small = grey.resize((SIDE, SIDE), Image.Resampling.BOX)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        pass  # a format that Pillow does not know, such as DICOM
    thumbnail = np.asarray(small)
    return Fingerprint(
        hashlib.sha256(content).digest(),
        shorter_side,
        perceptual_hash(thumbnail),
        local_detail(thumbnail),
        converted,
    )


def read_fingerprints(
    paths: Sequence[Path],
    on_progress: Callable[[int, int], None] | None = None,
    ranges: GreyRanges = NO_RANGES,
) -> list[Fingerprint | str]:
    """Fingerprints or problems in the order of `paths`, in threads: Pillow releases the GIL."""
    found = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, each in enumerate(
            pool.map(partial(read_fingerprint, ranges=ranges), paths), start=1
        ):
            found.append(each)
            if on_progress is not None:
                on_progress(done, len(paths))
    return found


def perceptual_hash(thumbnail: NDArray[np.uint8]) -> int:
    """64 bits: which low-frequency cosine coefficients of `[64, 64]` are above their median.

    The hash hardly changes with scale, compression, brightness and contrast. The median does not
    include the constant coefficient.
    """
    coefficients = (_COSINES @ thumbnail.astype(np.float64) @ _COSINES.T).ravel()
    above = np.packbits(coefficients > np.median(coefficients[1:]))
    return int.from_bytes(above.tobytes(), "big")


def local_detail(thumbnail: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Difference of each pixel of `[64, 64]` from its surroundings, relative to their contrast.

    Photographs of two eyes have similar low frequencies, and their bright rim outweighs all
    vessels. Relative to the local contrast, faint vessels count as much as the rim.
    """
    grey = thumbnail.astype(np.float64)
    mean = _box_blur(grey)
    spread = np.sqrt(np.maximum(_box_blur(grey**2) - mean**2, 0))
    relative = (grey - mean) / (spread + _NOISE)
    detail: NDArray[np.int8] = np.clip(np.rint(_SCALE * relative), -127, 127).astype(np.int8)
    return detail


def _box_blur(image: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over the window around each pixel."""
    for axis in (0, 1):
        width = [(0, 0), (0, 0)]
        width[axis] = (_WINDOW // 2, _WINDOW // 2)
        windows = sliding_window_view(np.pad(image, width, mode="edge"), _WINDOW, axis=axis)
        image = windows.mean(-1)
    return image
