"""Image files to uint8 arrays and tensors: upright, RGB, square.

Conversions to 8-bit RGB: transparent pixels become black, like the borders of fundus and
dermoscopy images. A 16-bit grey image is divided by the largest value of its bit depth, which is
taken from its brightest pixel, so 12-bit data in a 16-bit file stay bright. A DICOM image is
rescaled, windowed with its own window (or its full range) and inverted if it is MONOCHROME1.
Colour profiles are ignored.

A file that cannot be read without guessing is refused with a SodapError, for example one with
several pages or with floating-point values.
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
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from sodap.errors import SodapError
from sodap.streams.names import printable

if TYPE_CHECKING:
    from torch import Tensor

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".dcm")

MAX_PIXELS = 175_000_000
"""Larger images are refused: a file of a few bytes can claim to hold many gigabytes."""

MAX_BYTES = 1 << 30
"""Larger files are refused; twice the size of `MAX_PIXELS` uncompressed 8-bit RGB pixels."""

MIN_SIDE = 8
"""Images with fewer pixels per side are refused."""

# EXIF orientation -> the transform that turns the image upright.
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

# Warning filters are process-wide, so only one thread at a time may change them.
_warnings_lock = threading.Lock()


def read_image(path: Path, size: int) -> Tensor:
    """Read the centre square of an image file as `[3, size, size]` uint8, upright and in RGB."""
    return read_images([path], size)[0]


def read_images(paths: Sequence[Path], size: int) -> Tensor:
    """Read the centre squares of image files as `[N, 3, size, size]` uint8."""
    import torch  # slow to import, and not needed to check or cache files

    images = np.empty((len(paths), 3, size, size), dtype=np.uint8)
    for index, path in enumerate(paths):
        images[index] = decode_image(read_file(path), path, size)
    return torch.from_numpy(images)


def read_file(path: Path) -> bytes:
    """Read a regular file of at most `MAX_BYTES`.

    Pipes and devices are refused, since reading from them may block or never end.
    """
    try:
        # Non-blocking: opening a pipe would otherwise wait for a writer.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            return _read_all(handle, path)
        finally:
            os.close(handle)
    except (FileNotFoundError, ValueError) as error:  # ValueError: null byte in the name
        raise SodapError(f"there is no image at {printable(path)}") from error
    except OSError as error:
        raise _unreadable(path, (error.strerror or str(error)).lower()) from error


def _read_all(handle: int, path: Path) -> bytes:
    """Check and read an open file; the path itself may point to another file by now."""
    status = os.fstat(handle)
    if stat.S_ISDIR(status.st_mode):
        raise _unreadable(path, "it is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise _unreadable(path, "it is a pipe or a device, not a file")
    if status.st_size > MAX_BYTES:
        raise _unreadable(path, f"it is larger than the limit of {MAX_BYTES >> 20} MiB")
    pieces, left = [], status.st_size + 1
    while left and (piece := os.read(handle, left)):
        pieces.append(piece)
        left -= len(piece)
    if left != 1:
        raise SodapError(f"{printable(path)} changed while it was being read; start again")
    return b"".join(pieces)


def decode_image(content: bytes, path: Path, size: int) -> NDArray[np.uint8]:
    """Decode the content of a file to `[3, size, size]`; `path` is used in messages."""
    path = Path(printable(path))
    if not content:
        raise _unreadable(path, "the file is empty")
    try:
        if path.suffix.lower() == ".dcm" or content[128:132] == b"DICM":
            square = _square(_decode_dicom(content, path), size)
        else:
            square = _decode(content, path, size)
    except SodapError:
        raise
    except Image.DecompressionBombError as error:
        raise _too_large(path) from error
    except UnidentifiedImageError as error:
        raise _unreadable(path, "its format is unknown; save it as PNG or JPEG") from error
    except Exception as error:  # decoders raise almost anything on damaged bytes
        raise _unreadable(path, "it is damaged, truncated or of an unsupported kind") from error
    return np.ascontiguousarray(np.asarray(square).transpose(2, 0, 1))


def _decode(content: bytes, path: Path, size: int) -> Image.Image:
    with _open(content) as file:
        _check_size(path, file.width, file.height)
        pages = getattr(file, "n_frames", 1)
        # MPO: a phone's JPEG may carry a preview or a depth map, which is not a page.
        if pages > 1 and file.format != "MPO":
            raise SodapError(f"{path} holds {pages} pages; save the page to use as a separate file")
        # Decoding a JPEG at a half, a quarter or an eighth is much faster. Twice the target size
        # leaves the last reduction to the better resampling below.
        file.draft("RGB", (2 * size, 2 * size))
        file.load()
        square = _square(_rgb(file, path), size)
        # Turn the small square, which is cheap. Read the orientation last: Pillow turns TIFF files
        # while loading, and some files store it behind the pixels.
        turn = _UPRIGHT.get(file.getexif().get(_ORIENTATION, 1))
    return square if turn is None else square.transpose(turn)


def _open(content: bytes) -> Image.Image:
    """Open without Pillow's warning about large images; `MAX_PIXELS` is checked instead."""
    with _warnings_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return Image.open(io.BytesIO(content))


