"""DICOM files: pixels, or grey values that still need a range."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sodap.errors import SodapError, UnreadableImageError
from sodap.streams.grey import GreyRange, GreyRanges, Values

CheckSize = Callable[[Path, int, int], None]


def is_dicom(content: bytes, path: Path) -> bool:
    return path.suffix.lower() == ".dcm" or content[128:132] == b"DICM"


class DicomImage:
    """An opened DICOM file with one frame."""

    def __init__(self, content: bytes, path: Path, check_size: CheckSize) -> None:
        self.path = path
        try:
            dicom = importlib.import_module("pydicom")
            self._pixels = importlib.import_module("pydicom.pixels")
        except ImportError as error:
            raise SodapError(
                f"{path} is a DICOM file; run `pip install 'pydicom>=3'` to read it"
            ) from error
        try:
            self.data: Any = dicom.dcmread(io.BytesIO(content))
        except dicom.errors.InvalidDicomError as error:
            raise _unreadable(path, "it is not a DICOM file") from error
        if "PixelData" not in self.data:
            raise _unreadable(path, "it is a DICOM file without pixels")
        check_size(path, self.data.Columns, self.data.Rows)
        if int(self.data.get("NumberOfFrames") or 1) > 1:
            raise UnreadableImageError(
                f"{path} holds {self.data.NumberOfFrames} frames; "
                f"save the frame to use as a separate file"
            )
        self.kind: str = self.data.PhotometricInterpretation
        self.is_grey = self.kind in ("MONOCHROME1", "MONOCHROME2")

    @property
    def window(self) -> GreyRange | None:
        """The range that the file itself says: its window, or 0 to 255 for 8 bits; else None."""
        if "WindowCenter" in self.data and "WindowWidth" in self.data:
            # A file may have several windows; the first is the preferred one.
            pair = (self.data.WindowCenter, self.data.WindowWidth)
            centre, width = (float(np.ravel(value)[0]) for value in pair)
            return GreyRange(centre - width / 2, centre + width / 2 - 1)
        plain = self.data.BitsAllocated == 8 and "RescaleSlope" not in self.data
        return GreyRange(0, 255) if plain else None

    def grey_values(self) -> Values:
        """Values `[H, W]` of a grey image, in the unit of the device."""
        values: Values = self._pixels.apply_modality_lut(self._pixel_array(), self.data)
        return values

    def grey(self, ranges: GreyRanges) -> NDArray[np.float32]:
        """Grey values `[H, W]` between 0 (black) and 1 (white)."""
        values, window = self.grey_values(), self.window
        if window is None:
            scaled = ranges.scale("dicom", values, self.path)
        else:
            scaled = window.scale(values)
        return 1 - scaled if self.kind == "MONOCHROME1" else scaled

    def colours(self) -> NDArray[np.uint8]:
        """RGB values `[H, W, 3]`."""
        values = self._pixel_array()
        if values.dtype == np.uint8 and values.ndim == 3:  # converted to RGB by pydicom
            return values
        raise UnreadableImageError(
            f"{self.path} is a DICOM file of kind {self.kind}; save it as grey or 8-bit RGB"
        )

    def _pixel_array(self) -> NDArray[Any]:
        try:
            values: NDArray[Any] = self._pixels.pixel_array(self.data)
        except (RuntimeError, NotImplementedError) as error:
            raise SodapError(
                f"{self.path} cannot be read as an image: its compression needs "
                f"`pip install pylibjpeg[all]`"
            ) from error
        return values


def _unreadable(path: Path, why: str) -> UnreadableImageError:
    return UnreadableImageError(f"{path} cannot be read as an image: {why}")
