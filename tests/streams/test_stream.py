"""Streams, domains and splits: their checks, batches, folders and unions."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from sodap.errors import SodapError
from sodap.streams import (
    BatchLoader,
    Domain,
    MissingClassWarning,
    Split,
    Stream,
    load_stream,
    stream_names,
    union,
)


def test_stages_count_from_one(stripes: Stream) -> None:
    assert [stage.number for stage in stripes.stages()] == [1, 2]
    assert len(stripes) == 2


def test_a_label_outside_the_classes(stripes: Stream) -> None:
    domain = stripes.domains[0]
    wrong = Split(domain.train.images, domain.train.labels + 1)
    with pytest.raises(SodapError, match=r"train split of domain 'domain 0' has label 3"):
        Stream("s", stripes.classes, (replace(domain, train=wrong),))
    wrong = Split(domain.train.images, domain.train.labels - 1)
    with pytest.raises(SodapError, match="has label -1"):
        Stream("s", stripes.classes, (replace(domain, train=wrong),))


@pytest.mark.parametrize("kind", ["train", "val", "test"])
def test_an_empty_split(stripes: Stream, kind: str) -> None:
    domain = stripes.domains[0]
    empty = replace(domain, **{kind: getattr(domain, kind).take(0)})
    with pytest.raises(SodapError, match=f"the {kind} split of domain 'domain 0' is empty"):
        Stream("s", stripes.classes, (empty,))


def test_a_missing_class_is_a_warning(stripes: Stream) -> None:
    domain = stripes.domains[0]
    some = domain.train.labels != 2
    train = Split(domain.train.images[some], domain.train.labels[some])
    lacking = replace(domain, train=train)
    Stream("s", stripes.classes, (lacking,))
    with pytest.warns(MissingClassWarning, match="no training image of class 2"):
        lacking.check(stripes.classes)


def test_classes_in_another_order_are_an_error(stripes: Stream) -> None:
    domain = replace(stripes.domains[0], classes=stripes.classes)
    domain.check(stripes.classes)
    with pytest.raises(SodapError, match="numbers its classes class 0, class 1, class 2, but"):
        domain.check(stripes.classes[::-1])
    with pytest.raises(SodapError, match="load it with classes="):
        Stream("s", ("a", "b", "c"), (domain,))


def test_names_must_differ(stripes: Stream) -> None:
    with pytest.raises(SodapError, match="distinct names"):
        Stream("s", ("a", "a"), stripes.domains)
    with pytest.raises(SodapError, match="distinct names"):
        Stream("s", stripes.classes, (stripes.domains[0],) * 2)
    with pytest.raises(SodapError, match="one or more domains"):
        Stream("s", stripes.classes, ())


def test_wrong_types_and_shapes() -> None:
    with pytest.raises(SodapError, match="uint8"):
        Split(torch.zeros(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(SodapError, match="one entry per image"):
        Split(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))


# `digits` takes seconds to draw; tests/streams/test_digits.py checks it.
@pytest.mark.parametrize("name", sorted(set(stream_names()) - {"digits"}))
def test_registered_streams_pass_their_own_checks(name: str) -> None:
    stream = load_stream(name)
    for domain in stream.domains:
        domain.check(stream.classes)


def test_batches_cover_a_split_once(stripes: Stream) -> None:
    split = stripes.domains[0].train
    order = torch.Generator().manual_seed(1)
    batches = BatchLoader(split, 7, torch.device("cpu"), lambda images: images, order)
    first, again = list(batches), list(batches)
    assert len(batches) == len(first) == 4
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, again, strict=True))
    seen = torch.cat([images for images, _ in first]).flatten(1).sum(1).sort().values
    assert torch.equal(seen, split.images.flatten(1).sum(1).sort().values)


def write_folder(root: Path, splits: bool) -> None:
    for domain in ("01-a", "02-b"):
        for name in ("cat", "dog"):
            for kind in ("train", "val", "test") if splits else ("",):
                folder = root / domain / kind / name
                folder.mkdir(parents=True)
                for index in range(2 if splits else 10):
                    colour = (index * 20, 200 if name == "cat" else 10, hash(kind) % 255)
                    Image.new("RGB", (40, 30), colour).save(folder / f"{index}.png")


@pytest.mark.parametrize("splits", [True, False])
def test_a_folder_is_a_stream(tmp_path: Path, splits: bool) -> None:
    write_folder(tmp_path, splits)
    stream = load_stream(str(tmp_path), image_size=16)
    assert stream.classes == ("cat", "dog")
    assert [domain.name for domain in stream.domains] == ["01-a", "02-b"]
    counts = [len(split) for _, split in stream.domains[0].splits()]
    assert counts == ([4, 4, 4] if splits else [16, 2, 2])
    assert stream.domains[0].train.images.shape[1:] == (3, 16, 16)
    again = load_stream(str(tmp_path), image_size=16)
    for one, two in zip(stream.domains, again.domains, strict=True):
        assert torch.equal(one.train.images, two.train.images)


def test_given_classes(tmp_path: Path) -> None:
    write_folder(tmp_path, splits=True)
    wider = load_stream(str(tmp_path), image_size=16, classes=["bird", "cat", "dog"])
    assert wider.classes == wider.domains[0].classes == ("bird", "cat", "dog")
    assert set(wider.domains[0].train.labels.tolist()) == {1, 2}
    with pytest.raises(SodapError, match="holds images of dog, which is not among the classes"):
        load_stream(str(tmp_path), image_size=16, classes=["bird", "cat"])
    with pytest.raises(SodapError, match="between 8 and 2048"):
        load_stream(str(tmp_path), image_size=0)


def test_folders_with_another_layout(tmp_path: Path) -> None:
    with pytest.raises(SodapError, match="no stream is called"):
        load_stream(str(tmp_path / "nothing"))
    with pytest.raises(SodapError, match="no images in DOMAIN/CLASS/image"):
        load_stream(str(tmp_path))
    write_folder(tmp_path, splits=True)
    (tmp_path / "01-a" / "test").rename(tmp_path / "01-a" / "tset")
    with pytest.raises(SodapError, match=r"both split folders \(train, val\) and 'tset'"):
        load_stream(str(tmp_path))


def test_the_error_names_an_unreadable_image(tmp_path: Path) -> None:
    write_folder(tmp_path, splits=True)
    broken = tmp_path / "02-b" / "val" / "dog" / "0.png"
    broken.write_bytes(broken.read_bytes()[:60])
    with pytest.raises(SodapError, match=r"0\.png cannot be read as an image"):
        load_stream(str(tmp_path))


def test_too_few_classes_for_a_domain(stripes: Stream) -> None:
    domain: Domain = stripes.domains[0]
    domain.check(stripes.classes)
    with pytest.raises(SodapError, match="the 2 classes are numbered 0 to 1"):
        domain.check(stripes.classes[:2])


def test_union_of_domains(stripes: Stream) -> None:
    first, second = stripes.domains
    both = union(stripes.domains)
    assert (both.name, both.classes, both.test) == (second.name, second.classes, second.test)
    for kind in ("train", "val"):
        found, parts = getattr(both, kind), [getattr(domain, kind) for domain in (first, second)]
        assert len(found) == sum(map(len, parts))
        assert torch.equal(found.images[: len(parts[0])], parts[0].images)
        assert torch.equal(found.images[len(parts[0]) :], parts[1].images)
        assert found.labels.tolist() == parts[0].labels.tolist() + parts[1].labels.tolist()
    alone = union([first])
    assert torch.equal(alone.train.images, first.train.images)
    assert len(first.train) == 24


def test_union_needs_images_of_one_size(stripes: Stream) -> None:
    first, second = stripes.domains
    small = Split(second.train.images[..., :16, :16], second.train.labels)
    with pytest.raises(SodapError, match="up to 'domain 1' cannot be learned at once"):
        union([first, replace(second, train=small)])


def test_names_and_plans_do_not_import_torch() -> None:
    """torch takes seconds to import; listing and checking files must not wait for it."""
    code = (
        "import sys, sodap.cli.data, sodap.streams.check\n"
        "assert 'digits' in sodap.streams.stream_names()\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
