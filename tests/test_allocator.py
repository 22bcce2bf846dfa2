"""Freed memory stays with the process, which shows in the number of page faults."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
from sodap.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
import numpy as np

def touch():
    np.empty(48 << 20, np.uint8).fill(1)  # more than glibc keeps on the heap by default

for _ in range(3):
    touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

CHILD = """
import os, subprocess, sys
from sodap.allocator import keep_freed_memory
keep_freed_memory()
print(subprocess.run([sys.executable, "-c", sys.argv[1], "left"], text=True, check=True,
                     stdout=subprocess.PIPE).stdout)
"""


def faults(*command: str) -> int:
    # The test process may have called the command line, which sets variables for children.
    fresh = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", *command], text=True, check=True, stdout=subprocess.PIPE, env=fresh
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_memory_is_reused() -> None:
    default = faults(FAULTS, "left")
    assert default > 100  # with huge pages, 24 per allocation
    assert faults(FAULTS, "kept") < default / 10
    assert faults(CHILD, FAULTS) < default / 10  # inherited by a child
