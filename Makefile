# make demo   builds into .venv, shows the register report, dispatches by key, checks against PyTorch
# make test   the tests of this machine, but for slow ones: what a change has to pass
# make test-all   every test that this machine can run, and all builds: hours
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-all build regenerate install lint format fuzz bench wheel matrix lock clean docs links

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TOOLS  := $(VENV)/.tools
START  := $(shell date +%s)
LINT    = $(MAKE) lint# not in a recipe, all of whose line make -n would run
GET_TOOLS = $(MAKE) $(TOOLS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

help:
	@sed -n 's/^# make/make/p' Makefile
	@echo "make build       an editable install into $(VENV), with the developers' tools"
	@echo "make fuzz        tests with random examples, for long: other ones each time, 100 times as many"
	@echo "make lint        ruff, mypy, clang-format, the import rules, and codegen check"
	@echo "make format      rewrite Python and C++ in the project's style"
	@echo "make bench       the benchmarks that need no GPU"
	@echo "make wheel       a wheel in dist/, with its manylinux tag, checked"
	@echo "make matrix      the Pythons, PyTorchs and compilers that the checkout is tried with; ROWS=... names some"
	@echo "make docs        these pages as a site, with search and an API reference, in build/site"
	@echo "make links       whether the pages' links to other sites lead somewhere (needs a network)"
	@echo "make lock        constraints.txt anew, as requirements-dev.txt and pyproject.toml ask (needs uv)"
	@echo "make clean       remove build folders (not $(VENV))"

# The environment: what building and calling kernels takes, nvcc included if the machine has none;
# and the developers' tools.
$(READY): constraints.txt pyproject.toml tools/build/environment.py
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("Kernelmint needs Python 3.10 or later, this is " + sys.version.split()[0] + "; name another with make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python tools/build/environment.py
	touch $@

$(TOOLS): $(READY) requirements-dev.txt
	$(BIN)/python tools/build/environment.py --tools
	touch $@

# Not through an editable install (-S), whose list of modules may be older than the checkout.
regenerate: $(READY)
	PYTHONPATH=$$(echo $(VENV)/lib/python3*/site-packages) $(BIN)/python -S -m codegen regenerate

install: regenerate
	$(BIN)/python tools/build/install.py

# The tools, which the build does not need, come over the network while it compiles.
build: regenerate
	mkdir -p build
	$(GET_TOOLS) > build/tools.log 2>&1 & tools=$$!; built=true; \
	$(BIN)/python tools/build/install.py || built=false; \
	wait $$tools || built=false; cat build/tools.log; $$built

ifeq ($(MAKE_TERMOUT),) # in a file, too, the demo's tables are a screenful, the worst first
demo: export TERM := dumb
demo: export TTY_COMPATIBLE := 1
endif
demo: install
	$(BIN)/ptx-report --installed
	$(BIN)/kernelmint demo
	@echo "make demo took $$(($$(date +%s) - $(START))) s"

lint: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	git ls-files '*.h' '*.cuh' '*.cpp' '*.cu' ':!generated' | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/lint-imports
	$(BIN)/python -m kernelmint check

# What ptxas makes of each kernel is compared with what it was. Tests wait now and then, so the
# linters and that comparison run beside them. Hundreds of the tests' processes import the project,
# compiled once, whatever PYTHONDONTWRITEBYTECODE says. Left to test-all are slow tests and builds,
# other instruction sets and architectures, and disassembling all kernels (--sass).
ISAS := baseline;native
ARCHITECTURES := newest
TESTS := -m "not slow and not build$(if $(wildcard /dev/nvidia[0-9]* /dev/dxg),, and not gpu)"
test-all: TESTS :=
test-all: SASS := --sass
test-all: ISAS := all
test-all: ARCHITECTURES := all
test-all: test
test: export KERNELMINT_ISAS ?= $(ISAS)
test: export KERNELMINT_WITHOUT_GPU ?= $(ARCHITECTURES)
# PyTorch's threads sleep until there is work: two processes' would spin on each other's processors.
test: export OMP_WAIT_POLICY ?= passive
test: build
	$(BIN)/python -m compileall -q codegen kernel_specs kernelmint runtime tools
	{ $(LINT) || lint=$$?; $(BIN)/ptx-report --installed --check $(SASS) \
	    && $(BIN)/kernelmint sizes --check --top 5 && exit $${lint:-0}; } \
	  > build/checks.log 2>&1 & checks=$$!; passed=true; \
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(TESTS) $(PYTEST_ARGS) || passed=false; \
	wait $$checks || passed=false; cat build/checks.log; $$passed

fuzz: build
	$(BIN)/python -m pytest -n 2 -m hypothesis --hypothesis-profile long $(PYTEST_ARGS)

format: $(TOOLS)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	git ls-files '*.h' '*.cuh' '*.cpp' '*.cu' ':!generated' | xargs $(BIN)/clang-format -i

bench: build
	$(BIN)/python -m tools.bench_codegen
	$(BIN)/python -m tools.bench_dispatch
	$(BIN)/kernelmint bench flash_forward --target cpu

wheel: $(TOOLS) regenerate
	$(BIN)/python tools/build/wheel.py

matrix: $(TOOLS)
	$(BIN)/python -m tools.matrix $(ROWS)

# A warning, such as a link that leads nowhere, is an error.
docs: build
	$(BIN)/python tools/build/headers_page.py
	$(BIN)/python -m sphinx -q -W --keep-going -c docs . build/site
	@echo "the site is build/site/index.html"

links: build
	$(BIN)/python -m sphinx -b linkcheck -q -c docs . build/links

lock: $(TOOLS)
	$(BIN)/python tools/build/lock.py

clean:
	rm -rf build dist
