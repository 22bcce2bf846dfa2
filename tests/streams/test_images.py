"""Reading image files: geometry, colours, refused files, DICOM."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageOps

from sodap.errors import SodapError
from sodap.streams.images import decode_image, read_file, read_image, read_images


def picture(wide: int = 60, high: int = 44, seed: int = 0) -> Image.Image:
    """A smooth picture with different colours in each corner."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    return Image.fromarray(coarse).resize((wide, high), Image.Resampling.BICUBIC)


def as_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def off(one: torch.Tensor, two: torch.Tensor) -> float:
    """The largest difference of two uint8 images."""
    return (one.float() - two.float()).abs().max().item()


def grey_levels(path: Path) -> list[int]:
    """The grey values in the centres of the left and the right half."""
    seen = read_image(path, 16)
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])
    return [int(seen[0, 8, 3]), int(seen[0, 8, 12])]


def two_halves(left: float, right: float, dtype: Any) -> NDArray[Any]:
    values = np.full((16, 16), left, dtype)
    values[:, 8:] = right
    return values


# Geometry


@pytest.mark.parametrize("shape", [(60, 44), (44, 60), (50, 50), (9, 200)])
@pytest.mark.parametrize("size", [16, 32, 100])
def test_squares_agree_with_pillow(tmp_path: Path, shape: tuple[int, int], size: int) -> None:
    image = picture(*shape)
    image.save(tmp_path / "a.png")
    bicubic = Image.Resampling.BICUBIC
    crop = ImageOps.fit(image, (size, size), bicubic)
    # Strong reductions first average pixels as integers, which may change a level or two.
    assert off(read_image(tmp_path / "a.png", size), as_tensor(crop)) <= 2


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "tiff", "webp"])
def test_images_are_upright(tmp_path: Path, orientation: int, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"turned.{suffix}"
    picture().save(path, exif=exif, lossless=True)
    with Image.open(path) as file:
        upright = ImageOps.exif_transpose(file).convert("RGB")
    upright.save(tmp_path / "upright.png")
    assert off(read_image(path, 24), read_image(tmp_path / "upright.png", 24)) <= 1


def test_a_large_jpeg_decoded_at_a_fraction_of_its_size(tmp_path: Path) -> None:
    picture(2000, 1500).save(tmp_path / "large.jpg", quality=95)
    with Image.open(tmp_path / "large.jpg") as file:
        full = ImageOps.fit(file.convert("RGB"), (64, 64), Image.Resampling.BICUBIC)
    seen = read_image(tmp_path / "large.jpg", 64)
    assert (seen.float() - as_tensor(full).float()).abs().mean() < 1


# Colours


def test_grey_bits_and_palettes(tmp_path: Path) -> None:
    Image.fromarray(two_halves(30, 200, np.uint8)).save(tmp_path / "grey.png")
    assert grey_levels(tmp_path / "grey.png") == [30, 200]
    Image.fromarray(two_halves(0, 255, np.uint8)).convert("1").save(tmp_path / "bits.png")
    assert grey_levels(tmp_path / "bits.png") == [0, 255]
    few = picture().quantize(16)
    few.save(tmp_path / "palette.png")
    few.convert("RGB").save(tmp_path / "rgb.png")
    assert torch.equal(
        read_image(tmp_path / "palette.png", 24), read_image(tmp_path / "rgb.png", 24)
    )


@pytest.mark.parametrize("suffix", ["png", "tiff", "webp"])
def test_transparent_pixels_are_black(tmp_path: Path, suffix: str) -> None:
    image = Image.new("RGBA", (20, 20), (200, 100, 50, 255))
    image.paste((255, 255, 255, 0), (0, 0, 10, 20))
    image.paste((200, 100, 50, 128), (10, 10, 20, 20))
    image.save(tmp_path / f"a.{suffix}", lossless=True)
    seen = read_image(tmp_path / f"a.{suffix}", 20)
    assert (seen[:, :, :9] == 0).all()
    assert seen[:, 2, 15].tolist() == [200, 100, 50]
    assert seen[:, 17, 15].tolist() == pytest.approx([100, 50, 25], abs=1)


def test_other_kinds_of_transparency(tmp_path: Path) -> None:
    image = Image.new("LA", (16, 16), (200, 255))
    image.paste((255, 0), (0, 0, 8, 16))
    image.save(tmp_path / "la.png")
    assert grey_levels(tmp_path / "la.png") == [0, 200]
    image = Image.new("P", (16, 16), 1)
    image.putpalette([255, 255, 255, 90, 90, 90])
    image.paste(0, (0, 0, 8, 16))
    for transparency in (0, bytes([0, 255])):
        image.save(tmp_path / "p.png", transparency=transparency)
        assert grey_levels(tmp_path / "p.png") == [0, 90]
    key = Image.fromarray(two_halves(255, 90, np.uint8)).convert("RGB")
    key.save(tmp_path / "key.png", transparency=(255, 255, 255))
    assert grey_levels(tmp_path / "key.png") == [0, 90]


def test_cmyk_becomes_rgb(tmp_path: Path) -> None:
    picture().convert("CMYK").save(tmp_path / "ink.jpg", quality=100)
    picture().save(tmp_path / "light.png")
    seen, light = (read_image(tmp_path / name, 24) for name in ("ink.jpg", "light.png"))
    assert (seen.float() - light.float()).abs().mean() < 3


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_sixteen_bits(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"deep.{suffix}"

    def levels(left: int, right: int) -> list[int]:
        Image.fromarray(two_halves(left, right, np.uint16)).save(path)
        return grey_levels(path)

    assert levels(0, 65535) == [0, 255]
    assert levels(257 * 30, 257 * 200) == [30, 200]
    assert levels(0, 4095) == [0, 255]  # 12 bits in 16
    assert levels(0, 2048) == [0, round(255 * 2048 / 4095)]
    assert levels(10, 255) == [10, 255]  # 8 bits in 16
    assert levels(0, 0) == [0, 0]
    assert levels(3, 100) == [3, 100]


def test_32_bit_integers(tmp_path: Path) -> None:
    Image.fromarray(two_halves(0, 65535, np.int32)).save(tmp_path / "i.tiff")
    assert grey_levels(tmp_path / "i.tiff") == [0, 255]
    for value in (-1, 65536):
        Image.fromarray(two_halves(0, value, np.int32)).save(tmp_path / "i.tiff")
        with pytest.raises(SodapError, match=r"i\.tiff holds values from .* 8 or 16 bits"):
            read_image(tmp_path / "i.tiff", 16)


# Refused files


def test_floats_are_refused(tmp_path: Path) -> None:
    Image.fromarray(two_halves(0, 1, np.float32)).save(tmp_path / "f.tiff")
    with pytest.raises(SodapError, match=r"f\.tiff holds floating-point values"):
        read_image(tmp_path / "f.tiff", 16)


@pytest.mark.parametrize("suffix", ["tiff", "gif", "webp", "png"])
def test_several_pages_are_refused(tmp_path: Path, suffix: str) -> None:
    pages = [picture(seed=seed) for seed in range(3)]
    path = tmp_path / f"pages.{suffix}"
    pages[0].save(path, save_all=True, append_images=pages[1:])
    with pytest.raises(SodapError, match=r"pages\.\w+ holds 3 pages; save"):
        read_image(path, 16)
    pages[0].save(path)
    assert read_image(path, 16).shape == (3, 16, 16)


def test_the_second_picture_of_an_mpo_file_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "phone.jpg"
    picture().save(path, "MPO", save_all=True, append_images=[picture(seed=1)], quality=95)
    picture().save(tmp_path / "plain.jpg", quality=95)
    assert off(read_image(path, 24), read_image(tmp_path / "plain.jpg", 24)) <= 2


def test_files_that_are_not_images(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    with pytest.raises(SodapError, match=r"there is no image at .*a\.png"):
        read_image(path, 16)
    path.write_bytes(b"")
    with pytest.raises(SodapError, match=r"a\.png cannot be read as an image: the file is empty"):
        read_image(path, 16)
    path.write_text("not a picture")
    with pytest.raises(SodapError, match="format is unknown; save it as PNG or JPEG"):
        read_image(path, 16)
    with pytest.raises(SodapError, match="cannot be read as an image: it is a directory"):
        read_image(tmp_path, 16)


@pytest.fixture
def no_hang() -> Iterator[None]:
    """Fail after a minute instead of waiting for a pipe without end."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("waiting for a pipe"))
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("no_hang")
def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "link.png").symlink_to("pipe.png")
    (tmp_path / "device.png").symlink_to("/dev/null")
    for name in ("pipe", "link", "device"):
        words = rf"{name}\.png cannot be read as an image: it is a pipe or a device"
        with pytest.raises(SodapError, match=words):
            read_image(tmp_path / f"{name}.png", 16)
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "another.png").symlink_to("file")
    assert read_file(tmp_path / "another.png") == b"content"


def test_files_above_the_size_limit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.png"
    path.touch()
    os.truncate(path, (1 << 30) + 1)  # a sparse file
    with pytest.raises(SodapError, match=r"a\.png .*: it is larger than the limit of 1024 MiB"):
        read_image(path, 16)
    monkeypatch.setattr("sodap.streams.images.MAX_BYTES", 9)
    path.write_bytes(b"9 letters")
    assert read_file(path) == b"9 letters"


@pytest.mark.parametrize("after", [b"", b"shorter", b"much longer"])
def test_a_file_that_changes_its_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bytes
) -> None:
    path, read = tmp_path / "a.png", os.read
    path.write_bytes(b"as it was")

    def changed(handle: int, count: int) -> bytes:
        path.write_bytes(after)
        return read(handle, count)

    monkeypatch.setattr(os, "read", changed)
    with pytest.raises(SodapError, match=r"a\.png changed while it was being read"):
        read_file(path)


def test_short_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Network drives may return fewer bytes than asked for."""
    path, read = tmp_path / "a.png", os.read
    path.write_bytes(b"in several pieces")
    monkeypatch.setattr(os, "read", lambda handle, count: read(handle, min(count, 5)))
    assert read_file(path) == b"in several pieces"


def test_a_null_byte_in_a_name(tmp_path: Path) -> None:
    with pytest.raises(SodapError, match=r"there is no image at .*/a\\x00\.png$"):
        read_image(tmp_path / "a\0.png", 16)


def test_errors_escape_names_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"M\xfcller.png")
    for content in (b"", b"no picture"):
        path.write_bytes(content)
        with pytest.raises(SodapError, match="cannot be read as an image") as refused:
            read_image(path, 16)
        assert str(refused.value).encode().startswith(os.fsencode(tmp_path / r"M\udcfcller.png"))
    picture().save(path)
    assert read_image(path, 16).shape == (3, 16, 16)


@pytest.mark.parametrize("suffix", ["jpg", "png", "tiff", "webp", "bmp", "gif"])
@pytest.mark.parametrize("part", [0.5, 0.9])
def test_truncated_files(tmp_path: Path, suffix: str, part: float) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (50, 50, 3), np.uint8)
    whole = io.BytesIO()
    Image.fromarray(noise).save(whole, {"jpg": "jpeg"}.get(suffix, suffix))
    content = whole.getvalue()
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(content[: int(len(content) * part)])
    with pytest.raises(SodapError, match="cannot be read as an image"):
        read_image(path, 16)


def test_too_small_and_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (7, 100)).save(path)
    with pytest.raises(SodapError, match=r"a\.png has 7 x 100 pixels; .* at least 8 pixels"):
        read_image(path, 16)
    Image.new("RGB", (8, 8)).save(path)
    assert read_image(path, 16).shape == (3, 16, 16)
    Image.new("RGB", (2000, 1001)).save(path)
    monkeypatch.setattr("sodap.streams.images.MAX_PIXELS", 2_000_000)
    with pytest.raises(SodapError, match=r"a\.png has more than the limit of 2 million pixels"):
        read_image(path, 16)


