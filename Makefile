# make demo   builds into .venv, shows the register report, dispatches by key, checks against PyTorch
# make test   everything that can be tested on this machine
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test build regenerate lint format fuzz bench wheel clean

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

help:
	@sed -n 's/^# make/make/p' Makefile
	@echo "make build       regenerate, then an editable install into $(VENV)"
	@echo "make fuzz        tests with random examples, for long: other ones each time, 100 times as many"
	@echo "make lint        ruff, mypy, clang-format, the import rules, and codegen check"
	@echo "make format      rewrite Python and C++ in the project's style"
	@echo "make bench       the benchmarks that need no GPU"
	@echo "make wheel       a wheel in dist/, with its manylinux tag, checked"
	@echo "make clean       remove build folders (not $(VENV))"

# The environment: the package's requirements and the tools, then nvcc if the machine has none.
$(READY): requirements-dev.txt constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("Kernelmint needs Python 3.10 or later, this is " + sys.version.split()[0] + "; name another with make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python tools/build/environment.py
	touch $@

# Not through an editable install (-S), whose list of modules may be older than the checkout.
regenerate: $(READY)
	PYTHONPATH=$$(echo $(VENV)/lib/python3*/site-packages) $(BIN)/python -S -m codegen regenerate

build: regenerate
	$(BIN)/python tools/build/install.py

demo: build
	$(BIN)/ptx-report --installed
	$(BIN)/kernelmint demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	git ls-files '*.h' '*.cuh' '*.cpp' '*.cu' ':!generated' | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/lint-imports
	$(BIN)/python -m kernelmint check

# Every instruction set: the tests check each that the processor runs. And what ptxas makes of each
# kernel for each architecture is compared with what it was.
test: export KERNELMINT_ISAS ?= all
test: export KERNELMINT_WITHOUT_GPU ?= all
test: build lint
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(PYTEST_ARGS)
	$(BIN)/ptx-report --installed --check --sass

fuzz: build
	$(BIN)/python -m pytest -n 2 -m hypothesis --hypothesis-profile long $(PYTEST_ARGS)

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	git ls-files '*.h' '*.cuh' '*.cpp' '*.cu' ':!generated' | xargs $(BIN)/clang-format -i

bench: build
	$(BIN)/python -m tools.bench_codegen
	$(BIN)/python -m tools.bench_dispatch
	$(BIN)/kernelmint bench flash_forward --target cpu

wheel: regenerate
	$(BIN)/python tools/build/wheel.py

clean:
	rm -rf build dist
