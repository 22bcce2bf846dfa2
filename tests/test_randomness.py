from __future__ import annotations

import hashlib

import torch
from hypothesis import given
from hypothesis import strategies as st

from sodap.randomness import Randomness


@given(st.integers(0, 2**31), st.text(max_size=20), st.lists(st.integers(0, 1000), max_size=3))
def test_numbers_are_reproducible_63_bits(seed: int, purpose: str, where: list[int]) -> None:
    number = Randomness(seed).number(purpose, *where)
    assert number == Randomness(seed).number(purpose, *where)
    assert 0 <= number < 2**63


@given(st.integers(0, 2**31), st.text(max_size=20))
def test_numbers_do_not_change_between_versions(seed: int, purpose: str) -> None:
    """Otherwise splits would differ from those of earlier versions."""
    digest = hashlib.sha256(f"{seed}/{purpose}/3".encode()).digest()
    assert Randomness(seed).number(purpose, 3) == int.from_bytes(digest[:8], "little") // 2


def test_a_purpose_may_be_a_file_name_that_is_not_utf8() -> None:
    names = [bytes([byte]).decode(errors="surrogateescape") for byte in range(128, 256)]
    assert len({Randomness(0).number(name) for name in names}) == 128


def test_purposes_stages_and_epochs_have_different_numbers() -> None:
    randomness = Randomness(0)
    numbers = {
        randomness.number(purpose, stage, epoch)
        for purpose in ("order", "augment", "replay")
        for stage in range(20)
        for epoch in range(20)
    }
    assert len(numbers) == 3 * 20 * 20
    assert Randomness(1).number("order", 1) != randomness.number("order", 1)


def test_generators_are_reproducible() -> None:
    one = torch.rand(5, generator=Randomness(3).generator("order", 1, 2))
    two = torch.rand(5, generator=Randomness(3).generator("order", 1, 2))
    assert torch.equal(one, two)