def test_limits_of_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (40, 40)).save(path)
    # Pillow would warn, which is an error in the tests.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert read_image(path, 16).shape == (3, 16, 16)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    with pytest.raises(SodapError, match="limit of 175 million pixels"):
        read_image(path, 16)


def contents() -> dict[str, bytes]:
    found = {}
    for suffix in ("jpeg", "png", "tiff", "webp", "bmp", "gif"):
        file = io.BytesIO()
        picture(24, 20).save(file, suffix)
        found[suffix] = file.getvalue()
    return found


CONTENTS = contents()


@settings(max_examples=150)
@given(st.sampled_from(sorted(CONTENTS)), st.data())
@pytest.mark.filterwarnings("ignore")
def test_damaged_bytes_give_an_image_or_a_sodap_error(suffix: str, data: st.DataObject) -> None:
    content = bytearray(CONTENTS[suffix])
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(1, len(content))) :]
    try:
        seen = decode_image(bytes(content), Path("a"), 16)
    except SodapError:
        return
    assert seen.shape == (3, 16, 16)
    assert seen.dtype == np.uint8
    assert seen.flags.c_contiguous


# DICOM


def test_dicom_without_pydicom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydicom", None)
    for name, content in (("a.dcm", b"whatever"), ("a.img", bytes(128) + b"DICM")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SodapError, match="is a DICOM file; run `pip install"):
            read_image(tmp_path / name, 16)


