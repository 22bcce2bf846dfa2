"""Conformance tests for methods, also for those of other packages.

    from sodap.testing import check_method

    def test_mine() -> None:
        check_method("mine")

`CHECKS` has the single checks by name, for a test runner that reports each of them.
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
