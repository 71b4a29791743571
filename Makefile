# Each target is complete on a fresh machine: it makes .venv and installs what it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SMOKE := --config benchmarks/smoke.conf.json
BASE ?= HEAD~1
SECONDS ?= 60
# Tests in so many processes, 1.3 GB of memory each at most; 0: in one, for a debugger.
TEST_PROCESSES ?= 2
PYTEST := python -m pytest -n $(TEST_PROCESSES) --dist worksteal
RESOLUTION_lowest := lowest-direct
RESOLUTION_newest := highest

# .venv may be a link to an environment that others use, too: it is taken as it is, with this tree's packages before its own.
LINKED := $(shell test -L $(VENV) && echo yes)
ifeq ($(LINKED),yes)
export PYTHONPATH := $(CURDIR):$(CURDIR)/kernels$(if $(PYTHONPATH),:$(PYTHONPATH))
endif

.PHONY: help venv linked-venv test test-real test-all test-lowest test-newest coverage-kernels sanitize mutants fuzz lint hooks bench \
  bench-kernels bench-pytest bench-pytest-smoke bench-smoke asv-check asv-smoke perf-check perf-selftest readme clean

help:
	@echo "make bench          every experiment of the paper at reduced size: tables and the report page"
	@echo "make bench-kernels  measure the kernels beside their peers: table, plot, records"
	@echo "make test           the fast tests, in TEST_PROCESSES=2 processes"
	@echo "make test-real      the tests on the original data files in L2UL_RAW_DIR"
	@echo "make test-all       every test, slow ones too"
	@echo "make test-lowest    the fast tests with the oldest versions that pyproject.toml allows; test-newest: the newest"
	@echo "make coverage-kernels  how much of the kernels their tests reach (compilation off; 95 % at least)"
	@echo "make sanitize       the kernels' tests with every index checked and memory filled with rubbish"
	@echo "make mutants        break baselines and metrics on purpose: does a test notice?"
	@echo "make fuzz SECONDS=60  hostile files, arguments and calls: does each end well, or in one sentence?"
	@echo "make lint           ruff, codespell and mypy"
	@echo "make hooks          let git run ruff and codespell before every commit"
	@echo "make bench-pytest   pytest-benchmark suites, saved in .benchmarks"
	@echo "make bench-smoke    does every benchmark run? asv check and one round of pytest-benchmark"
	@echo "make asv-smoke      every asv suite at small sizes: run, save, publish"
	@echo "make perf-check BASE=ref  fails if the files here are slower than that commit"
	@echo "make perf-selftest  shows that perf-check finds 10 % and stays quiet on equal builds"
	@echo "make readme         measure, then rewrite the generated tables of README.md and docs"
	@echo "make clean          remove .venv, caches and results"

venv: $(if $(LINKED),linked-venv,$(STAMP))

linked-venv:
	@test -x $(BIN)/python || { echo "$(VENV) is a link to no environment: remove it, or make one there" >&2; exit 1; }

# constraints.txt pins the versions that recorded benchmarks used (and a CPU build of torch).
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[all]'
	touch $(STAMP)

test: venv
	$(BIN)/$(PYTEST)

test-real: venv
	$(BIN)/python -m pytest -m realdata

test-all: venv
	$(BIN)/$(PYTEST) -m ''

# Each in an environment of its own; uv takes CPU builds of torch.
.venv-lowest/.installed .venv-newest/.installed: .venv-%/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install -q --disable-pip-version-check uv
	.venv-$*/bin/uv pip install -q --python .venv-$*/bin/python --torch-backend cpu --resolution $(RESOLUTION_$*) -e '.[all]'
	touch $@

test-lowest test-newest: test-%: .venv-%/.installed
	.venv-$*/bin/$(PYTEST)

# Numba's kernels as plain Python (its twins of intrinsics): which lines and branches do their tests reach?
coverage-kernels: export NUMBA_DISABLE_JIT = 1
coverage-kernels: venv
	$(BIN)/coverage run -m pytest tests/kernels
	$(BIN)/coverage report

# Hostile cases, each in a process of its own with 2 GB and 10 s: a fresh seed, which is printed (FUZZ_OPTIONS=--seed=N).
fuzz: venv
	$(BIN)/python tests/fuzz/engine.py --seconds $(SECONDS) $(FUZZ_OPTIONS)

# What goes by address is not checked here, but above, where arrays stand for memory.
sanitize: export NUMBA_BOUNDSCHECK = 1
sanitize: export NUMBA_CACHE_DIR = $(CURDIR)/.sanitize
sanitize: export MALLOC_PERTURB_ = 165
sanitize: export MALLOC_CHECK_ = 3
sanitize: venv
	LD_PRELOAD=$$(ls /lib/*/libc_malloc_debug.so.0 /usr/lib64/libc_malloc_debug.so.0 2>/dev/null | head -1) \
	  $(BIN)/python -m pytest tests/kernels

mutants: venv
	nice -n 19 $(BIN)/python tests/mutants/mutants.py

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy

hooks: venv
	$(BIN)/pre-commit install

# An interrupted run goes on; delete results/quick to measure anew.
bench: venv
	$(BIN)/l2ul bench all --profile quick

bench-kernels: venv
	$(BIN)/l2ul bench kernels --overwrite

# Profiles of the next targets: L2UL_BENCH_PROFILE=smoke|regular|full (see docs/performance.md).
bench-pytest: venv
	$(BIN)/python -m pytest tests/bench --benchmark-enable --benchmark-only --benchmark-autosave

bench-pytest-smoke: venv
	L2UL_BENCH_PROFILE=smoke L2UL_BENCH_ROUNDS=1 $(BIN)/python -m pytest tests/bench --benchmark-enable --benchmark-only \
	  --benchmark-columns=median

asv-check: venv
	$(BIN)/asv check -E existing:same

# An existing environment saves its results only under a commit's name.
asv-smoke: export L2UL_BENCH_PROFILE = smoke
asv-smoke: venv
	$(BIN)/asv machine --yes $(SMOKE) > /dev/null
	$(BIN)/asv run $(SMOKE) -E existing:same --set-commit-hash $$(git rev-parse HEAD) --show-stderr
	$(BIN)/asv publish $(SMOKE)
	@echo "page: $(CURDIR)/.asv/smoke/html/index.html (see it with: $(BIN)/asv preview $(SMOKE))"

bench-smoke: asv-check bench-pytest-smoke

perf-check: venv
	$(BIN)/python -m l2ul_fast.measure.perfcheck --base $(BASE) $(PERF_OPTIONS)

perf-selftest: venv
	$(BIN)/python tests/bench/perf_selftest.py $(PERF_OPTIONS)

readme: venv
	$(BIN)/l2ul bench kernels --overwrite
	$(BIN)/l2ul report kernels-quick --publish .
	$(BIN)/l2ul bench stream --overwrite
	$(BIN)/l2ul report stream-quick --publish .
	$(BIN)/l2ul bench unlearn --profile full --overwrite
	$(BIN)/l2ul report unlearn-full --publish .
	$(BIN)/l2ul bench all --profile quick --overwrite
	$(BIN)/l2ul report quick --publish .

clean:
	rm -rf $(VENV) .venv-lowest .venv-newest results .asv .benchmarks .pytest_cache .hypothesis .mypy_cache .ruff_cache .sanitize
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
