"""How fast it is: one module a question, each run with `python -m benchmarks.NAME`."""

from sodap.memory import keep_freed_memory

keep_freed_memory()  # as the command line does, before torch is there
