"""Ranges of grey values: which values of deep grey images become black and white.

Grey images with more than 8 bits, and DICOM images without a window, do not say which values are
black and white. Two images are comparable only if both are scaled alike. So a stream has one
`GreyRanges`, measured on its training images, and a model keeps it for the images to come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sodap.errors import UnreadableImageError

Kind = Literal["deep", "dicom"]
"""Grey images with more than 8 bits, and DICOM images without a window."""

Values = NDArray[Any]
"""Grey values `[H, W]` as a file holds them."""

RARE = 1e-4
"""Share of pixels that may be beyond the bit depth: defective ("hot") pixels are rarer.

In small images this would be less than a pixel, so one pixel an image may always be.
"""

PERCENTILES = (0.1, 99.9)
"""Black and white of DICOM images without a window, in per cent of all pixels."""

_DICOM_PIXELS = 10_000  # taken of each image, evenly spread


class MissingRangeError(UnreadableImageError):
    """An image has deep grey values, but no range for them is known."""


@dataclass(frozen=True)
class GreyRange:
    """The values that become black and white; values beyond them are cut off."""

    black: float
    white: float

    def scale(self, values: Values) -> NDArray[np.float32]:
        """Grey values between 0 (black) and 1 (white)."""
        span = max(self.white - self.black, 1e-9)
        scaled = (values.astype(np.float32) - np.float32(self.black)) / np.float32(span)
        return scaled.clip(0, 1)

    def __str__(self) -> str:
        return f"{self.black:g} to {self.white:g}"


@dataclass(frozen=True)
class GreyRanges:
    """The range of each kind of deep grey image; None if the stream has no such image."""

    deep: GreyRange | None = None
    dicom: GreyRange | None = None

    def scale(self, kind: Kind, values: Values, path: Path) -> NDArray[np.float32]:
        """Grey values between 0 and 1; an error if the range of this kind is unknown."""
        found: GreyRange | None = getattr(self, kind)
        if found is None:
            what = "more than 8 bits" if kind == "deep" else "no window (DICOM)"
            raise MissingRangeError(
                f"{path} is a grey image with {what}, but no training image is, so its range of "
                f"values is unknown; save it with 8 bits"
            )
        return found.scale(values)

    def to_json(self) -> dict[str, list[float]]:
        pairs = {"deep": self.deep, "dicom": self.dicom}
        return {kind: [each.black, each.white] for kind, each in pairs.items() if each}

    @classmethod
    def from_json(cls, content: Mapping[Kind, Sequence[float]]) -> GreyRanges:
        return cls(**{kind: GreyRange(*map(float, pair)) for kind, pair in content.items()})

    def with_missing(self, other: GreyRanges) -> GreyRanges:
        """These ranges, and those of `other` for kinds that have none here."""
        return GreyRanges(self.deep or other.deep, self.dicom or other.dicom)

    def exceeded_by(self, measured: GreyRanges) -> list[str]:
        """Sentences about images whose values are beyond these ranges."""
        pairs = ((self.deep, measured.deep), (self.dicom, measured.dicom))
        return [
            f"grey values from {found} are cut off at {own}, the range that was used before"
            for own, found in pairs
            if own and found and (found.white > own.white or found.black < own.black)
        ]


NO_RANGES = GreyRanges()
"""The ranges of a stream without deep grey images."""


class RangeMeter:
    """Collects the values of training images; threads may share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.counts = np.zeros(65_536, dtype=np.int64)
        self.images = 0
        self.samples: list[NDArray[np.float64]] = []

    def add(self, kind: Kind, values: Values) -> None:
        if kind == "deep":
            counts = np.bincount(values.ravel(), minlength=65_536)
            with self._lock:
                self.counts += counts
                self.images += 1
        else:
            every = max(1, values.size // _DICOM_PIXELS)
            self.samples.append(values.ravel()[::every].astype(np.float64))

    def ranges(self) -> GreyRanges:
        """The bit depth of 16-bit files, and percentiles of DICOM images."""
        deep = dicom = None
        if total := self.counts.sum():
            beyond = total - self.counts.cumsum()  # pixels above each value
            allowed = max(RARE * total, self.images)
            bits = next(b for b in range(8, 17) if beyond[2**b - 1] <= allowed)
            deep = GreyRange(0, 2**bits - 1)
        if self.samples:
            low, high = np.percentile(np.concatenate(self.samples), PERCENTILES)
            dicom = GreyRange(round(float(low), 3), round(float(high), 3))
        return GreyRanges(deep, dicom)
