"""What is needed of an image file to know it again: one read, a few kilobytes to keep."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from PIL import Image, ImageOps

from sodap.errors import SodapError
from sodap.streams.images import decode_image, read_file
from sodap.streams.names import printable

SIDE = 64
"""Side of the grey thumbnail that stands for the image."""

_KEPT = 8  # of the cosine transform, the 8 x 8 slowest waves
_WINDOW = 5  # pixels; what is smaller counts as detail
_FAINT = 4.0  # grey levels; detail weaker than this is noise
_SCALE = 40  # detail in steps that fit a byte

# Row u is a cosine of u half waves over the thumbnail's side.
_WAVES = np.cos(np.outer(np.arange(_KEPT), 2 * np.arange(SIDE) + 1) * np.pi / (2 * SIDE))


@dataclass(frozen=True)
class Fingerprint:
    digest: bytes
    """SHA-256 of the file: equal for exact copies alone."""
    shorter_side: int | None
    """None where Pillow does not know the format, as with DICOM."""
    waves: int
    """64 bits, from `perceptual_hash`."""
    detail: NDArray[np.int8]
    """`[64, 64]`, from `local_detail`."""


def read_fingerprint(path: Path) -> Fingerprint | str:
    """The fingerprint, or what is wrong with the file."""
    try:
        # What a run refuses is refused here, by the same rules and in the same words.
        content = read_file(path)
        learned = decode_image(content, path, SIDE)
    except SodapError as error:
        if isinstance(error.__cause__, FileNotFoundError):  # a run's words name the file twice
            return "cannot be read: no such file or directory"
        return str(error).removeprefix(f"{printable(path)} ")
    shorter_side = None
    try:
        with Image.open(io.BytesIO(content)) as file:
            shorter_side = min(file.size)
            # JPEG files can be decoded at a fraction of their size; others ignore this.
            file.draft("L", (2 * SIDE, 2 * SIDE))
            grey = ImageOps.exif_transpose(file).convert("L")
            small = grey.resize((SIDE, SIDE), Image.Resampling.BOX)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        small = Image.fromarray(learned.transpose(1, 2, 0)).convert("L")
    thumbnail = np.asarray(small)
    return Fingerprint(
        hashlib.sha256(content).digest(),
        shorter_side,
        perceptual_hash(thumbnail),
        local_detail(thumbnail),
    )


def read_fingerprints(
    paths: Sequence[Path], on_progress: Callable[[int, int], None] | None = None
) -> list[Fingerprint | str]:
    """In the order of `paths`; Pillow decodes outside of Python's lock, so threads do help."""
    found = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, each in enumerate(pool.map(read_fingerprint, paths), start=1):
            found.append(each)
            if on_progress is not None:
                on_progress(done, len(paths))
    return found


def perceptual_hash(thumbnail: NDArray[np.uint8]) -> int:
    """Which of the 64 slowest waves of a thumbnail `[64, 64]` are above their median.

    It hardly changes with scale, compression, brightness and contrast. The constant wave takes no
    part in the median.
    """
    waves = (_WAVES @ thumbnail.astype(np.float64) @ _WAVES.T).ravel()
    above = np.packbits(waves > np.median(waves[1:]))
    return int.from_bytes(above.tobytes(), "big")


def local_detail(thumbnail: NDArray[np.uint8]) -> NDArray[np.int8]:
    """How each pixel of `[64, 64]` differs from its surroundings, relative to their contrast.

    Photographs of two eyes have the same slow waves, and one bright rim outweighs all vessels.
    Relative to their surroundings, faint vessels count as much as the rim.
    """
    grey = thumbnail.astype(np.float64)
    mean = _blurred(grey)
    spread = np.sqrt(np.maximum(_blurred(grey**2) - mean**2, 0))
    relative = (grey - mean) / (spread + _FAINT)
    detail: NDArray[np.int8] = np.clip(np.rint(_SCALE * relative), -127, 127).astype(np.int8)
    return detail


def _blurred(image: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean over a small window around each pixel."""
    for axis in (0, 1):
        width = [(0, 0), (0, 0)]
        width[axis] = (_WINDOW // 2, _WINDOW // 2)
        windows = sliding_window_view(np.pad(image, width, mode="edge"), _WINDOW, axis=axis)
        image = windows.mean(-1)
    return image
