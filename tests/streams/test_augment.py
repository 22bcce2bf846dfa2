"""Augmentation against slow per-pixel code and torchvision."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as oracle

from sodap.streams import Augmentation
from sodap.streams.augment import _DRAWS
from sodap.streams.augmentation import PAPER_AUGMENTATION

EVERYTHING = Augmentation(
    hflip=True,
    vflip=True,
    rotate=30,
    shift=0.2,
    zoom=0.6,
    brightness=0.3,
    contrast=0.4,
    saturation=0.5,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(count: int = 7, high: int = 12, wide: int = 10, seed: int = 5) -> Tensor:
    shape = (count, 3, high, wide)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator(seed))


def draws(count: int, seed: int = 0) -> list[dict[str, float]]:
    """The random numbers of each image, by name."""
    rows = torch.rand(count, len(_DRAWS), generator=generator(seed)).tolist()
    return [dict(zip(_DRAWS, row, strict=True)) for row in rows]


def pixel(image: Tensor, row: float, column: float) -> Tensor:
    """Bilinear interpolation; outside of the image, the border is repeated."""
    high, wide = image.shape[-2:]
    row, column = min(max(row, 0), high - 1), min(max(column, 0), wide - 1)
    top, left = math.floor(row), math.floor(column)
    below, beside = min(top + 1, high - 1), min(left + 1, wide - 1)
    down, right = row - top, column - left
    upper = image[:, top, left] * (1 - right) + image[:, top, beside] * right
    lower = image[:, below, left] * (1 - right) + image[:, below, beside] * right
    return upper * (1 - down) + lower * down


def moved(image: Tensor, what: Augmentation, draw: dict[str, float]) -> Tensor:
    """Flip an image, then rotate, zoom and shift it, pixel by pixel."""
    if what.hflip and draw["hflip"] < 0.5:
        image = image.flip(-1)
    if what.vflip and draw["vflip"] < 0.5:
        image = image.flip(-2)
    signed = {name: 2 * value - 1 for name, value in draw.items()}
    high, wide = image.shape[-2:]
    angle = math.radians(what.rotate * signed["rotate"])
    side = 1 - (1 - what.zoom) * draw["zoom"]
    middle_x = (
        wide / 2 * (1 + (1 - side) * signed["place_x"]) + wide * what.shift * signed["shift_x"]
    )
    middle_y = (
        high / 2 * (1 + (1 - side) * signed["place_y"]) + high * what.shift * signed["shift_y"]
    )
    view = torch.empty_like(image)
    for row in range(high):
        for column in range(wide):
            x, y = (column + 0.5 - wide / 2) * side, (row + 0.5 - high / 2) * side
            source_x = middle_x + x * math.cos(angle) - y * math.sin(angle)
            source_y = middle_y + x * math.sin(angle) + y * math.cos(angle)
            view[:, row, column] = pixel(image, source_y - 0.5, source_x - 0.5)
    return view


@pytest.mark.parametrize(
    "settings",
    [
        {"rotate": 40},
        {"shift": 0.3},
        {"zoom": 0.5},
        {"rotate": 8, "hflip": True, "vflip": True},
        {"rotate": 180, "shift": 0.5, "zoom": 0.1, "hflip": True, "vflip": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(12, 12), (12, 9)])
def test_geometry_pixel_by_pixel(settings: dict[str, Any], shape: tuple[int, int]) -> None:
    what, images = Augmentation(**settings), batch(7, *shape)
    views = what(images, generator())
    for image, view, draw in zip(images, views, draws(7), strict=True):
        exact = moved(image.double() / 255, what, draw)
        torch.testing.assert_close(view.double(), exact, atol=1e-5, rtol=0)


def test_rotation_agrees_with_torchvision_inside() -> None:
    images = batch(5, 33, 33)
    views = Augmentation(rotate=25)(images, generator())
    for image, view, draw in zip(images, views, draws(5), strict=True):
        turned = oracle.rotate(
            image / 255, 25 * (2 * draw["rotate"] - 1), InterpolationMode.BILINEAR
        )
        inside = (slice(None), slice(8, 25), slice(8, 25))
        torch.testing.assert_close(view[inside], turned[inside], atol=1e-4, rtol=0)


@pytest.mark.parametrize("which", [("hflip",), ("vflip",), ("hflip", "vflip")])
def test_flips_are_exact(which: tuple[str, ...]) -> None:
    images = batch(40)
    views = Augmentation(**dict.fromkeys(which, True))(images, generator())
    for image, view, draw in zip(images, views, draws(40), strict=True):
        dims = [{"hflip": -1, "vflip": -2}[name] for name in which if draw[name] < 0.5]
        assert torch.equal(view, image.flip(dims))


@pytest.mark.parametrize(
    ("name", "adjust"),
    [
        ("brightness", oracle.adjust_brightness),
        ("contrast", oracle.adjust_contrast),
        ("saturation", oracle.adjust_saturation),
    ],
)
def test_colours_agree_with_torchvision(name: str, adjust: Any) -> None:
    images = batch(20)
    views = Augmentation(**{name: 0.7})(images, generator())
    for image, view, draw in zip(images, views, draws(20), strict=True):
        factor = 1 + 0.7 * (2 * draw[name] - 1)
        torch.testing.assert_close(view, adjust(image / 255, factor), atol=3e-4, rtol=0)


def test_colours_come_after_geometry_in_a_fixed_order() -> None:
    images = batch(6)
    views = EVERYTHING(images, generator())
    for image, view, draw in zip(images, views, draws(6), strict=True):
        seen = moved(image / 255, EVERYTHING, draw)
        factor = {name: 2 * value - 1 for name, value in draw.items()}
        seen = oracle.adjust_brightness(seen, 1 + 0.3 * factor["brightness"])
        seen = oracle.adjust_contrast(seen, 1 + 0.4 * factor["contrast"])
        seen = oracle.adjust_saturation(seen, 1 + 0.5 * factor["saturation"])
        torch.testing.assert_close(view, seen, atol=1e-3, rtol=0)


def test_no_augmentation_returns_the_images() -> None:
    images, drawn = batch(), generator()
    before = drawn.get_state()
    assert torch.equal(Augmentation()(images, drawn), images)
    assert torch.equal(drawn.get_state(), before)


def test_the_input_is_not_changed() -> None:
    images = batch()
    before = images.clone()
    for what in (
        EVERYTHING,
        PAPER_AUGMENTATION,
        Augmentation(hflip=True),
        Augmentation(brightness=0.5),
    ):
        what(images, generator())
        assert torch.equal(images, before)


def test_the_generator_determines_the_result() -> None:
    images = batch()
    assert torch.equal(EVERYTHING(images, generator(1)), EVERYTHING(images, generator(1)))
    assert not torch.equal(EVERYTHING(images, generator(1)), EVERYTHING(images, generator(2)))


def test_draws_do_not_depend_on_other_images_or_settings() -> None:
    images = batch(9)
    others = torch.cat([images[:4], batch(5, seed=9)])
    assert torch.equal(EVERYTHING(images, generator())[:4], EVERYTHING(others, generator())[:4])
    # Whether an image is flipped does not depend on the other settings.
    flips = Augmentation(hflip=True)(images, generator())
    turned = Augmentation(hflip=True, shift=1e-7)(images, generator())
    torch.testing.assert_close(flips / 255, turned, atol=1e-3, rtol=0)


AUGMENTATIONS = [
    EVERYTHING,
    PAPER_AUGMENTATION,
    Augmentation(hflip=True, vflip=True),
    Augmentation(contrast=0.5),
]


@pytest.mark.parametrize("block", [1, 300, 10**6])
@pytest.mark.parametrize("what", AUGMENTATIONS, ids=str)
def test_the_block_size_does_not_change_the_result(
    what: Augmentation, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = batch(9)
    monkeypatch.setattr("sodap.streams.augment._BLOCK", block)
    in_blocks = what(images, generator())
    monkeypatch.undo()
    torch.testing.assert_close(in_blocks, what(images, generator()), atol=1e-6, rtol=0)


@pytest.mark.parametrize("what", [*AUGMENTATIONS, Augmentation()], ids=str)
def test_prepare_is_called_on_blocks(what: Augmentation, monkeypatch: pytest.MonkeyPatch) -> None:
    images = batch(2 * torch.get_num_threads() + 1)
    parts = []

    def prepare(views: Tensor) -> Tensor:
        """Returns another size and dtype, as a backbone may."""
        parts.append(len(views))
        return views[..., 1:].to(torch.float64).sub(0.5)

    whole = prepare(what(images, generator()))
    monkeypatch.setattr("sodap.streams.augment._BLOCK", 1)
    parts.clear()
    torch.testing.assert_close(what(images, generator(), prepare), whole, atol=1e-6, rtol=0)
    assert sum(parts) == len(images)
    at_once = what in (Augmentation(), Augmentation(hflip=True, vflip=True))
    assert len(parts) == (1 if at_once else 3)


def test_flips_flip_half_of_the_images() -> None:
    images = torch.zeros(2000, 3, 2, 2, dtype=torch.uint8)
    images[..., 0] = 255
    seen = Augmentation(hflip=True)(images, generator())
    assert 900 < seen[:, 0, 0, 1].count_nonzero() < 1100


@settings(max_examples=60)
@given(
    st.builds(
        Augmentation,
        hflip=st.booleans(),
        vflip=st.booleans(),
        rotate=st.floats(0, 180),
        shift=st.floats(0, 0.5),
        zoom=st.floats(0.01, 1),
        brightness=st.floats(0, 1),
        contrast=st.floats(0, 1),
        saturation=st.floats(0, 1),
    ),
    st.integers(0, 6),
    st.integers(1, 9),
    st.sampled_from([0, 255, None]),
)
def test_results_are_valid_images(
    what: Augmentation, count: int, side: int, plain: int | None
) -> None:
    images = batch(count, side, side + 1)
    if plain is not None:
        images.fill_(plain)
    views = what(images, generator())
    assert views.shape == images.shape
    only_flips = what == Augmentation(hflip=what.hflip, vflip=what.vflip)
    assert views.dtype == (torch.uint8 if only_flips else torch.float32)
    assert views.is_contiguous()
    if count and not only_flips:
        assert views.min() >= 0
        assert views.max() <= 1


def test_the_papers_preset_and_invalid_settings() -> None:
    assert Augmentation(hflip=True, vflip=True, rotate=8) == PAPER_AUGMENTATION
    for wrong in ({"zoom": 0}, {"zoom": 1.1}, {"rotate": 181}, {"contrast": -0.1}, {"blur": 1}):
        with pytest.raises(ValidationError):
            Augmentation(**wrong)
