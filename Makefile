# The commands of a developer. Each target installs what it needs in .venv, from the lock files alone, on a machine that
# has only Python 3.11 and pip. If .venv is up to date, the target starts at once.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
PROJECT := install --quiet --no-deps --no-build-isolation --editable .
# With extras: for a package that another package requires with an extra, pip takes the newest release instead of the
# pinned one, and then refuses it because it has no hash.
LOCK := $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-strip-extras

# Without bytecode every command compiles all modules again, and the end-to-end suite starts a thousand commands.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test coverage mutants e2e lint bench bench-batch bench-queue bench-why bench-e2e bench-batch-e2e bench-binder bench-serving bench-api bench-demo bench-page bench-sim bench-compare chaos docs lock soak test-kernel kernel clean

help:
	@echo "make demo    run a cluster of 50 nodes, in a minute from a fresh clone"
	@echo "make test    every test"
	@echo "make coverage   every test with line coverage; takes twice as long"
	@echo "make mutants   mutation tests: change one place of the package at a time and run its tests; ARGS=\"--seed 1 --count 60\""
	@echo "make test-kernel   the tests of the core against the compiled kernel"
	@echo "make e2e     the end-to-end suite on the embedded API server and on kube-apiserver, which is built with Go the first time"
	@echo "make lint    ruff, mypy --strict, the import contracts, and the layout and wording rules of tools/lint_layout.py"
	@echo "make kernel  compile the modules of the scheduling cycle into build/kernel; needs a C compiler"
	@echo "make bench   measure the decisions of the core, and the sessions of the batch engine"
	@echo "make bench-batch   the sessions of the batch engine alone"
	@echo "make bench-queue   one event for ten thousand unschedulable pods"
	@echo "make bench-why   answers of why at 5,000 nodes and 50,000 pods"
	@echo "make bench-e2e   the live scheduler on kube-apiserver, compared with kube-scheduler; half an hour, ALL=1 for all workloads"
	@echo "make bench-batch-e2e   gangs through the live batch engine on kube-apiserver, compared with a loop of the same writes"
	@echo "make bench-binder   pods bound through BindRequests on kube-apiserver, compared with direct binding and a loop of the same writes"
	@echo "make bench-serving   latency of /livez and /metrics while the event loop is busy, own server and aiohttp; five minutes"
	@echo "make bench-api     throughput of the embedded API server on one core"
	@echo "make bench-demo    the first five minutes: first pod of the demo, pods a second of a whole cluster in one process"
	@echo "make bench-page    frame times of the page in Chromium, at 5,000 nodes and 50,000 pods"
	@echo "make bench-sim   one OpenB run on one core, and a year-long trace; ARGS=--sweep for all workloads and policies"
	@echo "make bench-compare BASE=REV   the core and the sessions of this tree beside those of another revision, in turns"
	@echo "make soak    200,000 pods through the live scheduler, a hundred kills of the embedded API server, two hundred of binder and scheduler, an hour of faults in each of seven configurations, older servers, all published simulation results, a hundred mutants"
	@echo "make chaos   faults in processes, API servers and requests, in seven configurations; ARGS=\"--minutes 10 --seed 7\""
	@echo "make docs    build the documentation into site/"
	@echo "make setup   install the development environment in .venv; the targets above do this themselves"
	@echo "make lock    resolve the locked versions again, from pyproject.toml"
	@echo "make clean   remove all build results, including .venv"

setup: .venv/.dev

# On a terminal the demo keeps running until Ctrl-C, so that its page can be opened.
demo: .venv/.runtime
	@if test -t 1; then set -- --keep; fi; $(BIN)/bayplan demo "$$@" $(ARGS)

test: .venv/.dev
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

coverage: .venv/.dev
	$(BIN)/python -m pytest -n auto --dist worksteal --cov --cov-report=term:skip-covered --cov-report=xml $(ARGS)

# Collects coverage with a context for each test first, and again after src or tests changed.
mutants: .venv/.dev
	$(BIN)/python tools/mutants.py $(ARGS)

# `bench` measures the compiled kernel if there is a compiler; KERNEL=no measures plain Python.
KERNEL ?= yes
KERNEL_TESTS := $(addprefix tests/unit/,cache apiserver framework objects plugins queue scheduler snapshot testing) tests/property tests/conformance
WITH_KERNEL = PYTHONPATH="$$($(BIN)/python tools/build_kernel.py --path)"
MEASURED = $(if $(filter yes,$(KERNEL)),$(WITH_KERNEL))

kernel: .venv/.dev
	$(BIN)/python tools/build_kernel.py