def _rgb(image: Image.Image, path: Path) -> Image.Image:
    if image.mode == "F":
        raise SodapError(
            f"{path} holds floating-point values without a known range; save it with 8 or 16 bits"
        )
    if image.mode.startswith("I"):
        return _from_deep_grey(np.asarray(image), path)
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "black"), rgba).convert("RGB")
    return image.convert("RGB")


def _from_deep_grey(values: NDArray[Any], path: Path) -> Image.Image:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65_535:
        raise SodapError(
            f"{path} holds values from {low} to {high}; save it with 8 or 16 bits (0 to 65535)"
        )
    white = 2 ** max(8, high.bit_length()) - 1
    return _from_grey(values / np.float32(white))


def _from_grey(values: NDArray[np.floating[Any]]) -> Image.Image:
    """RGB image from grey values `[H, W]` between 0 (black) and 1 (white)."""
    return Image.fromarray(np.rint(values * 255).astype(np.uint8)).convert("RGB")


def _square(image: Image.Image, size: int) -> Image.Image:
    """Cut out the centre square and resize it."""
    side = min(image.width, image.height)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    box = (left, top, left + side, top + side)
    return image.resize((size, size), Image.Resampling.BICUBIC, box, reducing_gap=3)


def _decode_dicom(content: bytes, path: Path) -> Image.Image:
    try:
        dicom = importlib.import_module("pydicom")
        pixels = importlib.import_module("pydicom.pixels")
    except ImportError as error:
        raise SodapError(
            f"{path} is a DICOM file; run `pip install 'pydicom>=3'` to read it"
        ) from error
    try:
        data = dicom.dcmread(io.BytesIO(content))
    except dicom.errors.InvalidDicomError as error:
        raise _unreadable(path, "it is not a DICOM file") from error
    if "PixelData" not in data:
        raise _unreadable(path, "it is a DICOM file without pixels")
    _check_size(path, data.Columns, data.Rows)
    if int(data.get("NumberOfFrames") or 1) > 1:
        raise SodapError(
            f"{path} holds {data.NumberOfFrames} frames; save the frame to use as a separate file"
        )
    try:
        values: NDArray[Any] = pixels.pixel_array(data)
    except (RuntimeError, NotImplementedError) as error:
        raise _unreadable(path, "its compression needs `pip install pylibjpeg[all]`") from error
    kind = data.PhotometricInterpretation
    if kind in ("MONOCHROME1", "MONOCHROME2"):
        grey = _apply_window(pixels.apply_modality_lut(values, data), data).clip(0, 1)
        return _from_grey(1 - grey if kind == "MONOCHROME1" else grey)
    if values.dtype == np.uint8 and values.ndim == 3:  # converted to RGB by pydicom
        return Image.fromarray(values)
    raise SodapError(f"{path} is a DICOM file of kind {kind}; save it as grey or 8-bit RGB")


def _apply_window(pixels: NDArray[Any], data: Any) -> NDArray[np.float64]:
    """Map pixels `[H, W]` so that the window's black is 0 and its white is 1."""
    values = pixels.astype(np.float64)
    if "WindowCenter" not in data or "WindowWidth" not in data:
        black, span = values.min(), values.max() - values.min()
    else:
        # A file may have several windows; the first is the preferred one.
        centre, width = (float(np.ravel(v)[0]) for v in (data.WindowCenter, data.WindowWidth))
        black, span = centre - width / 2, width - 1
    windowed: NDArray[np.float64] = (values - black) / max(span, 1e-9)
    return windowed


def _check_size(path: Path, wide: int, high: int) -> None:
    if wide * high > MAX_PIXELS:
        raise _too_large(path)
    if min(wide, high) < MIN_SIDE:
        raise SodapError(
            f"{path} has {wide} x {high} pixels; images need at least {MIN_SIDE} pixels per side"
        )


def _too_large(path: Path) -> SodapError:
    return SodapError(
        f"{path} has more than the limit of {MAX_PIXELS // 1_000_000} million pixels; "
        f"save a smaller copy"
    )


def _unreadable(path: Path, why: str) -> SodapError:
    return SodapError(f"{printable(path)} cannot be read as an image: {why}")
