# Each target is complete on a fresh machine: it makes .venv and installs what it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help venv test test-real test-all lint bench bench-kernels bench-pytest readme clean

help:
	@echo "make bench          measure the kernels beside their peers: table, plot, records"
	@echo "make test           the fast tests"
	@echo "make test-real      the tests on the original data files in L2UL_RAW_DIR"
	@echo "make test-all       every test, slow ones too"
	@echo "make lint           ruff and mypy"
	@echo "make bench-pytest   pytest-benchmark suites, saved in .benchmarks"
	@echo "make readme         measure, then rewrite the generated parts of README.md"
	@echo "make clean          remove .venv, caches and results"

venv: $(STAMP)

# constraints.txt pins the versions that recorded benchmarks used (and a CPU build of torch).
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[all]'
	touch $(STAMP)

test: venv
	$(BIN)/python -m pytest

test-real: venv
	$(BIN)/python -m pytest -m realdata

test-all: venv
	$(BIN)/python -m pytest -m ''

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: bench-kernels

bench-kernels: venv
	$(BIN)/l2ul bench kernels --fresh

bench-pytest: venv
	$(BIN)/python -m pytest tests/bench --benchmark-enable --benchmark-only --benchmark-autosave

readme: venv
	$(BIN)/l2ul bench kernels --fresh --readme README.md
	$(BIN)/l2ul bench stream --fresh --readme README.md
	$(BIN)/l2ul bench unlearn --profile full --fresh --readme README.md

clean:
	rm -rf $(VENV) results .asv .benchmarks .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
