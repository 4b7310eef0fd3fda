# What a person needs: `make demo` and `make test`. Everything lives in .venv; whichever packages
# index pip is set up with is used.

PYTHON ?= python3
PY := .venv/bin/python
READY := .venv/.ready

.PHONY: help setup demo test check bench
.DEFAULT_GOAL := help

help:  ## list these targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

setup: $(READY)  ## make .venv with all that the demo, the tests and the checks need

demo: $(READY)  ## train on 4 processes with a slow rank 2, and see it found
	.venv/bin/tracekit demo --fault forward:2

test: $(READY)  ## run all tests
	$(PY) -m pytest -q -m 'not slow' --numprocesses auto --maxprocesses 4 --dist loadfile
	$(PY) -m pytest -m slow

check: $(READY)  ## lint, format, types, layers, architecture
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	.venv/bin/lint-imports --no-cache
	$(PY) -m pytest -q tests/architecture

bench: $(READY)  ## measure against the bars of docs/benchmarks.md
	$(PY) benchmarks/run.py

# An existing .venv is added to, never made anew; a changed pyproject.toml brings what it asks for.
$(READY): pyproject.toml constraints.txt
	@$(PY) -m pip --version >/dev/null 2>&1 || { \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "tracekit needs Python 3.10 or newer: make setup PYTHON=/path/to/python3" >&2; exit 1; }; \
	  $(PYTHON) -m venv .venv || \
	    { echo "$(PYTHON) cannot make a virtual environment (Debian: apt install python3-venv)" >&2; exit 1; }; }
	@echo "Installing into .venv; PyTorch makes this a minute or more the first time."
	@$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[all,dev]'
	@touch $@
