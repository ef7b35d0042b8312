# SPDX-License-Identifier: BSD-3-Clause
# Shortcuts. The build itself is CMake's: see CMakePresets.json.

JOBS ?= $(shell nproc)
# Tests wait more than they compute, but start processes of their own.
TEST_JOBS ?= $(shell n=$$(nproc); [ $$n -lt 2 ] && n=2; [ $$n -gt 4 ] && n=4; echo $$n)
FUZZ_SECONDS ?= 600
# For check: default, or debug, where each source is compiled by itself.
PRESET ?= default
DEMO := build/default/demo
# More options for the demo, as in DEMO_ARGS="--steps 100"; gpt_demo --help lists them.
DEMO_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help build demo test check check-long bench format lint wheel deb

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## installs what is missing (Debian 12), builds everything into build/default
	@tools/dev/install_deps.sh engines torch python
	@cmake --preset default
	@cmake --build --preset default -j $(JOBS)

# Only what it needs, into the folder that the other targets go on with.
demo: ## two processes train a small GPT, beside one process alone; ends with a picture of both loss curves
	@echo "demo: builds the library, the cohort command and the demo: about 4 minutes on 2 cores the first time"
	@tools/dev/install_deps.sh torch
	@cmake --preset default >/dev/null
	@cmake --build --preset default -j $(JOBS) --target cohort_tool gpt_demo
	@echo "demo: trains a small GPT, first with two processes, then with one: about a minute on 2 cores"
	@if [ -t 1 ]; then in_place=--in-place; fi; \
	  build/default/tools/cohort/cohort run --no-prefix -n 2 build/default/examples/gpt_demo --losses $(DEMO)_losses.csv \
	  --timeline $(DEMO)_timeline.json $$in_place $(DEMO_ARGS)
	@examples/gpt/draw.py $(DEMO)_losses.csv $(DEMO)_timeline.json > $(DEMO).svg
	@echo "demo: both loss curves, and how communication overlapped with computing: $(DEMO).svg"

test: build ## builds and runs the tests (two minutes of tests)
	ctest --preset default -j $(TEST_JOBS) --output-junit test-results.xml

check: ## builds and runs the tests whose names match TEST, a regular expression: make check TEST=AllReduce
	@if [ -z '$(TEST)' ]; then echo "make check needs TEST=NAME, as in: make check TEST=AllReduce" >&2; exit 2; fi
	@tools/dev/install_deps.sh engines torch python
	@tools/dev/check.py $(PRESET) '$(TEST)' $(JOBS)

check-long: build ## what takes long: more tests, all of them sanitized, clang, aarch64, each fuzzer for FUZZ_SECONDS
	@tools/dev/install_deps.sh engines torch python long fuzz arm packaging
	ctest --test-dir build/default -L '^long$$' --output-on-failure
	cmake --preset clang -DCMAKE_UNITY_BUILD=OFF && cmake --build --preset clang -j $(JOBS) && ctest --preset clang -j $(TEST_JOBS)
	for preset in asan tsan; do cmake --preset $$preset -DCOHORT_TOOLS=ON && cmake --build --preset $$preset -j $(JOBS) && \
	  setarch -R ctest --preset $$preset -j $(TEST_JOBS) || exit 1; done
	tools/dev/aarch64.sh
	FUZZ_SECONDS=$(FUZZ_SECONDS) tools/dev/fuzz.sh

bench: ## builds and runs the benchmarks against their peers
	@tools/dev/install_deps.sh engines torch python bench
	cmake --preset default -DCOHORT_BENCH=ON
	cmake --build --preset default -j $(JOBS)
	bench/run.sh build/default

format: ## formats the sources in place
	@tools/dev/install_deps.sh lint
	tools/dev/lint.sh --fix-format

lint: build ## formatting, clang-tidy, layering, the feature table
	@tools/dev/install_deps.sh lint
	tools/dev/lint.sh

wheel: ## builds the Python package for the Python that has PyTorch (or PYTHON=...), into build/wheel
	@tools/dev/install_deps.sh engines torch python packaging
	@tools/dev/build_wheel.sh

deb: ## builds Debian packages in a clean Debian and tries them in another, into build/deb/packages (as root)
	@tools/dev/install_deps.sh packaging
	@tools/dev/build_deb.sh
