#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs PyTorch's own tests of torch.distributed (torch.testing._internal.distributed.distributed_test) on a backend.

    pytorch_suite.py --backend gloo --ranks 2 --json gloo2.json
    pytorch_suite.py --backend cohort --ranks 2 --json cohort2.json
    pytorch_suite.py --compare gloo2.json cohort2.json       # what passes on gloo must pass on cohort

The tests are PyTorch's, as they are installed. They name the backends that they are for, so where they say "gloo" or, for
what gloo lacks, "mpi", the name "cohort" is added while they are read. Ranks are forked from one process that has imported
PyTorch, which takes most of the time otherwise.

Tests that are not expected to pass are listed, each with its reason, in pytorch_suite_exceptions.json.
"""
import argparse
import importlib.abc
import importlib.util
import json
import logging
import os
import pathlib
import re
import sys
import time
import types
import unittest

HERE = pathlib.Path(__file__).resolve().parent
TESTS = "torch.testing._internal.distributed.distributed_test"

# What the sources say about backends, and what they say of ours as well.
ALSO_FOR_COHORT = [
    (r'BACKEND == "gloo"', 'BACKEND in ("gloo", "cohort")'),
    (r'BACKEND != "gloo"', 'BACKEND not in ("gloo", "cohort")'),
    (r'BACKEND != "mpi", "Only MPI supports CPU', 'BACKEND not in ("mpi", "cohort"), "Only MPI supports CPU'),
    (r'@require_backend\(\{"gloo"\}\)', '@require_backend({"gloo", "cohort"})'),
    (r"@require_backend\(\{dist.Backend.GLOO\}\)", '@require_backend({"gloo", "cohort"})'),
    (r'@require_backend_is_available\(\{"gloo"\}\)', '@require_backend_is_available({"gloo", "cohort"})'),
    # torch.distributed's own refuses other backends than gloo.
    (r"\bdist\.monitored_barrier\(", "cohort.torch.monitored_barrier("),
]


class Loader(importlib.abc.Loader):
    """Reads the tests with the name of our backend added."""

    def __init__(self, origin):
        self.origin = origin

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        source = pathlib.Path(self.origin).read_text(encoding="utf-8")
        for pattern, replacement in ALSO_FOR_COHORT:
            source = re.sub(pattern, replacement, source)
        exec(compile("import cohort.torch\n" + source, self.origin, "exec"), module.__dict__)


def provide_expecttest():
    """PyTorch's test cases derive from one of a package that Debian does not have; these tests use nothing else of it."""
    if importlib.util.find_spec("expecttest") is None:
        sys.modules["expecttest"] = types.SimpleNamespace(ACCEPT=False, TestCase=unittest.TestCase)


def leave_out_replicated_tensors():
    """Tests of 1.13 switch on DDP with replicated tensors, which later versions do not have any more. Its module cannot be
    imported by Python 3.11, which refuses its data classes."""
    if importlib.util.find_spec("torch.nn.parallel._replicated_tensor_ddp_utils") is not None:
        utils = importlib.import_module("torch.nn.parallel._replicated_tensor_ddp_utils")
        utils._set_ddp_with_replicated_tensor = lambda value: None


def load_tests(backend):
    os.environ["BACKEND"] = backend
    sys.argv[1:] = []  # the tests read the command line
    provide_expecttest()
    from torch.testing._internal import common_distributed

    if backend != "cohort":
        return importlib.import_module(TESTS)
    import torch.distributed as dist

    import cohort.torch

    features = common_distributed.DistTestCases.backend_feature
    for backends in features.values():
        backends.add(backend)
    origin = importlib.util.find_spec(TESTS).origin
    spec = importlib.util.spec_from_loader(TESTS, Loader(origin), origin=origin)
    module = importlib.util.module_from_spec(spec)
    sys.modules[TESTS] = module
    spec.loader.exec_module(module)
    for name in ("PROFILING_SUPPORTED_BACKENDS", "SEND_RECV_PROFILING_SUPPORTED_BACKENDS"):
        getattr(module, name).append("cohort")
    return module


