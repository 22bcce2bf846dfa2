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

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""What glibc calls them in `malloc.h`."""


def keep_freed_memory() -> None:
    """For a program's own main, before torch is imported; its children do the same.

    Nothing happens where the C library is not glibc.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # large pages, if torch is still to come
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        os.environ.setdefault(name, str(_LARGEST))  # read when a process begins: the children's
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return
    mallopt(_TRIM_THRESHOLD, int(os.environ["MALLOC_TRIM_THRESHOLD_"]))
    mallopt(_MMAP_THRESHOLD, int(os.environ["MALLOC_MMAP_THRESHOLD_"]))
