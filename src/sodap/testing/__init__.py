"""Promises of the contract as tests, for the methods here and for those of other packages.

    from sodap.testing import check_method

    def test_mine() -> None:
        check_method("mine")

`CHECKS` holds them one by one, for a test runner that reports each on its own.
"""

from sodap.testing.promises import CHECKS, NEEDS_GPU, SLOW, check_method
from sodap.testing.streams import tiny_split, tiny_stream
from sodap.testing.trial import BrokenPromise, Trial

__all__ = [
    "CHECKS",
    "NEEDS_GPU",
    "SLOW",
    "BrokenPromise",
    "Trial",
    "check_method",
    "tiny_split",
    "tiny_stream",
]
