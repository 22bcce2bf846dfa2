"""Settings of glibc's memory allocator for large tensors on a CPU.

A batch of images is larger than what glibc keeps on its heap by default. Every such tensor is
mapped anew and unmapped when it is freed, and the kernel clears each of its pages. On two cores
that took longer than augmenting and normalising the images. With these settings freed memory stays
with the process and comes in large pages.
"""

from __future__ import annotations

import ctypes
import os

_LARGEST = 1 << 30
"""Largest tensor that is kept on the heap, and how much free heap is kept, in bytes."""

_LARGEST_BEFORE_GLIBC_2_35 = 1 << 25
"""Largest value that older versions of glibc accept for the first of the two."""

_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
"""Environment variables that glibc reads when a process starts."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of `mallopt` in glibc's `malloc.h`."""


def keep_freed_memory() -> None:
    """Keep freed memory in this process and its children; call it before torch is imported.

    Does nothing if the user has set one of the variables, or without glibc.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # makes torch ask for large pages
    if any(name in os.environ for name in _VARIABLES):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return
    largest = _LARGEST
    if not mallopt(_M_MMAP_THRESHOLD, largest):
        largest = _LARGEST_BEFORE_GLIBC_2_35
        mallopt(_M_MMAP_THRESHOLD, largest)
    mallopt(_M_TRIM_THRESHOLD, _LARGEST)
    os.environ |= dict(zip(_VARIABLES, (str(largest), str(_LARGEST)), strict=True))
