"""The check finds what was put there, and nothing where nothing is."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms, ImageEnhance
from tests.streams.test_images import write_dicom

from sodap.errors import SodapError
from sodap.streams.check import check_page, check_plan
from sodap.streams.check.duplicates import HASH_DISTANCE, SAME_PICTURE, exact_copies, near_copies
from sodap.streams.check.fingerprints import (
    Fingerprint,
    local_detail,
    perceptual_hash,
    read_fingerprint,
)
from sodap.streams.check.result import ACROSS, WITHIN
from sodap.streams.check.sheets import MAX_BYTES
from sodap.streams.grey import GreyRange
from sodap.streams.images import MIN_SIDE, read_image
from sodap.streams.items import Item, PlannedDomain
from sodap.streams.plans import Plan, plan_lists, plan_protocol


def picture(number: int, side: int = 160) -> Image.Image:
    random = np.random.default_rng(number)
    soft = Image.fromarray(random.integers(0, 256, (6, 6, 3), dtype=np.uint8))
    image = np.asarray(soft.resize((side, side), Image.Resampling.BICUBIC)).astype(np.int16)
    lines = Image.fromarray(random.integers(-60, 60, (40, 40), dtype=np.int8).astype(np.uint8))
    fine = np.asarray(lines.resize((side, side), Image.Resampling.BILINEAR)).astype(np.int16) % 60
    return Image.fromarray(np.clip(image + fine[..., None], 0, 255).astype(np.uint8))


def jpeg(image: Image.Image, quality: int = 85) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()


def planned(
    root: Path,
    name: str,
    files: dict[str, tuple[str, str, bytes]],
    groups: dict[str, str] | None = None,
) -> PlannedDomain:
    """A domain of files: name -> (split, label, content)."""
    folder = root / name
    folder.mkdir(parents=True)
    items, splits = [], []
    for file, (split, label, content) in files.items():
        (folder / file).write_bytes(content)
        items.append(Item(folder / file, label, label, (groups or {}).get(file)))
        splits.append(split)
    return PlannedDomain(name, folder, tuple(items), tuple(splits))


def plan_of(*domains: PlannedDomain) -> Plan:
    return Plan("made", ("a", "b"), domains)


def read(path: Path) -> Fingerprint:
    found = read_fingerprint(path)
    assert isinstance(found, Fingerprint)
    return found


# ------------------------------------------------------------------ fingerprints


@pytest.mark.parametrize(
    "change",
    [
        lambda image: image.resize((128, 128)),
        lambda image: image.resize((320, 300)),
        lambda image: ImageEnhance.Brightness(image).enhance(0.8),
        lambda image: ImageEnhance.Contrast(image).enhance(0.8),
    ],
    ids=["smaller", "larger", "darker", "paler"],
)
def test_re_encoded_copies_are_found(tmp_path: Path, change: object) -> None:
    assert callable(change)
    for number in range(10):
        (tmp_path / "one.jpg").write_bytes(jpeg(picture(number)))
        (tmp_path / "two.jpg").write_bytes(jpeg(change(picture(number)), quality=60))
        prints = [read(tmp_path / "one.jpg"), read(tmp_path / "two.jpg")]
        assert prints[0].digest != prints[1].digest
        assert near_copies(prints) == [(0, 1)]


def test_different_pictures_are_not_copies(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(picture(number)))
    assert near_copies([read(path) for path in sorted(tmp_path.iterdir())]) == []


def test_every_pair_is_compared() -> None:
    """The same result as a loop over all pairs with NumPy's correlation."""
    random = np.random.default_rng(0)
    prints: list[Fingerprint] = []
    for index in range(60):
        detail = np.random.default_rng(index // 4).integers(-90, 90, (64, 64))
        noise = int(random.integers(10, 60))
        detail = np.clip(detail + random.integers(-noise, noise, (64, 64)), -127, 127)
        waves = int(random.integers(0, 2**63)) if index % 8 == 0 else prints[-1].hash
        waves ^= 1 << int(random.integers(64))
        prints.append(Fingerprint(b"", 100, waves, detail.astype(np.int8)))
    near = [
        (a, b)
        for a, b in combinations(range(60), 2)
        if (prints[a].hash ^ prints[b].hash).bit_count() <= HASH_DISTANCE
    ]
    wanted = [
        (a, b)
        for a, b in near
        if np.corrcoef(prints[a].detail.ravel(), prints[b].detail.ravel())[0, 1] >= SAME_PICTURE
    ]
    assert 0 < len(wanted) < len(near)
    assert sorted(near_copies(prints)) == wanted


def test_blank_images_are_not_copies() -> None:
    flat = np.full((64, 64), 77, dtype=np.uint8)
    assert not local_detail(flat).any()
    blank = Fingerprint(b"", 64, perceptual_hash(flat), local_detail(flat))
    assert near_copies([blank, blank]) == []
    assert near_copies([]) == []


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.floats(0.5, 1.0), st.integers(0, 40))
def test_brightness_hardly_changes_the_hash(number: int, gain: float, offset: int) -> None:
    grey = np.asarray(picture(number).convert("L").resize((64, 64), Image.Resampling.BOX))
    lit = (grey * gain * 0.8 + offset).astype(np.uint8)
    assert (perceptual_hash(grey) ^ perceptual_hash(lit)).bit_count() <= HASH_DISTANCE


