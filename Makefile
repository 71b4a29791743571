# Each target is complete on a fresh machine: it makes .venv and installs what it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: venv test test-all lint bench bench-kernels clean

venv: $(STAMP)

# constraints.txt pins the versions that recorded benchmarks used (and a CPU build of torch).
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[all]'
	touch $(STAMP)

test: venv
	$(BIN)/python -m pytest

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: bench-kernels

bench-kernels: venv
	$(BIN)/l2ul bench kernels

clean:
	rm -rf $(VENV) results .asv .benchmarks .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
