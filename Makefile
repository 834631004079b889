# SPDX-License-Identifier: Apache-2.0
#
# `make demo` and `make test` do all the set-up themselves; `make help` lists the rest.
# What is set up lies in .venv, .venv-coverage and build/; `make clean` removes it.

SHELL := /bin/sh
VENV ?= .venv
BIN := $(VENV)/bin
COVERAGE_VENV ?= .venv-coverage
COVERAGE_TREE := build/coverage
TORCH ?= torch==2.13.0
DEBUG_KERNEL ?= build/debug-kernel
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PYTEST_ARGS ?=

CORE := $(wildcard src/deepum/_core/*.pyx src/deepum/_core/*.pxd src/deepum/_core/*.h kmod/include/uapi/linux/*.h)
# setuptools warns of a folder on the path that could hide an editable package; there is none.
QUIETLY := PYTHONWARNINGS="ignore:Editable installation"
BUILD_NEEDS := "setuptools>=77" "Cython>=3.1" "numpy>=1.26" "cuda-python>=13" "nvidia-cuda-runtime>=13"

.DEFAULT_GOAL := help
.PHONY: help check demo test test-torch lint format coverage wheel clean kmod-test kmod-test-all kmod-test-debug kmod-lint

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

check: ## Say which system packages are missing
	@tools/check-system

# Set-up --------------------------------------------------------------------------------------

$(BIN)/python:
	@tools/check-system
	@echo "creating $(VENV)"
	@"$$(tools/check-system --python)" -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip

# The build needs live in the environment too, so that a changed core is rebuilt in seconds.
$(VENV)/.installed: pyproject.toml setup.py $(CORE) | $(BIN)/python
	@tools/check-system
	@echo "installing deepum into $(VENV) (the first time takes a minute or two)"
	@$(BIN)/python -m pip install --quiet $(BUILD_NEEDS)
	@$(QUIETLY) $(BIN)/python -m pip install --quiet --no-build-isolation --editable ".[dev,plot]"
	@touch $@

$(VENV)/.torch: | $(VENV)/.installed
	@echo "installing $(TORCH) into $(VENV)"
	@$(BIN)/python -m pip install --quiet $(TORCH)
	@touch $@

# What people run -----------------------------------------------------------------------------

demo: $(VENV)/.installed ## Simulate GPT-2 XL under four policies (a table, an HTML report), then train for real
	@$(BIN)/deepum demo
	@$(BIN)/deepum demo --live --where-possible

test: $(VENV)/.installed ## Run the tests that need neither PyTorch nor a GPU
	$(BIN)/python -m pytest -n $(JOBS) -m "not torch and not gpu and not kmod" $(PYTEST_ARGS)

test-torch: $(VENV)/.torch ## Run the tests that need PyTorch (its CPU build is enough)
	$(BIN)/python -m pytest -n $(JOBS) -m "torch and not gpu and not kmod" $(PYTEST_ARGS)

lint: $(VENV)/.installed ## Check style and types: ruff, mypy, cython-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH="$(abspath $(BIN)):$$PATH" cython-lint src

format: $(VENV)/.installed ## Rewrite the Python files in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The core is built a second time, with line tracing, in a copy of the tree: traced code is slow
# and must not end up in the environment that people measure with.
# Left out is what does not run traced, and the tests of bench/ and examples/, which are not measured.
$(COVERAGE_VENV)/.ready: pyproject.toml
	@tools/check-system
	@echo "creating $(COVERAGE_VENV)"
	@"$$(tools/check-system --python)" -m venv $(COVERAGE_VENV)
	@$(COVERAGE_VENV)/bin/python -m pip install --quiet --upgrade pip
	@$(COVERAGE_VENV)/bin/python -m pip install --quiet $(BUILD_NEEDS) $(TORCH)
	@touch $@

coverage: $(COVERAGE_VENV)/.ready ## Measure line and branch coverage, Cython included; fail under 90 %
	@mkdir -p $(COVERAGE_TREE)
	@rm -rf $(COVERAGE_TREE)/policies $(COVERAGE_TREE)/tests $(COVERAGE_TREE)/docs
	@cp -rpu pyproject.toml setup.py MANIFEST.in LICENSE README.md CHANGELOG.md Makefile \
	    src policies tests docs tools $(wildcard bench examples kmod CONTRIBUTING.md) $(COVERAGE_TREE)/
	@find $(COVERAGE_TREE)/src -name '*.so' -delete
	@cd $(COVERAGE_TREE) && $(QUIETLY) DEEPUM_COVERAGE=1 $(abspath $(COVERAGE_VENV))/bin/python -m pip install \
	    --quiet --no-build-isolation --editable ".[dev,plot]"
	cd $(COVERAGE_TREE) && rm -f .coverage* && COVERAGE_CORE=ctrace HYPOTHESIS_PROFILE=coverage \
	    $(abspath $(COVERAGE_VENV))/bin/python -m pytest -n $(JOBS) --cov --cov-config=pyproject.toml \
	    --cov-report= --cov-fail-under=0 -m "not slow and not gpu and not kmod" -p no:benchmark \
	    --ignore=tests/managed --ignore=tests/vmm --ignore=tests/fake_cuda --ignore=tests/complaints \
	    --ignore=tests/gpu_bench --ignore=tests/examples \
	    $(PYTEST_ARGS)
	cd $(COVERAGE_TREE) && $(abspath $(COVERAGE_VENV))/bin/python -m coverage report

# The kernel module ---------------------------------------------------------------------------

kmod-test: $(VENV)/.installed ## Boot Debian's 6.12 kernel in QEMU; the module's tests and pytest there
	@PYTHON=$(abspath $(BIN))/python kmod/qemu/test.sh

# The checks that Debian's kernel can make of its memory: of slabs always, by guard pages now and then.
MEMORY_CHECKS := slab_debug=FZPU kfence.sample_interval=1 page_poison=1

kmod-test-all: $(VENV)/.installed ## All of these tests, a million hostile operations
	@KERNEL_ARGS="$(MEMORY_CHECKS)" PYTHON=$(abspath $(BIN))/python \
	    SECONDS_ALLOWED=$${SECONDS_ALLOWED:-3600} HOSTILE=$${HOSTILE:-1000000} \
	    KMOD_MARKERS='kmod and not torch' kmod/qemu/test.sh

kmod-test-debug: ## The same with KASAN, lockdep and kmemleak; builds that kernel first (15 min)
	@tree=$$(kmod/qemu/debug-kernel.sh $(abspath $(DEBUG_KERNEL))) && SECONDS_ALLOWED=3000 \
	    HOSTILE=$${HOSTILE:-1000000} kmod/qemu/test.sh -k "$$tree"

kmod-lint: ## The module without a warning (W=1, 6.1 and 6.12), sparse, checkpatch
	@kmod/qemu/lint.sh

wheel: $(VENV)/.installed ## Build the sdist and the wheel into dist/
	@rm -rf dist
	$(BIN)/python -m build --no-isolation
	@ls -l dist

clean: ## Remove environments, builds and caches
	rm -rf $(VENV) $(COVERAGE_VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache \
	    .hypothesis .coverage .coverage.*
	find src policies tests -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f src/deepum/_core/*.c src/deepum/_core/*.cpp src/deepum/_core/*.so