def test_exact_copies() -> None:
    assert exact_copies([b"x", b"y", b"x", b"z", b"x"]) == [[0, 2, 4]]


def test_one_copy_among_many_similar_hashes() -> None:
    """Hashes in clusters, as medical images have them: 100,000 pairs are within the distance."""
    random = np.random.default_rng(0)
    centres = random.integers(0, 2**63, 20, dtype=np.uint64)
    details = random.integers(-120, 120, (2000, 64, 64), dtype=np.int8)
    prints = [
        Fingerprint(b"", 100, int(centres[k % 20]) ^ (1 << (k % 64)), details[k])
        for k in range(2000)
    ]
    prints[1800] = prints[17]
    assert near_copies(prints) == [(17, 1800)]


# ------------------------------------------------------------------ whole checks


def clean(root: Path, name: str, first: int) -> PlannedDomain:
    """Ten different pictures of each class."""
    kinds = ["train"] * 6 + ["val"] * 2 + ["test"] * 2
    return planned(
        root,
        name,
        {
            f"{label}{index}.jpg": (kind, label, jpeg(picture(first + 50 * shift + index)))
            for shift, label in enumerate("ab")
            for index, kind in enumerate(kinds)
        },
    )


def test_clean_data_has_no_findings(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    domains = clean(tmp_path, "one", 0), clean(tmp_path, "two", 500)
    result = check_plan(plan_of(*domains), lambda done, total: calls.append((done, total)))
    assert calls[-1] == (40, 40)
    found = (result.leaks, result.duplicates, result.unreadable, result.tiny, result.missing)
    assert not any(found)
    assert result.counts["one", "train"] == {"a": 6, "b": 6}
    assert "No leakage was found." not in check_page(result)  # no groups were given


def test_everything_is_found(tmp_path: Path) -> None:
    same, similar, shared_picture = (jpeg(picture(number)) for number in (1, 2, 3))
    again = jpeg(picture(2).resize((128, 128)), quality=60)
    one = planned(
        tmp_path,
        "one",
        {
            "1.jpg": ("train", "a", same),
            "2.jpg": ("test", "b", same),
            "3.jpg": ("val", "b", same),
            "4.jpg": ("train", "b", similar),
            "5.jpg": ("train", "b", again),
            "6.jpg": ("test", "a", shared_picture),
            "7.jpg": ("val", "a", jpeg(picture(7))),
            "8.jpg": ("test", "a", jpeg(picture(8))),
            "small.jpg": ("train", "a", jpeg(picture(9, side=40))),
            "broken.jpg": ("train", "a", jpeg(picture(10))[:600]),
        },
        groups={"7.jpg": "patient", "8.jpg": "patient", "1.jpg": "other"},
    )
    two = planned(
        tmp_path,
        "two",
        {"1.jpg": ("train", "a", shared_picture), "2.jpg": ("test", "a", jpeg(picture(11)))},
        groups={"1.jpg": "patient"},
    )
    result = check_plan(plan_of(replace(one, origin="here"), replace(two, origin="there")))
    leaks = {(leak.kind, leak.held, leak.other): (leak.images, leak.of) for leak in result.leaks}
    assert leaks == {
        ("exact", ("one", "test"), ("one", "train")): (1, 3),
        ("exact", ("one", "val"), ("one", "train")): (1, 2),
        ("exact", ("one", "test"), ("one", "val")): (1, 3),
        ("exact", ("one", "test"), ("two", "train")): (1, 3),
        ("group", ("one", "test"), ("one", "val")): (1, 3),
    }
    assert [str(leak) for leak in result.leaks if leak.other[0] == "two"] == [
        "1 of 3 test images of one: the same file is in train of two"
    ]
    assert result.leaked == {WITHIN: 3, ACROSS: 1}
    assert result.leaked_groups == {WITHIN: 1, ACROSS: 0}
    (question,) = result.questions
    assert "1 group with the same name in here and there (such as 'patient')" in question

    # In one table, the patient of the second domain is the same person.
    together = check_plan(plan_of(one, two))
    leaks |= {
        ("group", ("one", "test"), ("two", "train")): (1, 3),
        ("group", ("one", "val"), ("two", "train")): (1, 2),
    }
    assert {(x.kind, x.held, x.other): (x.images, x.of) for x in together.leaks} == leaks
    assert together.leaked == {WITHIN: 3, ACROSS: 3}
    assert together.leaked_groups == {WITHIN: 1, ACROSS: 1}
    assert together.questions == ()
    assert "3 val or test images within a domain (1 group)" in together.verdict
    assert "3 val or test images across domains (1 group)" in together.verdict
    assert together.verdict in check_page(together)
    assert result.duplicate_counts() == {
        "exact": {"across splits": 1, "across domains": 1},
        "near": {"within a split": 1},
    }
    assert [{p.path for p in each.images} for each in result.conflicts] == [
        {"1.jpg", "2.jpg", "3.jpg"}
    ]
    (flaw,) = result.unreadable
    assert flaw.path == "broken.jpg"
    assert "damaged" in flaw.what
    assert [flaw.path for flaw in result.tiny] == ["small.jpg"]
    assert set(result.missing) == {
        "two has no image of b",
        "two has no val image of a",
    }


def test_near_copies_of_exact_copies_leak(tmp_path: Path) -> None:
    """The first of the exact copies is in train, where it does not leak; the second is in test."""
    again = jpeg(picture(1).resize((128, 128)), quality=60)
    first = jpeg(picture(1))
    domain = planned(
        tmp_path,
        "one",
        {
            "1.jpg": ("train", "a", first),
            "2.jpg": ("train", "a", again),
            "3.jpg": ("test", "a", first),
            "4.jpg": ("val", "b", jpeg(picture(5))),
        },
    )
    result = check_plan(plan_of(domain))
    assert {(leak.kind, leak.examples) for leak in result.leaks} == {
        ("exact", (("3.jpg", "1.jpg"),)),
        ("near", (("3.jpg", "2.jpg"),)),
    }


def test_the_page_has_no_external_files(tmp_path: Path) -> None:
    odd = "<script>&.jpg"
    domain = planned(
        tmp_path,
        "one",
        {odd: ("train", "a", jpeg(picture(1))), "2.jpg": ("test", "b", jpeg(picture(1)))},
    )
    result = check_plan(plan_of(domain))
    page = check_page(result)
    assert "There is leakage" in page
    assert "<script>" not in page
    assert "&lt;script&gt;&amp;.jpg" in page
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert sources
    assert all(source.startswith("data:image/jpeg;base64,") for source in sources)
    content = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert content["leaks"][0]["images"] == 1
    assert content["conflicts"][0]["kind"] == "exact"


def test_sheets_are_below_their_limit(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 100, 100, 3), dtype=np.uint8)
    files = {f"{k}.jpg": ("train", "ab"[k % 2], jpeg(Image.fromarray(noise[k]))) for k in range(40)}
    result = check_plan(plan_of(planned(tmp_path, "one", files)))
    assert 1000 < len(result.sheets["one"]) <= MAX_BYTES
    with Image.open(io.BytesIO(result.sheets["one"])) as sheet:
        assert sheet.width > 800


