# `make demo` and `make test` are all that a fresh machine needs: Python 3.10 or newer, and make.
PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
READY := $(VENV)/.ready

MAKEFLAGS += --no-print-directory
export PATH := $(BIN):$(PATH)
export PYTHONPATH := $(CURDIR)
# Every command below runs with the environment's Python; only making the environment takes $(PYTHON).
RUN := PYTHON=$(BIN)/python

NATIVE_SOURCES = $(shell git ls-files 'native/*.h' 'native/*.cpp' 2>/dev/null || find native -name '*.h' -o -name '*.cpp')
PYTHON_SOURCES := fastload tests benchmarks examples scripts/pin-requirements scripts/smoke_test.py
PYTEST := $(BIN)/python -m pytest -q -n 2

.PHONY: help setup build demo test native-test check warnings lint types imports stub stub-check format bench sanitize wheel-check clean

help: ## say what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 14

$(READY): requirements/dev.txt requirements/integrations.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "fastload needs Python 3.10 or newer; this is %s (set PYTHON=)" % sys.version.split()[0])'
	@PYTHON=$(PYTHON) scripts/install-system-packages
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -r requirements/dev.txt -r requirements/integrations.txt
	@touch $@

setup: $(READY) ## environment in .venv, from pinned requirements

build: $(READY) ## the compiled core, in place
	@$(RUN) scripts/build-dev

demo: build ## sample photographs, convert, load, and a comparison with torch's DataLoader
	@$(BIN)/python examples/demo.py

test: build native-test ## the whole suite, on both engines
	FASTLOAD_BACKEND=native $(PYTEST)
	FASTLOAD_BACKEND=python $(PYTEST) -m "not backend_free"

native-test: $(READY) ## the C++ tests
	@$(RUN) scripts/build-dev -DFASTLOAD_TESTS=ON
	@cmake --build build/dev -j2
	ctest --test-dir build/dev --output-on-failure --no-tests=error

check: warnings lint types imports stub-check ## lint, types, import contracts, stub; compiler warnings are errors

warnings: $(READY)
	@$(RUN) scripts/build-dev -DFASTLOAD_WERROR=ON -DFASTLOAD_TESTS=ON
	@cmake --build build/dev -j2

lint: $(READY)
	ruff check $(PYTHON_SOURCES)
	ruff format --check $(PYTHON_SOURCES)
	clang-format --dry-run -Werror $(NATIVE_SOURCES)

types: $(READY)
	mypy

imports: $(READY)
	lint-imports --no-logo

stub: build ## write fastload/_core.pyi
	@$(RUN) scripts/stub

stub-check: warnings
	@$(RUN) scripts/stub --check

format: $(READY) ## format Python and C++
	ruff check --fix-only $(PYTHON_SOURCES)
	ruff format $(PYTHON_SOURCES)
	clang-format -i $(NATIVE_SOURCES)

bench: build ## fastload against torch's DataLoader (benchmarks/README.md has the other loaders)
	$(BIN)/python -m benchmarks.run $(BENCH)

sanitize: $(READY) ## the C++ tests under address, undefined-behaviour and thread sanitizers
	@mkdir -p build && scripts/sanitize

wheel-check: $(READY) ## a wheel, installed into an empty environment; and an install without a compiler
	@$(RUN) scripts/wheel-check

clean: ## remove what was built
	rm -rf build dist demo fastload/_core.*.so
