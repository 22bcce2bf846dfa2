"""Image files to uint8 arrays and tensors: upright, RGB, square.

Conversions to 8-bit RGB: transparent pixels become black, like the borders of fundus and
dermoscopy images. Deep grey images (16-bit files, DICOM without a window) are scaled by the
`GreyRanges` of the stream or model. A DICOM image is rescaled, windowed with its own window and
inverted if it is MONOCHROME1. 16-bit colours keep their upper 8 bits. Colour profiles are ignored.

A file that cannot be read without guessing is refused with a SodapError, for example one with
several pages or with floating-point values.
"""

from __future__ import annotations

import io
import os
import stat
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from sodap.errors import SodapError, UnreadableImageError
from sodap.streams.dicom import DicomImage, is_dicom
from sodap.streams.grey import NO_RANGES, GreyRanges, Kind, RangeMeter, Values
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

ORIENTATION = 0x0112
"""EXIF tag of the orientation."""

UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> the transform that turns the image upright."""

# Other formats cannot hold grey values with more than 8 bits.
_MAYBE_DEEP = (".png", ".tif", ".tiff", ".dcm")

# Warning filters are process-wide, so only one thread at a time may change them.
_warnings_lock = threading.Lock()


def read_image(path: Path, size: int, ranges: GreyRanges | None = None) -> Tensor:
    """Read the centre square of an image file as `[3, size, size]` uint8, upright and in RGB."""
    return read_images([path], size, ranges)[0]


def read_images(paths: Sequence[Path], size: int, ranges: GreyRanges | None = None) -> Tensor:
    """Read the centre squares of image files as `[N, 3, size, size]` uint8.

    `ranges` says which values of deep grey images are black and white; by default it is measured
    on these files.
    """
    import torch  # slow to import, and not needed to check or cache files

    ranges = measure_ranges(paths) if ranges is None else ranges
    images = np.empty((len(paths), 3, size, size), dtype=np.uint8)
    for index, path in enumerate(paths):
        images[index] = decode_image(read_file(path), path, size, ranges)
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
        raise UnreadableImageError(f"there is no image at {printable(path)}") from error
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


def decode_image(
    content: bytes, path: Path, size: int, ranges: GreyRanges = NO_RANGES
) -> NDArray[np.uint8]:
    """Decode the content of a file to `[3, size, size]`; `path` is used in messages."""
    path = Path(printable(path))
    with _sodap_errors(content, path):
        if is_dicom(content, path):
            dicom = DicomImage(content, path, check_size)
            whole = (
                _from_grey(dicom.grey(ranges))
                if dicom.is_grey
                else Image.fromarray(dicom.colours())
            )
            square = _square(whole, size)
        else:
            square = _decode(content, path, size, ranges)
    return np.ascontiguousarray(np.asarray(square).transpose(2, 0, 1))


@contextmanager
def _sodap_errors(content: bytes, path: Path) -> Iterator[None]:
    """Turn what decoders raise into a SodapError."""
    if not content:
        raise _unreadable(path, "the file is empty")
    try:
        yield
    except SodapError:
        raise
    except Image.DecompressionBombError as error:
        raise _too_large(path) from error
    except UnidentifiedImageError as error:
        raise _unreadable(path, "its format is unknown; save it as PNG or JPEG") from error
    except Exception as error:  # decoders raise almost anything on damaged bytes
        raise _unreadable(path, "it is damaged, truncated or of an unsupported kind") from error


def _decode(content: bytes, path: Path, size: int, ranges: GreyRanges) -> Image.Image:
    with open_image(content) as file:
        _check_pages(file, path)
        # Decoding a JPEG at a half, a quarter or an eighth is much faster. Twice the target size
        # leaves the last reduction to the better resampling below.
        file.draft("RGB", (2 * size, 2 * size))
        file.load()
        square = _square(_rgb(file, path, ranges), size)
        # Turn the small square, which is cheap. Read the orientation last: Pillow turns TIFF files
        # while loading, and some files store it behind the pixels.
        turn = UPRIGHT.get(file.getexif().get(ORIENTATION, 1))
    return square if turn is None else square.transpose(turn)


def _check_pages(file: Image.Image, path: Path) -> None:
    check_size(path, file.width, file.height)
    pages = getattr(file, "n_frames", 1)
    # MPO: a phone's JPEG may carry a preview or a depth map, which is not a page.
    if pages > 1 and file.format != "MPO":
        raise UnreadableImageError(
            f"{path} holds {pages} pages; save the page to use as a separate file"
        )


def open_image(content: bytes) -> Image.Image:
    """Open without Pillow's warning about large images; `MAX_PIXELS` is checked instead."""
    with _warnings_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return Image.open(io.BytesIO(content))


