"""The embedded digits: reproducible, balanced, with disjoint splits."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from sodap.streams.items import SPLITS
from sodap.streams.sources.digits import digits, digits_mini
from sodap.streams.sources.digits.canvas import Slot
from sodap.streams.sources.digits.drawing import DOMAINS as DRAW
from sodap.streams.sources.digits.typefaces import TYPEFACES
from sodap.streams.stream import Domain, Split, Stream

DOMAINS = ["handwriting", "print", "display", "street"]


@pytest.fixture(scope="module")
def full() -> Stream:
    return digits()


@pytest.fixture(scope="module")
def mini() -> Stream:
    return digits_mini()


@pytest.fixture(params=["full", "mini"])
def stream(request: pytest.FixtureRequest) -> Stream:
    drawn: Stream = request.getfixturevalue(request.param)
    return drawn


def test_names(full: Stream, mini: Stream) -> None:
    assert (full.name, mini.name) == ("digits", "digits-mini")
    for stream in (full, mini):
        assert stream.classes == tuple("0123456789")
        assert [domain.name for domain in stream.domains] == DOMAINS


@pytest.mark.parametrize(("name", "sizes"), [("full", [700, 200, 400]), ("mini", [60, 30, 30])])
def test_sizes_and_shapes(name: str, sizes: list[int], request: pytest.FixtureRequest) -> None:
    stream: Stream = request.getfixturevalue(name)
    for domain in stream.domains:
        splits = [split for _, split in domain.splits()]
        assert [len(split) for split in splits] == sizes
        for split in splits:
            assert split.images.shape[1:] == (3, 32, 32)
            assert split.images.dtype == torch.uint8
            assert split.images.is_contiguous()


def test_every_split_is_balanced(stream: Stream) -> None:
    for domain in stream.domains:
        for _, split in domain.splits():
            assert split.labels.bincount(minlength=10).tolist() == [len(split) // 10] * 10


def test_no_image_is_in_two_places(full: Stream) -> None:
    images = [
        image.numpy().tobytes()
        for domain in full.domains
        for _, split in domain.splits()
        for image in split.images
    ]
    assert len(set(images)) == len(images)


def test_no_typeface_is_in_two_splits() -> None:
    typefaces = [typeface for split in TYPEFACES.values() for typeface in split]
    assert len(set(typefaces)) == len(typefaces)


def test_mini_is_the_beginning_of_the_full_stream(full: Stream, mini: Stream) -> None:
    for large, small in zip(full.domains, mini.domains, strict=True):
        for (_, whole), (_, part) in zip(large.splits(), small.splits(), strict=True):
            beginning = whole.take(len(part))
            assert torch.equal(beginning.images, part.images)
            assert torch.equal(beginning.labels, part.labels)


def test_an_image_depends_only_on_its_slot(full: Stream) -> None:
    """Drawn alone, the last images of each split are the same."""
    for domain, draw in zip(full.domains, DRAW.values(), strict=True):
        for name, split in ((name, getattr(domain, name)) for name in SPLITS):
            for number in range(len(split) - 5, len(split)):
                drawn = torch.from_numpy(draw(Slot(name, number))).permute(2, 0, 1)
                assert torch.equal(split.images[number], drawn)


def test_another_process_draws_the_same_images(mini: Stream) -> None:
    script = (
        "import hashlib\n"
        "from sodap.streams.sources.digits import display, handwriting, printed, street\n"
        "from sodap.streams.sources.digits.canvas import Slot\n"
        "for domain in (handwriting, printed, display, street):\n"
        "    total = hashlib.sha256()\n"
        "    for number in range(10):\n"
        "        total.update(domain.draw(Slot('train', number)).tobytes())\n"
        "    print(total.hexdigest())\n"
    )
    other = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    images = [domain.train.images[:10].permute(0, 2, 3, 1) for domain in mini.domains]
    digests = [hashlib.sha256(each.numpy().tobytes()).hexdigest() for each in images]
    assert other.stdout.split() == digests


def test_drawing_keeps_the_global_random_state() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    for draw in DRAW.values():
        draw(Slot("train", 0))
    assert torch.equal(torch.rand(4), expected)


def test_domains_pass_their_own_checks(stream: Stream) -> None:
    for domain in stream.domains:
        domain.check(stream.classes)


def test_the_domains_look_different(full: Stream) -> None:
    """A linear model on the pixels of one domain does not work on another."""

    def pixels(split: Split) -> Tensor:
        return split.images.flatten(1).double() / 255 - 0.5

    def accuracies(source: Domain) -> list[float]:
        x, y = pixels(source.train), torch.eye(10).double()[source.train.labels]
        kernel = x @ x.T + 100 * torch.eye(len(x)).double()
        weights = x.T @ torch.linalg.solve(kernel, y - 0.1)
        return [
            ((pixels(domain.val) @ weights).argmax(1) == domain.val.labels).double().mean().item()
            for domain in full.domains
        ]

    learned_on = torch.tensor([accuracies(domain) for domain in full.domains])
    for home in range(3):  # the fourth, street, is hard for this model even at home
        on_home = learned_on[:, home].tolist()
        own = on_home.pop(home)
        assert own > 0.5
        assert max(on_home) < own - 0.3
