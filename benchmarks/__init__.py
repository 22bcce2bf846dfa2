"""Speed measurements: one module per question, each run with `python -m benchmarks.NAME`."""

import os

from sodap.allocator import keep_freed_memory
from sodap.threads import configure_threads

# Before torch is imported, as the command line does.
keep_freed_memory()
configure_threads()
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # no messages of the profiler between figures
