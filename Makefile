# Two commands on a bare machine: `make demo` and `make test`. Each sets itself up.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test check fast bench clean help

help:
	@echo "make demo   learn the embedded stream of digits and write a page with the pictures"
	@echo "make test   everything: lint, types, all tests"
	@echo "make check  lint and types only"
	@echo "make fast   the tests without the slow ones"
	@echo "make bench  speed on this processor against the limit, in minutes"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sodap needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.run

demo: $(VENV)/.run
	$(BIN)/sodap demo

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fast: $(VENV)/.dev
	$(BIN)/pytest -n auto --dist loadgroup -m 'not slow'

test: check
	$(BIN)/pytest -n auto --dist loadgroup

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.cpu --record benchmarks/records/cpu.json
	$(BIN)/python -m benchmarks.page

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
