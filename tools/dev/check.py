#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Builds and runs the tests whose names match a regular expression, and nothing else: `make check TEST=AllReduce`.

usage: check.py PRESET PATTERN [JOBS]

Names are Suite.Name, Prefix/Suite.Name/Parameter, or what add_test() was given. Which binary has a test is known before
it is built, from the sources that each test binary is made of (test_sources.txt in the build folder). ctest knows some
binaries as one test; tests/support/run_cases.py then runs the tests that match. Tests labelled "long" are left out, as in
`make test`.
"""
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEST = re.compile(r"^\s*(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.MULTILINE)
INSTANCE = re.compile(r"^\s*INSTANTIATE_(?:TYPED_)?TEST_SUITE_P\(\s*(\w+)\s*,\s*(\w+)", re.MULTILINE)
LONG = "^long$"


def run(*command, **environment):
    code = subprocess.run(command, cwd=ROOT, check=False, env={**os.environ, **environment}).returncode
    if code != 0:
        sys.exit(code)


def output_of(*command):
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def names_in(source):
    """The names of a source's tests, as far as the source says: parameters are made when the tests run."""
    text = pathlib.Path(source).read_text(encoding="utf-8")
    prefixes = {}
    for prefix, suite in INSTANCE.findall(text):
        prefixes.setdefault(suite, []).append(prefix)
    for suite, name in TEST.findall(text):
        yield f"{suite}.{name}"
        for prefix in prefixes.get(suite, []):
            yield f"{prefix}/{suite}.{name}/"


def binaries_with(pattern, build):
    """Targets of GoogleTest binaries that have a matching test, and whether ctest knows such a binary as one test."""
    for line in (build / "test_sources.txt").read_text(encoding="utf-8").splitlines():
        target, source, *together = line.split("\t")
        if source.endswith(".cpp") and any(pattern.search(name) for name in names_in(source)):
            yield target, bool(together)


def listed_tests(pattern, build):
    """What ctest knows now: tests of what has been built, and those that are no GoogleTest."""
    shown = output_of("ctest", "--test-dir", str(build), "-LE", LONG, "--show-only=json-v1")
    return [test for test in json.loads(shown)["tests"] if pattern.search(test["name"])]


def targets_of(tests, build, known):
    """Of tests that run other programs: these, and the modules that engines are loaded from."""
    for test in tests:
        for word in test.get("command", []):
            if word.startswith(f"{build}/") and word[len(str(build)) + 1:] in known:
                yield word[len(str(build)) + 1:]
        labels = [each["value"] for each in test.get("properties", []) if each["name"] == "LABELS"]
        if labels and "engines" in labels[0]:
            yield from (name for name in known if re.fullmatch(r"cohort_(gloo|mpi_\w+)", name))


def main():
    if len(sys.argv) not in (3, 4) or not sys.argv[2]:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    preset, pattern, jobs = sys.argv[1], re.compile(sys.argv[2]), (sys.argv[3:] or ["2"])[0]
    build = ROOT / "build" / preset
    if not (build / "test_sources.txt").exists():
        run("cmake", "--preset", preset)
    known = {line.split(":")[0] for line in output_of("ninja", "-C", str(build), "-t", "targets", "all").splitlines()}
    binaries = set(binaries_with(pattern, build))
    targets = {target for target, _ in binaries} | set(targets_of(listed_tests(pattern, build), build, known))
    # A binary whose own name matches runs whole.
    in_part = sorted(target for target, together in binaries if together and not pattern.search(target))
    if targets:
        run("cmake", "--build", str(build), "-j", jobs, "--target", *sorted(targets))
    if not in_part and not listed_tests(pattern, build):
        print(f'check: no test has a name that matches "{sys.argv[2]}" (long tests are not looked at); '
              f"ctest --test-dir {build.relative_to(ROOT)} -N lists the names", file=sys.stderr)
        return 1
    ctest = ["ctest", "--test-dir", str(build), "-LE", LONG, "--output-on-failure", "-j", jobs]
    if listed_tests(pattern, build):
        run(*ctest, "-R", sys.argv[2])
    if in_part:
        run(*ctest, "-R", f"^({'|'.join(in_part)})$", COHORT_TEST_CASES=sys.argv[2])
    return 0


sys.exit(main())
