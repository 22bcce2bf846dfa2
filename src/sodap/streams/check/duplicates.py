"""Duplicate images: copies of a file, or the same picture in another file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sodap.streams.check.fingerprints import Fingerprint

HASH_DISTANCE = 8
"""Images whose 64-bit hashes differ in more bits are different pictures."""

SAME_PICTURE = 0.8
"""Smallest correlation of the details of two files with the same picture.

Among photographs of retinas and skin, re-encoded copies are above it and different pictures of the
same kind are below it; see docs/data.md.
"""


def exact_copies(digests: Sequence[bytes]) -> list[list[int]]:
    """Sets of two or more equal files, as indices."""
    places: dict[bytes, list[int]] = defaultdict(list)
    for index, digest in enumerate(digests):
        places[digest].append(index)
    return [same for same in places.values() if len(same) > 1]


def near_copies(fingerprints: Sequence[Fingerprint]) -> list[tuple[int, int]]:
    """Pairs of indices with the same picture; give exact copies of a file only once.

    Compares every pair of hashes, which takes seconds for 25,000 images. Hash buckets would not
    help, since medical images of one kind have similar hashes; the details have to decide.
    """
    hashes = np.array([each.hash for each in fingerprints], dtype=np.uint64)
    details = np.array([each.detail.ravel() for each in fingerprints], dtype=np.int8)
    found: list[tuple[int, int]] = []
    for first in range(len(fingerprints)):
        distance = np.bitwise_count(hashes[first + 1 :] ^ hashes[first])
        later = first + 1 + np.flatnonzero(distance <= HASH_DISTANCE)
        if len(later):
            same = _correlation(details[first], details[later]) >= SAME_PICTURE
            found += [(first, second) for second in later[same].tolist()]
    return found


def _correlation(one: NDArray[np.int8], others: NDArray[np.int8]) -> NDArray[np.float32]:
    """Correlation of `[P]` with each row of `[M, P]`; 0 for blank images, which have no detail."""
    a, b = one.astype(np.float32), others.astype(np.float32)
    a -= a.mean()
    spread = np.sqrt((a @ a) * np.maximum(np.einsum("mp,mp->m", b, b) - b.sum(1) ** 2 / len(a), 0))
    product: NDArray[np.float32] = (b @ a) / np.maximum(spread, 1.0)
    return product
