"""How a process of its own gets memory for tensors on a processor.

A batch of images is larger than what the C library's heap will hold by itself: every tensor is
asked of the system anew and handed back when it is done with, and the system clears each page
before it gives it out. Measured on two cores, that took more time than turning and normalising the
images, and two threads got in each other's way over it. So freed memory stays with the process, and
comes in large pages.
"""

from __future__ import annotations

import ctypes
import os

_LARGEST = 1 << 30
"""Bytes up to which a tensor lies in the heap, and how much of its free end is kept."""

_OLD_LARGEST = 1 << 25
"""What older versions of glibc allow for the first of the two."""

_CHILDRENS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
"""Read when a process begins."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""What glibc calls them in `malloc.h`."""


def keep_freed_memory() -> None:
    """For a program's own main, before torch is imported; its children do the same.

    Nothing happens where the C library is not glibc.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # large pages, if torch is still to come
    if any(name in os.environ for name in _CHILDRENS):
        return  # the user knows better
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return
    largest = _LARGEST
    if not mallopt(_MMAP_THRESHOLD, largest):
        largest = _OLD_LARGEST
        mallopt(_MMAP_THRESHOLD, largest)
    mallopt(_TRIM_THRESHOLD, _LARGEST)
    os.environ |= dict(zip(_CHILDRENS, (str(largest), str(_LARGEST)), strict=True))