def suite_of(module):
    import torch

    class PyTorchSuite(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return PyTorchSuite


class Results(unittest.TestResult):
    """Prints a line for each test and keeps how it ended."""

    def __init__(self):
        super().__init__()
        self.outcomes = {}
        self.texts = {}

    def startTest(self, test):
        super().startTest(test)
        self.started = time.monotonic()

    def end(self, test, outcome, text=""):
        name = test.id().rsplit(".", 1)[-1]
        self.outcomes[name] = outcome
        if text:
            self.texts[name] = text
        if outcome != "skipped":
            print(f"{outcome:8} {time.monotonic() - self.started:6.1f} s  {name}", flush=True)

    def addSuccess(self, test):
        self.end(test, "passed")

    def addSkip(self, test, reason):
        self.end(test, "skipped", reason)

    def addFailure(self, test, error):
        self.end(test, "failed", self._exc_info_to_string(error, test))

    addError = addFailure

    def addUnexpectedSuccess(self, test):
        self.end(test, "failed", "it was expected to fail")

    def addExpectedFailure(self, test, error):
        self.end(test, "passed")


def read_exceptions():
    """Why each test is not expected to pass, by version of PyTorch: {name: reason}."""
    import torch

    major = torch.__version__.split(".")[0]
    listed = json.loads((HERE / "pytorch_suite_exceptions.json").read_text(encoding="utf-8"))
    return {**listed.get("every version", {}), **listed.get(major, {})}


def run(arguments):
    os.environ.update(WORLD_SIZE=str(arguments.ranks), MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo",
                      OMP_NUM_THREADS="1", DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(arguments.timeout))
    module = load_tests(arguments.backend)
    logging.getLogger().setLevel(logging.ERROR)
    leave_out_replicated_tensors()
    tests = suite_of(module)
    names = [name for name in unittest.defaultTestLoader.getTestCaseNames(tests) if re.search(arguments.only, name)]
    if arguments.sample:
        wanted = (HERE / "pytorch_suite_sample.txt").read_text(encoding="utf-8").split()
        unknown = sorted(set(wanted) - set(names))
        if unknown:
            print(f"pytorch_suite.py: this PyTorch has no test {', '.join(unknown)}", file=sys.stderr)
        names = [name for name in names if name in wanted]
    results = Results()
    for name in names:
        tests(name)(results)
    outcomes = results.outcomes
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"backend": arguments.backend, "ranks": arguments.ranks, "outcomes": outcomes,
                       "texts": results.texts}, out, indent=1)
    counts = {each: sum(outcome == each for outcome in outcomes.values()) for each in ("passed", "failed", "skipped")}
    print(f"{arguments.backend}, {arguments.ranks} processes: {counts['passed']} passed, {counts['failed']} failed, "
          f"{counts['skipped']} skipped")
    expected = read_exceptions() if arguments.backend == "cohort" else {}
    failed = [name for name, outcome in outcomes.items() if outcome == "failed"]
    for name in failed:
        print(f"\n--- {name}" + (f" (expected: {expected[name]})" if name in expected else ""))
        print("\n".join(results.texts[name].splitlines()[-arguments.lines:]))
    if counts["passed"] == 0:
        print("pytorch_suite.py: no test ran", file=sys.stderr)
        return 1
    # Some fail on every backend (with Python 3.14, test_gather_object), so what is written down is judged by comparing.
    return 0 if arguments.json else int(bool(set(failed) - set(expected)))


def compare(theirs_file, ours_file):
    """Whether each test that passes on the one backend passes on ours or is listed, and no listed one passes."""
    theirs, ours = (json.loads(pathlib.Path(each).read_text(encoding="utf-8")) for each in (theirs_file, ours_file))
    listed = read_exceptions()
    passes = {name for name, outcome in theirs["outcomes"].items() if outcome == "passed"}
    ours_passes = {name for name, outcome in ours["outcomes"].items() if outcome == "passed"}
    missing = sorted(passes - ours_passes - set(listed))
    print(f"{theirs['backend']}: {len(passes)} pass; cohort: {len(ours_passes)} pass, {len(passes & ours_passes)} of them "
          f"are those, {len(ours_passes - passes)} are others; {len((passes - ours_passes) & set(listed))} are listed as "
          f"exceptions; {len(missing)} are not explained")
    for name in missing:
        print(f"  {name}: {ours['outcomes'].get(name, 'not run')}")
    stale = sorted(name for name in listed if name in ours_passes)
    for name in stale:
        print(f"  {name} passes, and should not be listed as an exception")
    return 1 if missing or stale else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cohort", choices=["gloo", "cohort"])
    parser.add_argument("--ranks", type=int, default=2, help="processes of each test (default: %(default)s)")
    parser.add_argument("--only", default="", metavar="PATTERN", help="the tests whose names match")
    parser.add_argument("--sample", action="store_true", help="the tests of pytorch_suite_sample.txt alone")
    parser.add_argument("--timeout", type=int, default=120, help="seconds for each test (default: %(default)s)")
    parser.add_argument("--lines", type=int, default=12, help="lines shown of each failure (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write how each test ended to this file")
    parser.add_argument("--compare", nargs=2, metavar=("GLOO", "COHORT"), help="compare two such files")
    arguments = parser.parse_args()
    return compare(*arguments.compare) if arguments.compare else run(arguments)


if __name__ == "__main__":
    sys.exit(main())
