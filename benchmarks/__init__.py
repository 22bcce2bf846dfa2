"""How fast it is: one module a question, each run with `python -m benchmarks.NAME`."""