def _rgb(image: Image.Image, path: Path, ranges: GreyRanges) -> Image.Image:
    if image.mode == "F":
        raise UnreadableImageError(
            f"{path} holds floating-point values without a known range; save it with 8 or 16 bits"
        )
    if image.mode.startswith("I"):
        return _from_grey(ranges.scale("deep", _deep_values(image, path), path))
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "black"), rgba).convert("RGB")
    return image.convert("RGB")


def _deep_values(image: Image.Image, path: Path) -> Values:
    """Values `[H, W]` of a grey image with more than 8 bits."""
    values = np.asarray(image)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65_535:
        raise UnreadableImageError(
            f"{path} holds values from {low} to {high}; save it with 8 or 16 bits (0 to 65535)"
        )
    return values


def _from_grey(values: NDArray[np.floating[Any]]) -> Image.Image:
    """RGB image from grey values `[H, W]` between 0 (black) and 1 (white)."""
    return Image.fromarray(np.rint(values * 255).astype(np.uint8)).convert("RGB")


def _square(image: Image.Image, size: int) -> Image.Image:
    """Cut out the centre square and resize it."""
    side = min(image.width, image.height)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    box = (left, top, left + side, top + side)
    return image.resize((size, size), Image.Resampling.BICUBIC, box, reducing_gap=3)


# ------------------------------------------------------------------ ranges of grey values


def measure_ranges(
    paths: Sequence[Path], on_progress: Callable[[int, int], None] | None = None
) -> GreyRanges:
    """The ranges of the deep grey images among these files; unreadable files are left out."""
    meter = RangeMeter()

    def measure(path: Path) -> None:
        found = _grey_values(path)
        if found is not None:
            meter.add(*found)

    candidates = [path for path in paths if path.suffix.lower() in _MAYBE_DEEP]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for done, _ in enumerate(pool.map(measure, candidates), start=1):
            if on_progress is not None:
                on_progress(done, len(candidates))
    return meter.ranges()


def _grey_values(path: Path) -> tuple[Kind, Values] | None:
    """The values of a deep grey image; None for other images and unreadable files."""
    try:
        content = read_file(path)
        with _sodap_errors(content, path):
            if is_dicom(content, path):
                dicom = DicomImage(content, path, check_size)
                needed = dicom.is_grey and dicom.window is None
                return ("dicom", dicom.grey_values()) if needed else None
            with open_image(content) as file:
                if not file.mode.startswith("I"):
                    return None
                _check_pages(file, path)
                return "deep", _deep_values(file, path)
    except SodapError:  # a run refuses it when it is decoded
        return None


# ------------------------------------------------------------------ limits


def check_size(path: Path, wide: int, high: int) -> None:
    """Raise an error for an image with too many or too few pixels."""
    if wide * high > MAX_PIXELS:
        raise _too_large(path)
    if min(wide, high) < MIN_SIDE:
        raise UnreadableImageError(
            f"{path} has {wide} x {high} pixels; images need at least {MIN_SIDE} pixels per side"
        )


def _too_large(path: Path) -> UnreadableImageError:
    return UnreadableImageError(
        f"{path} has more than the limit of {MAX_PIXELS // 1_000_000} million pixels; "
        f"save a smaller copy"
    )


def _unreadable(path: Path, why: str) -> UnreadableImageError:
    return UnreadableImageError(f"{printable(path)} cannot be read as an image: {why}")