def test_a_missing_file_is_unreadable(tmp_path: Path) -> None:
    items = (Item(tmp_path / "gone.jpg", "a", "a"),)
    result = check_plan(plan_of(PlannedDomain("one", tmp_path, items, ("train",))))
    assert result.unreadable[0].what == "cannot be read: no such file or directory"
    too_long = read_fingerprint(tmp_path / f"{'x' * 300}.png")
    assert too_long == "cannot be read as an image: file name too long"


def tiff(*pages: Image.Image) -> bytes:
    file = io.BytesIO()
    pages[0].save(file, "TIFF", save_all=True, append_images=pages[1:])
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("small.jpg", jpeg(picture(1).resize((5, 90))), "has 5 x 90 pixels"),
        ("renamed.dcm", jpeg(picture(1)), "DICOM file"),
        ("pages.tif", tiff(picture(1), picture(2)), "holds 2 pages"),
        ("float.tif", tiff(Image.new("F", (90, 90))), "holds floating-point values"),
        ("empty.png", b"", "the file is empty"),
    ],
)
def test_files_that_a_run_refuses_are_obstacles(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    domain = planned(tmp_path, "one", {name: ("train", "a", content)})
    with pytest.raises(SodapError) as refused:
        read_image(tmp_path / "one" / name, 64)
    result = check_plan(plan_of(domain))
    said = [obstacle for obstacle in result.obstacles if obstacle.startswith(name)]
    assert len(said) == 1
    assert words in said[0]
    assert str(refused.value) == f"{tmp_path / 'one'}/{said[0]}"
    assert not result.tiny


def test_the_smallest_allowed_image_is_only_tiny(tmp_path: Path) -> None:
    least = jpeg(picture(1).resize((MIN_SIDE, 90)))
    result = check_plan(plan_of(planned(tmp_path, "one", {"1.jpg": ("train", "a", least)})))
    assert not result.unreadable
    assert [flaw.path for flaw in result.tiny] == ["1.jpg"]


def test_dicom_files_are_compared_as_a_run_decodes_them(tmp_path: Path) -> None:
    files = {}
    for number in (1, 2):
        values = np.asarray(picture(number).convert("L")).astype(np.uint16) * 16
        content = write_dicom(tmp_path / "x.dcm", values, "MONOCHROME2").read_bytes()
        files[f"{number}.dcm"] = ("train", "a", content)
    result = check_plan(plan_of(planned(tmp_path, "one", files)))
    assert not any((result.unreadable, result.tiny, result.duplicates))
    assert result.conversions == {"dicom": {"one": 2}}


def test_conversions_are_counted(tmp_path: Path) -> None:
    def saved(image: Image.Image, form: str = "PNG", **more: object) -> bytes:
        file = io.BytesIO()
        image.save(file, form, **more)
        return file.getvalue()

    plain, turned = picture(0), Image.Exif()
    turned[0x0112] = 6
    clear = plain.convert("RGBA")
    clear.putpixel((0, 0), (0, 0, 0, 0))
    deep = Image.fromarray(np.asarray(plain.convert("L")).astype(np.uint16) * 16)
    srgb, lab = (ImageCms.ImageCmsProfile(ImageCms.createProfile(n)) for n in ("sRGB", "LAB"))
    contents = {
        "plain.png": saved(plain),
        "opaque.png": saved(plain.convert("RGBA")),
        "srgb.png": saved(plain, icc_profile=srgb.tobytes()),
        "deep.png": saved(deep),
        "clear.png": saved(clear),
        "ink.jpg": saved(plain.convert("CMYK"), "JPEG"),
        "few.png": saved(plain.quantize(16)),
        "turned.jpg": saved(plain, "JPEG", exif=turned),
        "lab.png": saved(plain, icc_profile=lab.tobytes()),
    }
    files = {name: ("train", "a", content) for name, content in contents.items()}
    result = check_plan(plan_of(planned(tmp_path, "one", files)))
    kinds = ("deep", "transparent", "colours", "palette", "turned", "profile")
    assert result.conversions == {kind: {"one": 1} for kind in kinds}
    assert result.ranges.deep == GreyRange(0, 4095)
    assert len(result.converted) == 6
    assert "0 to 4095" in result.converted[0]
    assert all(line in check_page(result) for line in result.converted)
    assert result.to_json()["conversions"]["deep"] == {"one": 1}


# ------------------------------------------------------------------ groups


@pytest.mark.parametrize(
    ("grouped", "without_images"),
    [(("one", "two"), False), (("one",), False), ((), False), (("one", "two"), True)],
)
def test_the_verdict_is_limited_to_what_was_checked(
    tmp_path: Path, grouped: tuple[str, ...], without_images: bool
) -> None:
    domains = []
    for first, name in ((0, "one"), (500, "two")):
        domain = clean(tmp_path, name, first)
        if name in grouped:
            items = tuple(replace(item, group=item.path.name) for item in domain.items)
            domain = replace(domain, items=items)
        domains.append(replace(domain, root=None) if without_images else domain)
    result = check_plan(plan_of(*domains))
    assert result.all_checked == (len(grouped) == 2 and not without_images)
    assert (result.verdict == "No leakage was found.") == result.all_checked
    assert bool(result.unchecked) == (len(grouped) < 2)
    assert ("for two" in result.unchecked) == (grouped == ("one",))
    assert result.unchecked in result.verdict
    assert ("in the lists" in result.verdict) == without_images
    partly = "" if result.all_checked else " partly"
    assert f'<p class="verdict{partly}">{result.verdict}</p>' in check_page(result)


def test_unchecked_groups_are_mentioned_beside_a_leak(tmp_path: Path) -> None:
    twice = jpeg(picture(1))
    files = {"1.jpg": ("train", "a", twice), "2.jpg": ("test", "a", twice)}
    result = check_plan(plan_of(planned(tmp_path, "one", files)))
    assert result.leaks
    assert "Groups (patients) were not given, so they were not checked." in check_page(result)


# ------------------------------------------------------------------ real data


def test_the_authors_lists_leak(shared: Path) -> None:
    """Patients with one eye in train and the other in test, found without images."""
    result = check_plan(plan_lists(shared / "paper/splits"))
    leaks = {(leak.held, leak.other): leak.images for leak in result.leaks}
    assert leaks == {
        (("drd", "test"), ("drd", "train")): 752,
        (("drd", "val"), ("drd", "train")): 729,
        (("drd", "test"), ("drd", "val")): 90,
    }
    assert result.without_images == ("aptos", "ddr", "drd")
    assert result.differences == ()
    assert "752 of 1432 test images of drd" in check_page(result)


def test_real_copies_in_idrid(shared: Path) -> None:
    """The data set has some photographs under two names, some of them with two grades."""
    whole = plan_protocol("open-dr", [shared / "data"])
    idrid = next(domain for domain in whole.domains if domain.name == "idrid")
    result = check_plan(Plan("idrid", whole.classes, (idrid,)))
    assert sum(map(len, (result.unreadable, result.tiny))) == 0
    exact = [
        {p.path.split("/")[1] for p in t.images} for t in result.duplicates if t.kind == "exact"
    ]
    assert {"test_IDRiD_064.jpg", "train_IDRiD_118.jpg"} in exact
    near = [t for t in result.duplicates if t.kind == "near"]
    assert len(near) <= 2  # of 132,870 pairs
