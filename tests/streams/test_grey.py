"""One range of grey values for a stream: measured on training images, kept with the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from tests.conftest import TINY_VIT
from tests.streams.test_images import write_dicom

import sodap
from sodap.errors import SodapError
from sodap.learning import Learner, Training
from sodap.runs import RunRecord, load_config, run
from sodap.runs.stream import load_run_stream
from sodap.streams import read_images
from sodap.streams.cache import cached_images
from sodap.streams.grey import NO_RANGES, GreyRange, GreyRanges, RangeMeter
from sodap.streams.images import measure_ranges

SIDE = 64
HOT = 60_000


def scan(number: int, *, hot: bool = False, level: int = 2048) -> NDArray[np.uint16]:
    """A scan of 12 bits whose values are all below `level`; one pixel may be defective."""
    values = np.random.default_rng(number).integers(0, level, (SIDE, SIDE), dtype=np.uint16)
    values[:8] = 4095 if level == 2048 else level - 1
    if hot:
        values[40, 40] = HOT
    return values


def save(values: NDArray[Any], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)
    return path


@pytest.fixture
def clinic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two domains of 16-bit scans; the brightest images are in test, and one has a hot pixel."""
    monkeypatch.setenv("SODAP_CACHE", str(tmp_path / "cache"))
    root, number = tmp_path / "clinic", 0
    for domain in ("one", "two"):
        for split, count in (("train", 6), ("val", 2), ("test", 2)):
            for label in ("a", "b"):
                for index in range(count):
                    number += 1
                    level = 2048 if split == "train" else 16_384
                    values = scan(number, hot=number == 1, level=level)
                    save(values, root / domain / split / label / f"{index}.png")
    return root


def test_a_hot_pixel_does_not_darken_an_image(tmp_path: Path) -> None:
    paths = [save(scan(1, hot=hot), tmp_path / f"{hot}.png") for hot in (False, True)]
    cold, hot = read_images(paths, SIDE).int()
    around = torch.ones(SIDE, SIDE, dtype=torch.bool)
    around[38:43, 38:43] = False
    assert (cold - hot).abs()[:, around].max() <= 1
    assert int(hot[0, 40, 40]) == 255
    bright = np.asarray(scan(1)[:8]).mean() / 4095 * 255
    assert float(hot[0, 1:7].float().mean()) == pytest.approx(bright, abs=2)


def test_a_hot_pixel_of_a_dicom_image(tmp_path: Path) -> None:
    paths = [
        write_dicom(tmp_path / f"{hot}.dcm", scan(1, hot=hot), "MONOCHROME2")
        for hot in (False, True)
    ]
    cold, hot = read_images(paths, SIDE).int()
    assert ((cold - hot).abs() > 1).sum() <= 3 * 25, "only around the pixel"
    ranges = measure_ranges(paths)
    assert ranges.deep is None
    assert ranges.dicom is not None
    assert ranges.dicom.white <= 4095


@given(
    bits=st.integers(8, 16),
    hot=st.integers(0, 4),
    seed=st.integers(0, 100),
)
def test_the_range_is_the_bit_depth_of_all_but_rare_pixels(bits: int, hot: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 2**bits, 40_000, dtype=np.uint16)
    values[: 40_000 - 8] = np.maximum(values[: 40_000 - 8], 2 ** (bits - 1))
    values[:hot] = 65_535
    meter = RangeMeter()
    for part in np.split(values, 4):
        meter.add("deep", part.reshape(100, 100))
    assert meter.ranges() == GreyRanges(deep=GreyRange(0, 2**bits - 1))


def test_the_range_of_a_stream_is_measured_on_its_training_images(clinic: Path) -> None:
    stream = sodap.load_stream(str(clinic), 32)
    assert stream.ranges == GreyRanges(deep=GreyRange(0, 4095))
    assert all(domain.ranges == stream.ranges for domain in stream.domains)
    expected = read_images([clinic / "one" / "test" / "a" / "0.png"], 32, stream.ranges)[0]
    assert torch.equal(stream.domains[0].test.images[0], expected)
    again = sodap.load_stream(str(clinic), 32)
    assert again.ranges == stream.ranges, "also from the cache"