def write_dicom(path: Path, values: NDArray[Any], kind: str, **facts: Any) -> Path:
    pydicom = pytest.importorskip("pydicom", minversion="3")
    data = pydicom.Dataset()
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = pydicom.uid.CTImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = "1.2.3"
    colour = values.shape[-1] == 3
    data.Rows, data.Columns = values.shape[-3:-1] if colour else values.shape[-2:]
    data.SamplesPerPixel = 3 if colour else 1
    data.PhotometricInterpretation = kind
    data.BitsAllocated = data.BitsStored = 8 * values.dtype.itemsize
    data.HighBit = data.BitsStored - 1
    data.PixelRepresentation = int(values.dtype.kind == "i")
    if colour:
        data.PlanarConfiguration = 0
    for name, value in facts.items():
        setattr(data, name, value)
    data.PixelData = values.tobytes()
    data.save_as(path, enforce_file_format=True)
    return path


def test_dicom_windows(tmp_path: Path) -> None:
    path = tmp_path / "a.dcm"
    values = two_halves(1000, 1200, np.int16)
    write_dicom(path, values, "MONOCHROME2")
    assert grey_levels(path) == [0, 255]
    write_dicom(path, values, "MONOCHROME1")
    assert grey_levels(path) == [255, 0]
    # After the rescale: -24 and 176. The window goes from -160 to 239 in 400 steps.
    hounsfield = {"RescaleSlope": 1, "RescaleIntercept": -1024}
    write_dicom(path, values, "MONOCHROME2", **hounsfield, WindowCenter=40, WindowWidth=400)
    assert grey_levels(path) == [round(255 * 136 / 399), round(255 * 336 / 399)]
    # The first of several windows is used.
    write_dicom(
        path, values, "MONOCHROME2", **hounsfield, WindowCenter=[176, 0], WindowWidth=[1, 9]
    )
    assert grey_levels(path) == [0, 255]


