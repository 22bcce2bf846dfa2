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


def exact_copies(digests: Sequence[bytes]) -> list[list[int]]:
    """Groups of two or more equal files, as positions."""
    places: dict[bytes, list[int]] = defaultdict(list)
    for index, digest in enumerate(digests):
        places[digest].append(index)
    return [same for same in places.values() if len(same) > 1]


def near_copies(prints: Sequence[Fingerprint]) -> list[tuple[int, int]]:
    """Pairs of positions whose pictures are alike; give each file once, without exact copies.

    Every pair of hashes is compared, which takes seconds for 25,000 images. Buckets would not
    help: medical images of one kind have nearly the same hashes, so the details must decide.
    """
    hashes = np.array([each.waves for each in prints], dtype=np.uint64)
    details = np.array([each.detail.ravel() for each in prints], dtype=np.int8)
    found: list[tuple[int, int]] = []
    for first in range(len(prints)):
        distance = np.bitwise_count(hashes[first + 1 :] ^ hashes[first])
        later = first + 1 + np.flatnonzero(distance <= HASH_DISTANCE)
        if len(later):
            alike = _correlation(details[first], details[later]) >= ALIKE
            found += [(first, second) for second in later[alike].tolist()]
    return found


def _correlation(one: NDArray[np.int8], others: NDArray[np.int8]) -> NDArray[np.float32]:
    """Of `[P]` with each row of `[M, P]`; 0 where one is flat, since blank images show nothing."""
    a, b = one.astype(np.float32), others.astype(np.float32)
    a -= a.mean()
    spread = np.sqrt((a @ a) * np.maximum(np.einsum("mp,mp->m", b, b) - b.sum(1) ** 2 / len(a), 0))
    product: NDArray[np.float32] = (b @ a) / np.maximum(spread, 1.0)
    return product
