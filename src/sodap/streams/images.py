"""Image files into uint8 tensors: upright, in RGB, one square size.

What is not an 8-bit RGB picture becomes one like this. Transparent parts turn black, as the borders
of fundus and dermoscopy images are. A 16-bit grey image is divided by the largest value its bits
can hold, and the bits are as many as its brightest pixel needs: 12-bit data in a 16-bit file stay
bright. A DICOM image is rescaled, seen through its own window (its full range where it has none)
and inverted where it is MONOCHROME1. Colour profiles are ignored.

What cannot be read faithfully is refused in one sentence: no guess is made about which page of
several is meant, or which value of a float image is white.
"""

from __future__ import annotations

import importlib
import io
import os
import stat
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from sodap.errors import SodapError
from sodap.streams.names import printable

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".dcm")

# A file of a few bytes can claim to be an image of many gigabytes.
MAX_PIXELS = 175_000_000

# Twice what so many pixels take where nothing is compressed and a colour has eight bits.
MAX_BYTES = 1 << 30

MIN_SIDE = 8

Fit = Literal["crop", "pad"]
"""How an image becomes a square: its centre, or all of it between black borders."""

# The EXIF orientation says how the camera was held; this is the way back.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ORIENTATION = 0x0112

# The filters for warnings belong to the whole process: one thread at a time may change them.
_opening = threading.Lock()


def read_image(path: Path, size: int, fit: Fit = "crop") -> Tensor:
    """One image file as `[3, size, size]` uint8, upright and in RGB."""
    return torch.from_numpy(decode_image(read_file(path), path, size, fit))


def read_images(paths: Sequence[Path], size: int, fit: Fit = "crop") -> Tensor:
    """`[N, 3, size, size]` uint8."""
    images = torch.empty(len(paths), 3, size, size, dtype=torch.uint8)
    for index, path in enumerate(paths):
        images[index] = read_image(path, size, fit)
    return images


def read_file(path: Path) -> bytes:
    """All of a regular file, or of one that a link leads to, up to `MAX_BYTES`.

    Anything else is refused: a pipe lets its reader wait for ever, and a device may have no end.
    """
    try:
        # Without waiting: the mere opening of a pipe takes as long as nobody writes to it.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            return _all_of(handle, path)
        finally:
            os.close(handle)
    except (FileNotFoundError, ValueError) as error:  # a name may hold a zero byte
        raise SodapError(f"there is no image at {printable(path)}") from error
    except OSError as error:
        raise _unreadable(path, (error.strerror or str(error)).lower()) from error


def _all_of(handle: int, path: Path) -> bytes:
    """What is asked here is asked of the open file: its name may be another's by now."""
    facts = os.fstat(handle)
    if stat.S_ISDIR(facts.st_mode):
        raise _unreadable(path, "is a directory")
    if not stat.S_ISREG(facts.st_mode):
        raise _unreadable(path, "it is a pipe or a device, not a file")
    if facts.st_size > MAX_BYTES:
        raise _unreadable(path, f"it has more than {MAX_BYTES >> 20} MiB, the most that is read")
    pieces, left = [], facts.st_size + 1
    while left and (piece := os.read(handle, left)):
        pieces.append(piece)
        left -= len(piece)
    if left != 1:
        raise SodapError(f"{printable(path)} was changed while it was being read; start again")
    return b"".join(pieces)


def decode_image(content: bytes, path: Path, size: int, fit: Fit = "crop") -> NDArray[np.uint8]:
    """The image that a file's `content` holds, `[3, size, size]`; `path` is for the sentences."""
    path = Path(printable(path))
    if not content:
        raise _unreadable(path, "the file is empty")
    try:
        if path.suffix.lower() == ".dcm" or content[128:132] == b"DICM":
            square = _square(_decode_dicom(content, path), size, fit)
        else:
            square = _decode(content, path, size, fit)
    except SodapError:
        raise
    except Image.DecompressionBombError as error:
        raise _too_large(path) from error
    except UnidentifiedImageError as error:
        raise _unreadable(path, "no decoder knows its format; save it as PNG or JPEG") from error
    except Exception as error:  # on damaged bytes, decoders raise almost anything
        raise _unreadable(path, "it is damaged, cut short or of a rare kind") from error
    return np.ascontiguousarray(np.asarray(square).transpose(2, 0, 1))


def _decode(content: bytes, path: Path, size: int, fit: Fit) -> Image.Image:
    with _open(content) as file:
        _check_size(path, file.width, file.height)
        pages = getattr(file, "n_frames", 1)
        # A phone's JPEG may carry a preview or a depth map behind the picture: that is no page.
        if pages > 1 and file.format != "MPO":
            raise SodapError(
                f"{path} holds {pages} pages; save the one to use as a file of its own"
            )
        # A JPEG decodes to a half, a quarter or an eighth for a fraction of the time. Twice the
        # size that is wanted leaves the last, good reduction to the resampling below.
        file.draft("RGB", (2 * size, 2 * size))
        file.load()
        square = _square(_rgb(file, path), size, fit)
        # Turning the small square costs nothing. TIFF files have turned themselves while loading,
        # and some files say how to turn only after the pixels: so this is asked last.
        turn = _UPRIGHT.get(file.getexif().get(_ORIENTATION, 1))
    return square if turn is None else square.transpose(turn)


