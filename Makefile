# Every target sets up .venv by itself. `make PYTHON=python3.12 test` picks the interpreter,
# `make PYTEST_WORKERS=4 test` how many tests run at once.
PYTHON ?= python3
PYTEST_WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# One thread per process: the tests run side by side. `OMP_NUM_THREADS=2 make test` tries another number.
OMP_NUM_THREADS ?= 1
test: export OMP_NUM_THREADS := $(OMP_NUM_THREADS)

.DEFAULT_GOAL := help
.PHONY: help setup reproduce test lint coverage bench

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## */\1\t/' | expand -t 14

setup: $(READY)  ## make .venv with the versions of constraints.txt

# torch comes first and by its exact pin, so that the build pip finds for the pin is kept by what follows.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$$(grep -E '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $(READY)

reproduce: $(READY)  ## every figure, table and claim on the embedded encoder and tasks; no download, no GPU
	$(BIN)/scala-lab reproduce --profile embedded --out reports/embedded

PYTEST := $(BIN)/python -m pytest -q -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder

test: lint  ## lint, then all tests and the examples in docstrings
	$(PYTEST)

coverage: export OMP_NUM_THREADS := $(OMP_NUM_THREADS)
coverage: $(READY)  ## all tests, with the share of lines they run by file
	$(PYTEST) --cov scala_lab --cov studies --cov-report term --cov-report html

lint: $(READY)  ## ruff (rules and format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Each is a script of its own; the summary puts the results of all of them into one table.
BENCHMARKS := startup clock optimizer steps memory whole_runs training grid growth curvature summary

bench: $(READY)  ## measure against peers, side by side in one run
	@for name in $(BENCHMARKS); do echo "== $$name"; $(BIN)/python benchmarks/$$name.py || exit 1; done
