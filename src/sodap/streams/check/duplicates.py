"""Images that are there twice: the same file, or the same picture in another file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sodap.streams.check.fingerprints import Fingerprint

HASH_DISTANCE = 8
"""Pictures with more differing bits of 64 are not compared further."""

ALIKE = 0.8
"""Correlation of the details from which on two files show one picture.

On photographs of retinas and skin, re-encoded copies are above it and different pictures of the
same kind are below; see docs/data.md.
"""

_ROWS = 512  # of the table of distances at a time
_PAIRS = 4096  # to compare at a time


def exact_copies(digests: Sequence[bytes]) -> list[list[int]]:
    """Groups of two or more equal files, as positions."""
    places: dict[bytes, list[int]] = defaultdict(list)
    for index, digest in enumerate(digests):
        places[digest].append(index)
    return [same for same in places.values() if len(same) > 1]


def near_copies(prints: Sequence[Fingerprint]) -> list[tuple[int, int]]:
    """Pairs of positions whose pictures are alike; give each file once, without exact copies.

    Every pair of hashes is compared, which takes about a second for 25,000 images: buckets would
    not help, because medical images of one kind have nearly the same hashes.
    """
    hashes = np.array([each.waves for each in prints], dtype=np.uint64)
    details = np.array([each.detail.ravel() for each in prints], dtype=np.int8)
    found: list[tuple[int, int]] = []
    for start in range(0, len(prints), _ROWS):
        distance = np.bitwise_count(hashes[start : start + _ROWS, None] ^ hashes[None, start:])
        first, second = np.nonzero(distance <= HASH_DISTANCE)
        later = second > first
        first, second = first[later] + start, second[later] + start
        for begin in range(0, len(first), _PAIRS):
            one, other = first[begin : begin + _PAIRS], second[begin : begin + _PAIRS]
            alike = _correlation(details[one], details[other]) >= ALIKE
            found += zip(one[alike].tolist(), other[alike].tolist(), strict=True)
    return found


def _correlation(one: NDArray[np.int8], other: NDArray[np.int8]) -> NDArray[np.float32]:
    """Of the rows of two arrays `[M, P]`; 0 where one is flat, since blank images show nothing."""
    a, b = one.astype(np.float32), other.astype(np.float32)
    a -= a.mean(1, keepdims=True)
    b -= b.mean(1, keepdims=True)
    length = np.sqrt((a * a).sum(1) * (b * b).sum(1))
    product: NDArray[np.float32] = (a * b).sum(1) / np.maximum(length, 1.0)
    return product