def test_dicom_colours_and_refusals(tmp_path: Path) -> None:
    path = tmp_path / "a.dcm"
    colours = np.array(picture(16, 16))
    write_dicom(path, colours, "RGB")
    assert torch.equal(read_image(path, 16), torch.from_numpy(colours).permute(2, 0, 1))
    pages = np.zeros((2, 16, 16), np.uint8)
    write_dicom(path, pages, "MONOCHROME2", NumberOfFrames=2)
    with pytest.raises(SodapError, match=r"a\.dcm holds 2 frames"):
        read_image(path, 16)
    write_dicom(path, pages[0, :4], "MONOCHROME2")
    with pytest.raises(SodapError, match="has 16 x 4 pixels"):
        read_image(path, 16)
    whole = write_dicom(path, pages[0], "MONOCHROME2").read_bytes()
    for content in (b"not DICOM at all", whole[:200], whole[:-20]):
        path.write_bytes(content)
        with pytest.raises(SodapError, match="cannot be read"):
            read_image(path, 16)


# Real files


def test_real_images(shared: Path) -> None:
    paths: list[Path] = []
    for folder in sorted((shared / "data").iterdir()):
        if folder.is_dir():
            paths += sorted(p for p in folder.rglob("*") if p.suffix in (".jpg", ".png"))[:6]
    assert len(paths) >= 36
    seen = read_images(paths, 96)
    for image, path in zip(seen, paths, strict=True):
        with Image.open(path) as file:
            upright = ImageOps.exif_transpose(file).convert("RGB")
        plain = as_tensor(ImageOps.fit(upright, (96, 96), Image.Resampling.BICUBIC))
        assert (image.float() - plain.float()).abs().mean() < 1.5, path
