"""What is lost or changed when an image file becomes 8-bit RGB, for `sodap data check`."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image, ImageCms

from sodap.streams.dicom import DicomImage, is_dicom
from sodap.streams.images import ORIENTATION, UPRIGHT, check_size, open_image

CONVERSIONS = {
    "deep": "grey with more than 8 bits: scaled by one range",
    "dicom": "DICOM without a window: scaled by one range",
    "window": "DICOM with a window of its own: scaled by it",
    "deep colour": "colour with 16 bits: the upper 8 are used",
    "transparent": "with transparent pixels: they become black",
    "colours": "in CMYK or another colour space: converted to RGB",
    "palette": "with a palette: its colours are used",
    "turned": "turned upright, as their EXIF data say",
    "profile": "with a colour profile other than sRGB: it is ignored",
}
"""Kind of conversion -> what the check says about the images that need it."""

_RGB_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "La", "RGBa")


def conversions(content: bytes, path: Path) -> tuple[str, ...]:
    """The conversions that an image needs, as keys of `CONVERSIONS`; the file must be readable."""
    if is_dicom(content, path):
        dicom = DicomImage(content, path, check_size)
        if not dicom.is_grey:
            return ()
        if dicom.window is None:
            return ("dicom",)
        return ("window",) if "WindowCenter" in dicom.data else ()
    with open_image(content) as image:
        mode = image.mode
        found = {
            "deep": mode.startswith("I"),
            "deep colour": not mode.startswith("I") and _bits(image, content) > 8,
            "transparent": image.has_transparency_data and _is_transparent(image),
            "colours": not mode.startswith("I") and mode not in _RGB_MODES,
            "palette": mode in ("P", "PA"),
            "turned": image.getexif().get(ORIENTATION, 1) in UPRIGHT,
            "profile": _has_other_profile(image),
        }
    return tuple(kind for kind, needed in found.items() if needed)


def _bits(image: Image.Image, content: bytes) -> int:
    """Bits of a channel, for PNG and TIFF; other formats have 8."""
    if image.format == "PNG":
        return content[24]
    if image.format == "TIFF":
        return int(max(image.tag_v2.get(258, (8,))))  # type: ignore[attr-defined]
    return 8


def _is_transparent(image: Image.Image) -> bool:
    lowest, _ = image.convert("RGBA").getchannel("A").getextrema()
    return int(lowest) < 255  # type: ignore[arg-type]


def _has_other_profile(image: Image.Image) -> bool:
    profile = image.info.get("icc_profile")
    if not profile:
        return False
    try:
        name = ImageCms.getProfileDescription(ImageCms.ImageCmsProfile(io.BytesIO(profile)))
    except (ImageCms.PyCMSError, OSError):
        return True
    return "srgb" not in name.lower()
