# SPDX-License-Identifier: BSD-3-Clause
# Shortcuts. The build itself is CMake's: see CMakePresets.json.

JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 600
# For check: default, or debug, where each source is compiled by itself.
PRESET ?= default
DEMO := build/default/demo
# For check-suites.
SUITES ?= trixie forky
# For deb: a release of Debian, if not this machine's.
SUITE ?=
# More options for the demo, as in DEMO_ARGS="--steps 100"; gpt_demo --help lists them.
DEMO_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help build demo test check check-long check-suites bench format lint wheel deb

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

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
	@echo "demo: trains a small GPT with two processes, and its first steps with one: about a minute on 2 cores"
	@if [ -t 1 ]; then in_place=--in-place; fi; \
	  build/default/tools/cohort/cohort run --no-prefix -n 2 build/default/examples/gpt_demo --losses $(DEMO)_losses.csv \
	  --timeline $(DEMO)_timeline.json $$in_place $(DEMO_ARGS)
	@examples/gpt/draw.py $(DEMO)_losses.csv $(DEMO)_timeline.json > $(DEMO).svg
	@echo "demo: both loss curves, and how communication overlapped with computing: $(DEMO).svg"

test: build ## builds and runs the tests: 15 to 20 minutes on 2 cores the first time
	@tools/dev/run_tests.py default -LE '^long$$'
	@tools/dev/check_features.py --ran build/default/test-results.xml

check: ## builds and runs the tests whose names match TEST, a regular expression: make check TEST=AllReduce
	@if [ -z '$(TEST)' ]; then echo "make check needs TEST=NAME, as in: make check TEST=AllReduce" >&2; exit 2; fi
	@tools/dev/install_deps.sh engines torch python
	@tools/dev/check.py $(PRESET) '$(TEST)' $(JOBS)

check-long: build ## what takes long: more tests, all of them sanitized, clang, clang-tidy, aarch64, each fuzzer for FUZZ_SECONDS
	@tools/dev/install_deps.sh engines torch python lint long fuzz arm packaging
	ctest --test-dir build/default -L '^long$$' --output-on-failure
	cmake --preset clang -DCMAKE_UNITY_BUILD=OFF && cmake --build --preset clang -j $(JOBS) && \
	  tools/dev/run_tests.py clang -LE '^long$$'
	for preset in asan tsan; do cmake --preset $$preset -DCOHORT_TOOLS=ON -DCOHORT_QUICK_TESTS=OFF && \
	  cmake --build --preset $$preset -j $(JOBS) && setarch -R tools/dev/run_tests.py $$preset -LE '^long$$' || exit 1; done
	tools/dev/lint.sh --tidy
	tools/dev/aarch64.sh
	FUZZ_SECONDS=$(FUZZ_SECONDS) tools/dev/fuzz.sh
	$(MAKE) check-suites
	tools/dev/suite.sh forky ctest --test-dir build/default -L '^long$$' -R 'racle|pytorch_suite' --output-on-failure
	tools/dev/suite.sh forky sh -c 'tools/dev/install_deps.sh engines torch tidy && tools/dev/lint.sh --tidy-torch'

check-suites: ## the tests in Debian 13 and testing, with newer compilers and libtorch (SUITES=...); systems in build/suites
	@tools/dev/install_deps.sh packaging
	@for suite in $(SUITES); do tools/dev/suite.sh $$suite make test || exit 1; done

bench: ## builds and runs the benchmarks against their peers
	@tools/dev/install_deps.sh engines torch python bench
	cmake --preset default -DCOHORT_BENCH=ON
	cmake --build --preset default -j $(JOBS)
	bench/run.sh build/default

format: ## formats the sources in place
	@tools/dev/install_deps.sh lint
	tools/dev/lint.sh --fix-format

lint: ## formatting, layering, the feature table, clang-tidy on what has changed
	@tools/dev/install_deps.sh engines torch lint
	tools/dev/lint.sh

wheel: ## builds the Python package for the Python that has PyTorch (or PYTHON=...), into build/wheel
	@tools/dev/install_deps.sh engines torch python packaging
	@tools/dev/build_wheel.sh

deb: ## builds packages in a clean Debian and tries them in another (as root; SUITE=trixie: of that release), into build/deb
	@tools/dev/install_deps.sh packaging
	@tools/dev/build_deb.sh $(SUITE)
