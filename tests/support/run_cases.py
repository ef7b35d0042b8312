#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs the cases of a GoogleTest binary in one process, and reports each of them by its name.

usage: run_cases.py BINARY REPORT [--limit SECONDS] [--exclude REGEX]

Loading libtorch takes longer than most tests of it, so ctest knows a binary of the torch layer as one test. What it
found out case by case is in REPORT, a JUnit file that tools/dev/run_tests.py adds to ctest's own. Cases that fork or
die (Processes or DeathTest in their names) have a process each, because a fork copies no threads but the one that
forks. A case that ends its process or exceeds the limit is named and counts as failed, and the cases behind it run in
another process.

COHORT_TEST_CASES in the environment, a regular expression, chooses among the cases: tools/dev/check.py sets it.
"""
import argparse
import ctypes
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree

ALONE = re.compile("Processes|DeathTest")
STARTED = re.compile(r"\[ RUN      \] (\S+)$")
ENDED = re.compile(r"\[(       OK |  FAILED  |  SKIPPED )\] ([^\s,]+).*\((\d+) ms\)$")
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def die_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def list_cases(binary):
    listed = subprocess.run([binary, "--gtest_list_tests"], check=True, stdout=subprocess.PIPE, text=True).stdout
    suite, cases = None, []
    for line in listed.splitlines():
        name = line.split("#")[0].rstrip()
        if name.startswith("  "):
            cases.append(suite + name.strip())
        elif name.endswith("."):
            suite = name
    return [case for case in cases if ".DISABLED_" not in case and not case.startswith("DISABLED_")]


class Case:
    def __init__(self, name, seconds, failure=None, skipped=None):
        self.name, self.seconds, self.failure, self.skipped = name, seconds, failure, skipped


class Output:
    """Passes on what the binary prints, and notes which case it is in."""

    def __init__(self):
        self.current, self.since, self.ended, self.rest, self.said = None, time.monotonic(), [], b"", []

    def take(self, data):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in (each.decode(errors="replace") for each in lines):
            started, ended = STARTED.search(line), ENDED.search(line)
            if started:
                self.current, self.since, self.said = started[1], time.monotonic(), []
            elif ended and ended[2] == self.current:
                said = "\n".join(self.said) or "nothing was said"
                failure = said if "FAILED" in ended[1] else None
                skipped = said if "SKIPPED" in ended[1] else None
                self.ended.append(Case(ended[2], int(ended[3]) / 1000, failure, skipped))
                self.current, self.since = None, time.monotonic()
            else:
                self.said.append(line)


def reported(path):
    """The cases of GoogleTest's own report."""
    for suite in json.loads(path.read_text())["testsuites"]:
        for test in suite["testsuite"]:
            if test["status"] != "RUN":
                continue
            failure = "\n".join(each["failure"] for each in test.get("failures", [])) or None
            skipped = "skipped" if test["result"] == "SKIPPED" else None
            yield Case(f"{test['classname']}.{test['name']}", float(test["time"].rstrip("s")), failure, skipped)


def run(binary, cases, limit):
    """Runs cases in one process and returns what is known of each: fewer than asked for if one of them ended it."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        process = subprocess.Popen([binary, f"--gtest_output=json:{report}"],
                                   env={**os.environ, "GTEST_FILTER": ":".join(cases)}, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=die_with_parent)
        output, overdue = Output(), False
        pipe = process.stdout.fileno()
        while process.poll() is None:
            # Not until the end of the pipe: processes that a case left behind may hold it open.
            if select.select([pipe], [], [], 0.1)[0]:
                output.take(os.read(pipe, 1 << 16))
            if time.monotonic() - output.since > limit:
                overdue = True
                process.kill()
                process.wait()
        while select.select([pipe], [], [], 0)[0] and (data := os.read(pipe, 1 << 16)):
            output.take(data)
        if report.exists() and not overdue:
            results = list(reported(report))
            # What a sanitizer finds out at the end belongs to no case.
            if process.returncode != int(any(case.failure for case in results)):
                how = ended_how(process.returncode)
                print(f"[  FAILED  ] {binary.name} {how} after its last case", flush=True)
                results.append(Case(f"{binary.name}.end_of_the_process", 0, f"{how} after the last case"))
            return results
        name = output.current or "the process, between two cases,"
        how = f"took longer than {limit} s" if overdue else ended_how(process.returncode)
        print(f"[  FAILED  ] {name} {how}", flush=True)
        failed = Case(output.current or cases[len(output.ended)], time.monotonic() - output.since, f"{name} {how}")
        return output.ended + [failed]


def ended_how(code):
    if code < 0:
        return f"ended its process with signal {-code} ({signal.Signals(-code).name})"
    return f"ended its process with code {code}"


def write_report(path, suite, cases):
    root = ElementTree.Element("testsuite", name=suite)
    for case in cases:
        status = "fail" if case.failure else "notrun" if case.skipped else "run"
        entry = ElementTree.SubElement(root, "testcase", name=case.name, classname=suite, time=f"{case.seconds:.3f}",
                                       status=status)
        if case.failure:
            ElementTree.SubElement(entry, "failure").text = printable(case.failure)
        elif case.skipped:
            ElementTree.SubElement(entry, "skipped").text = printable(case.skipped)
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(root).write(path, encoding="utf-8")


def printable(text):
    """Without what XML does not allow."""
    return "".join(c for c in text if c in "\t\n" or c.isprintable())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--limit", type=float, default=120, help="seconds that one case may take")
    parser.add_argument("--exclude", help="cases that do not run: a regular expression")
    arguments = parser.parse_args()

    arguments.report.unlink(missing_ok=True)
    wanted = re.compile(os.environ.get("COHORT_TEST_CASES", ""))
    cases = [case for case in list_cases(arguments.binary)
             if wanted.search(case) and not (arguments.exclude and re.search(arguments.exclude, case))]
    if not cases:
        print(f"{arguments.binary.name}: no case to run")
        return 1
    results = []
    together = [case for case in cases if not ALONE.search(case)]
    while together:
        results += run(arguments.binary, together, arguments.limit)
        known = {case.name for case in results}
        if not known.intersection(together):  # or this would never end
            results += [Case(case, 0, "was listed, but did not run") for case in together]
            break
        together = [case for case in together if case not in known]
    for case in cases:
        if ALONE.search(case):
            results += run(arguments.binary, [case], arguments.limit)
    write_report(arguments.report, arguments.binary.name, results)

    failed = [case.name for case in results if case.failure]
    skipped = sum(case.skipped is not None for case in results)
    print(f"{arguments.binary.name}: {len(results) - len(failed) - skipped} passed, {len(failed)} failed, {skipped} skipped")
    for name in failed:
        print(f"failed: {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