def _open(content: bytes) -> Image.Image:
    """Without Pillow's warning about large images: `MAX_PIXELS` is the limit here."""
    with _opening, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return Image.open(io.BytesIO(content))


def _rgb(image: Image.Image, path: Path) -> Image.Image:
    if image.mode == "F":
        raise SodapError(
            f"{path} holds floating-point values, whose black and white are not known; "
            f"save it with 8 or 16 bits"
        )
    if image.mode.startswith("I"):
        return _from_deep_grey(np.asarray(image), path)
    if image.has_transparency_data:
        seen = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", seen.size, "black"), seen).convert("RGB")
    return image.convert("RGB")


def _from_deep_grey(values: NDArray[Any], path: Path) -> Image.Image:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65_535:
        raise SodapError(
            f"{path} holds values from {low} to {high}; grey images have 8 or 16 bits, 0 to 65535"
        )
    white = 2 ** max(8, high.bit_length()) - 1
    return _from_grey(values / np.float32(white))


def _from_grey(values: NDArray[np.floating[Any]]) -> Image.Image:
    """`[H, W]` from 0 (black) to 1 (white)."""
    return Image.fromarray(np.rint(values * 255).astype(np.uint8)).convert("RGB")


def _square(image: Image.Image, size: int, fit: Fit) -> Image.Image:
    bicubic, wide, high = Image.Resampling.BICUBIC, image.width, image.height
    if fit == "crop":
        side = min(wide, high)
        left, top = (wide - side) / 2, (high - side) / 2
        box = (left, top, left + side, top + side)
        return image.resize((size, size), bicubic, box, reducing_gap=3)
    scale = size / max(wide, high)
    inside = (max(1, round(wide * scale)), max(1, round(high * scale)))
    square = Image.new("RGB", (size, size), "black")
    square.paste(
        image.resize(inside, bicubic, reducing_gap=3),
        (round((size - inside[0]) / 2), round((size - inside[1]) / 2)),
    )
    return square


def _decode_dicom(content: bytes, path: Path) -> Image.Image:
    try:
        dicom = importlib.import_module("pydicom")
        pixels = importlib.import_module("pydicom.pixels")
    except ImportError as error:
        raise SodapError(
            f"{path} is a DICOM file; to read it, run: pip install 'pydicom>=3'"
        ) from error
    try:
        data = dicom.dcmread(io.BytesIO(content))
    except dicom.errors.InvalidDicomError as error:
        raise _unreadable(path, "it is no DICOM file") from error
    if "PixelData" not in data:
        raise _unreadable(path, "it is a DICOM file without pixels")
    _check_size(path, data.Columns, data.Rows)
    if int(data.get("NumberOfFrames") or 1) > 1:
        raise SodapError(
            f"{path} holds {data.NumberOfFrames} frames; save the one to use as a file of its own"
        )
    try:
        values: NDArray[Any] = pixels.pixel_array(data)
    except (RuntimeError, NotImplementedError) as error:
        raise _unreadable(path, "its compression needs: pip install pylibjpeg[all]") from error
    kind = data.PhotometricInterpretation
    if kind in ("MONOCHROME1", "MONOCHROME2"):
        grey = _through_window(pixels.apply_modality_lut(values, data), data).clip(0, 1)
        return _from_grey(1 - grey if kind == "MONOCHROME1" else grey)
    if values.dtype == np.uint8 and values.ndim == 3:  # pydicom has made it RGB
        return Image.fromarray(values)
    raise SodapError(f"{path} is a DICOM file of kind {kind}; save it as grey or 8-bit RGB")


def _through_window(pixels: NDArray[Any], data: Any) -> NDArray[np.float64]:
    """`[H, W]` with 0 where the window's black is and 1 where its white is."""
    values = pixels.astype(np.float64)
    if "WindowCenter" not in data or "WindowWidth" not in data:
        black, span = values.min(), values.max() - values.min()
    else:
        # A file may offer several windows; the first is the one its maker prefers.
        centre, width = (float(np.ravel(v)[0]) for v in (data.WindowCenter, data.WindowWidth))
        black, span = centre - width / 2, width - 1
    seen: NDArray[np.float64] = (values - black) / max(span, 1e-9)
    return seen


def _check_size(path: Path, wide: int, high: int) -> None:
    if wide * high > MAX_PIXELS:
        raise _too_large(path)
    if min(wide, high) < MIN_SIDE:
        raise SodapError(
            f"{path} has {wide} x {high} pixels; at least {MIN_SIDE} a side are needed"
        )


def _too_large(path: Path) -> SodapError:
    return SodapError(
        f"{path} has more than {MAX_PIXELS // 1_000_000} million pixels, the most that is read; "
        f"save a smaller copy"
    )


def _unreadable(path: Path, why: str) -> SodapError:
    return SodapError(f"{printable(path)} cannot be read as an image: {why}")