test-kernel: kernel
	$(WITH_KERNEL) $(BIN)/python -m pytest -n auto --dist worksteal $(KERNEL_TESTS) $(ARGS)

# Tests of the page need Chromium: the installed one, or Debian's package, unpacked into the user's cache.
# Three processes on two cores: the tests wait for leases and backoffs most of the time.
e2e: .venv/.dev
	cd tests && ../$(BIN)/python -m browser.fetch --if-possible
	$(BIN)/python -m pytest -n 3 --dist loadfile -m e2e --cluster=both tests/e2e $(ARGS)

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports
	$(BIN)/python tools/lint_layout.py

# With --workload only the core is measured; bench-batch measures the batch engine.
bench: .venv/.dev
	$(if $(filter yes,$(KERNEL)),$(BIN)/python tools/build_kernel.py --if-possible)
	$(MEASURED) $(BIN)/python benchmarks/core.py $(ARGS)
	$(if $(findstring --workload,$(ARGS)),,$(BIN)/python benchmarks/batch.py $(filter --quick --check,$(ARGS)))

bench-batch: .venv/.dev
	$(BIN)/python benchmarks/batch.py $(ARGS)

bench-queue: .venv/.dev
	$(BIN)/python benchmarks/queue_events.py $(ARGS)

bench-why: .venv/.dev
	$(BIN)/python benchmarks/why.py $(ARGS)
	$(BIN)/python benchmarks/why_live.py $(ARGS)

bench-e2e: .venv/.dev
	$(BIN)/python benchmarks/e2e.py $(if $(ALL),--all) $(ARGS)

bench-batch-e2e: .venv/.dev
	$(BIN)/python benchmarks/batch_e2e.py $(ARGS)

bench-binder: .venv/.dev
	$(BIN)/python benchmarks/binder.py $(ARGS)

# Two configurations at a time fit on two cores, because they wait most of the time. The journals stay in build/chaos.
chaos: .venv/.dev
	cd tests && ../$(BIN)/python -m chaos $(ARGS)

# The second half: end-to-end tests that take too long for daily runs, such as those against other API servers.
soak: .venv/.dev
	$(BIN)/python benchmarks/soak.py $(ARGS)
	$(BIN)/python -m pytest -p no:xdist -m soak --cluster=real --durations=0 tests/e2e
	$(BIN)/python -m pytest -p no:xdist -m e2e tests/e2e/test_apiserver_kills.py --kills=50
	$(BIN)/python -m pytest -p no:xdist -m soak tests/unit/sim
	cd tests && ../$(BIN)/python -m chaos --minutes 60 --jobs 2
	$(BIN)/python tools/mutants.py

bench-serving: .venv/.dev
	$(BIN)/python benchmarks/https_server.py $(ARGS)

bench-api: .venv/.dev
	$(BIN)/python benchmarks/api_server.py $(ARGS)

bench-demo: .venv/.dev
	$(if $(filter yes,$(KERNEL)),$(BIN)/python tools/build_kernel.py --if-possible)
	$(MEASURED) $(BIN)/python benchmarks/demo.py $(ARGS)

bench-page: .venv/.dev
	cd tests && ../$(BIN)/python -m browser.fetch
	$(BIN)/python benchmarks/page.py $(ARGS)

bench-sim: .venv/.dev
	$(BIN)/python benchmarks/simulation.py $(ARGS)

# Both trees with their kernels, in turns: make bench-compare BASE=main ARGS="--rounds 5 --workload mixed".
bench-compare: .venv/.dev
	$(BIN)/python tools/bench_compare.py --base $(BASE) $(ARGS)

docs: .venv/.dev
	$(BIN)/python tools/reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "built site/index.html"

lock: .venv/.runtime
	$(PIP) install --quiet uv
	$(LOCK) --group build pyproject.toml --output-file requirements.lock
	$(LOCK) --group build --group dev --group kernel --extra fast --constraint requirements.lock pyproject.toml --output-file requirements-dev.lock

clean:
	rm -rf .venv build dist site .coverage .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Bayplan needs Python 3.11 or later; call make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv

# The prerequisite is order-only: the date of the interpreter says nothing about the installed packages.
.venv/.runtime: requirements.lock pyproject.toml | .venv/bin/python
	$(PIP) install --quiet --requirement requirements.lock
	$(PIP) $(PROJECT)
	@touch $@

# The development lock contains the pins of the runtime, too, so one installation updates both stamps.
.venv/.dev: requirements-dev.lock requirements.lock pyproject.toml | .venv/bin/python
	$(PIP) install --quiet --requirement requirements-dev.lock
	$(PIP) $(PROJECT)
	@touch .venv/.runtime $@