def test_given_ranges_are_used(clinic: Path) -> None:
    given = GreyRanges(deep=GreyRange(0, 65_535))
    stream = sodap.load_stream(str(clinic), 32, ranges=given)
    assert stream.ranges == given
    assert stream.domains[0].train.images.float().mean() < 20, "12 of 16 bits are dark"


def test_another_range_is_another_cache(clinic: Path, tmp_path: Path) -> None:
    paths = sorted(clinic.rglob("*.png"))
    whites = [4095, 65_535, 4095]
    shown = [
        cached_images(paths, 16, ranges=GreyRanges(deep=GreyRange(0, white))) for white in whites
    ]
    assert torch.equal(shown[0], shown[2])
    assert not torch.equal(shown[0], shown[1])
    assert torch.equal(shown[1], read_images(paths, 16, GreyRanges(deep=GreyRange(0, 65_535))))


def test_an_image_of_unknown_range_is_refused(clinic: Path) -> None:
    path = clinic / "one" / "train" / "a" / "0.png"
    with pytest.raises(SodapError, match=r"0\.png .*more than 8 bits.* save it with 8 bits"):
        read_images([path], 16, NO_RANGES)


# ------------------------------------------------------------------ models and runs


def learner_of(stream: sodap.Stream) -> Learner:
    training = Training(epochs=1, patience=1, batch_size=8)
    return Learner(stream.classes, method="ridge", training=training, device="cpu", **TINY_VIT)


def test_a_model_keeps_the_range(clinic: Path, tmp_path: Path) -> None:
    stream = sodap.load_stream(str(clinic), 32)
    learner = learner_of(stream)
    learner.learn(stream.domains[0])
    learner.save(tmp_path / "model")
    loaded = sodap.load(tmp_path / "model", device="cpu")
    assert loaded.ranges == learner.ranges == stream.ranges
    paths = sorted((clinic / "two" / "test").rglob("*.png"))
    expected = loaded.predict(read_images(paths, 32, stream.ranges)).probabilities
    torch.testing.assert_close(loaded.predict(paths).probabilities, expected)
    torch.testing.assert_close(loaded.predict(paths[:1]).probabilities, expected[:1])

    values = np.stack([np.asarray(Image.open(path)) for path in paths]).astype(np.uint16)
    as_array = loaded.predict(torch.from_numpy(values)[:, None])
    whole = loaded.predict(read_images(paths, SIDE, stream.ranges)).probabilities
    torch.testing.assert_close(as_array.probabilities, whole)
    with pytest.raises(SodapError, match="uint16"):
        loaded.predict(torch.from_numpy(values))


def test_a_domain_of_another_range_is_refused(clinic: Path) -> None:
    stream = sodap.load_stream(str(clinic), 32)
    other = sodap.load_stream(str(clinic), 32, ranges=GreyRanges(deep=GreyRange(0, 65_535)))
    learner = learner_of(stream)
    learner.learn(stream.domains[0])
    for use in (learner.learn, learner.evaluate):
        with pytest.raises(SodapError, match=r"ranges=learner\.ranges"):
            use(other.domains[1])
    same = sodap.load_stream(str(clinic), 32, ranges=learner.ranges)
    learner.learn(same.domains[1])


def test_a_run_keeps_its_range(clinic: Path, tmp_path: Path) -> None:
    changes = [f"stream={clinic}", "backbone=micro", "device=cpu", "evidence=false"]

    def learned(*, resume: bool = False) -> RunRecord:
        return run(load_config("ridge", changes), tmp_path / "run", resume=resume)

    record = learned()
    assert record.stream.ranges == {"deep": (0, 4095)}
    assert sodap.load(tmp_path / "run", device="cpu").ranges.deep == GreyRange(0, 4095)

    for path in (clinic / "one" / "train").rglob("*.png"):  # the images are deeper now
        save(scan(0, level=60_000), path)
    config = load_config("ridge", changes)
    anew, begun = load_run_stream(config), load_run_stream(config, tmp_path / "run")
    assert anew.ranges == GreyRanges(deep=GreyRange(0, 65_535))
    assert not any("cut off" in note for note in anew.notes)
    assert begun.ranges == GreyRanges(deep=GreyRange(0, 4095))
    assert [note for note in begun.notes if "0 to 65535" in note and "0 to 4095" in note]
