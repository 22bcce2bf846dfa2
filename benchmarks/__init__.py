"""How fast it is: one module a question, each run with `python -m benchmarks.NAME`."""

import os

from sodap.memory import keep_freed_memory

# Both before torch is there.
keep_freed_memory()  # as the command line does
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # a profiler that says nothing between figures
