#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs the tests of a build folder and counts them case by case.

usage: run_tests.py PRESET [CTEST_OPTION...]

ctest knows some binaries as one test each; what tests/support/run_cases.py reports of their cases takes the place of
that test in build/PRESET/test-results.xml, a JUnit file. Ends with "N passed, N failed, N skipped".
"""
import os
import pathlib
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Tests wait for deadlines a good part of their time, but have several ranks each.
JOBS = os.environ.get("TEST_JOBS") or str(min(16, max(2, 2 * os.cpu_count())))


def merged(junit, reports):
    """ctest's results, with those of cases in place of the binary's that they are in."""
    suite = ElementTree.parse(junit).getroot()
    for test in list(suite.iter("testcase")):
        report = reports / f"{test.get('name')}.xml"
        if not report.exists():
            continue
        cases = list(ElementTree.parse(report).iter("testcase"))
        # A binary may fail without a case that does: one that ctest had to stop, say.
        if test.get("status") != "fail" or any(case.get("status") == "fail" for case in cases):
            suite.remove(test)
        suite.extend(cases)
    return suite


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    build = ROOT / "build" / sys.argv[1]
    junit, reports = build / "test-results.xml", build / "test-reports"
    shutil.rmtree(reports, ignore_errors=True)
    junit.unlink(missing_ok=True)
    code = subprocess.run(["ctest", "--test-dir", build, "-j", JOBS, "--output-on-failure", "--no-tests=error",
                           "--output-junit", junit, *sys.argv[2:]], check=False).returncode
    if not junit.exists():
        return code or 1
    suite = merged(junit, reports)
    ElementTree.ElementTree(suite).write(junit, encoding="utf-8")
    cases = list(suite.iter("testcase"))
    failed = [case.get("name") for case in cases if case.get("status") == "fail"]
    passed = sum(case.get("status") == "run" for case in cases)
    for name in failed:
        print(f"failed: {name}")
    print(f"{passed} passed, {len(failed)} failed, {len(cases) - passed - len(failed)} skipped")
    return code or (1 if failed else 0)


if __name__ == "__main__":
    sys.exit(main())
