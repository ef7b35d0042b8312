#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes the fault table of docs/faults.md from the results of tests/faults/fault_table_test.cpp.

    build/default/tests/faults/fault_table_test --gtest_output=json:cells.json
    tools/dev/fault_table.py cells.json            # rewrites the table between its two markers
    tools/dev/fault_table.py --check               # every cell of the table has its test, and every test its cell
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "faults.md"
BEGIN = "<!-- fault table: written by tools/dev/fault_table.py -->"
END = "<!-- end of the fault table -->"
WORDS = {
    "PeerLostError": "lost",
    "OperationTimeoutError": "timeout",
    "AbortedError": "aborted",
    "MismatchError": "mismatch",
}


def results(path):
    """The cells of a run as (backend, phase, fault, text); a failed test is an error."""
    cells = []
    for suite in json.loads(pathlib.Path(path).read_text())["testsuites"]:
        for test in suite["testsuite"]:
            if "failures" in test:
                sys.exit(f"fault_table.py: {test['name']} failed: there is no table of a run that failed")
            if "phase" in test:
                text = f"{WORDS[test['error']]} {test['milliseconds']} ms"
                cells.append((test["backend"], test["phase"], test["fault"], text))
    if not cells:
        sys.exit(f"fault_table.py: {path} holds no results of fault_table_test")
    return cells


def in_order(values):
    return list(dict.fromkeys(values))


def render(cells):
    faults = in_order(fault for _, _, fault, _ in cells)
    text = {(backend, phase, fault): value for backend, phase, fault, value in cells}
    lines = []
    for backend in in_order(backend for backend, _, _, _ in cells):
        lines += ["", f"| {backend} | " + " | ".join(fault.replace("_", " ") for fault in faults) + " |"]
        lines.append("|---" * (len(faults) + 1) + "|")
        for phase in in_order(phase for _, phase, _, _ in cells):
            row = [text.get((backend, phase, fault), "–") for fault in faults]
            lines.append(f"| `{phase}` | " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n\n"


def cells_of_page():
    """The names of the cells on the page, as the tests are called."""
    table = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    names = set()
    for block in re.split(r"\n\n+", table.strip()):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        backend, *faults = rows[0]
        for phase, *outcomes in rows[2:]:
            for fault, outcome in zip(faults, outcomes):
                if outcome != "–":
                    names.add(f"{backend}_{fault.replace(' ', '_')}_{phase.strip('`')}")
    return names


def check(binary):
    listed = subprocess.run([binary, "--gtest_list_tests"], check=True, capture_output=True, text=True).stdout
    tests = set(re.findall(r"^  Cell/(\w+)", listed, re.M))
    cells = cells_of_page()
    for name in sorted(cells - tests):
        print(f"docs/faults.md: the cell {name} has no test")
    for name in sorted(tests - cells):
        print(f"docs/faults.md: the test {name} has no cell")
    print(f"fault table: {len(cells)} cells, {len(cells ^ tests)} problems")
    return 1 if cells != tests else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", help="the JSON file of a run of fault_table_test")
    parser.add_argument("--check", action="store_true", help="compare the page with the tests that exist")
    parser.add_argument("--binary", default=ROOT / "build/default/tests/faults/fault_table_test")
    given = parser.parse_args()
    if given.check:
        return check(given.binary)
    if given.results is None:
        parser.error("give the JSON file of a run, or --check")
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(before + BEGIN + render(results(given.results)) + END + after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
