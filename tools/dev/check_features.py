#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks docs/features.md, the table `| id | capability | state | test |`.

Every id is there exactly once (PG-01..PG-83, DDP-01..DDP-66, GC-01..GC-43, PY-01..PY-12). A state is `done`, `open` or
`n/a: reason`. A row that is done names tests, separated by commas, that exist; `*` stands for anything and
must match at least one. A test that CI does not run carries `(GPU)` or `(long)` after its name, and then docs/gpu.md
or docs/long-runs.md must mention the name beneath a date (YYYY-MM-DD).
"""
import argparse
import fnmatch
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

IDS = [f"{area}-{n:02}" for area, last in (("PG", 83), ("DDP", 66), ("GC", 43), ("PY", 12)) for n in range(1, last + 1)]
RUN_ELSEWHERE = {"GPU": "docs/gpu.md", "long": "docs/long-runs.md"}
DATE = re.compile(r"\b\d{4}-\d{2}-\d{2}\b")
TEST = re.compile(r"`?(?P<name>[^\s`(]+)`?(?:\s+\((?P<mark>\w+)\))?$")


class Row:
    def __init__(self, line_number, cells):
        self.line = line_number
        self.id, self.capability, self.state, self.test = cells

    def tests(self):
        return [entry.strip() for entry in self.test.split(",") if entry.strip()]


def read_rows(path, problems):
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not re.match(r"\|\s*[A-Z]+-\d", line):
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if len(cells) != 4:
            problems.append(f"{path.name}:{number}: {len(cells)} columns, not id, capability, state, test")
            continue
        rows.append(Row(number, cells))
    return rows


def tests_that_ran(junit):
    """The tests that ran to the end in a run of tools/dev/run_tests.py; skipped ones did not."""
    return {case.get("name") for case in ElementTree.parse(junit).iter("testcase") if case.get("status") == "run"}


def dated_entries(path):
    """The text of each entry: from a line with a date to the next such line."""
    entries = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            if DATE.search(line):
                entries.append(line)
            elif entries:
                entries[-1] += "\n" + line
    return entries


def check_ids(rows):
    for row in rows:
        if row.id not in IDS:
            yield f"line {row.line}: {row.id} is not an id of the checklist"
    seen = [row.id for row in rows]
    for known in IDS:
        count = seen.count(known)
        if count != 1:
            yield f"{known} is {'missing' if count == 0 else f'there {count} times'}"


def check_tests(row, root, known, how_known):
    if not row.tests():
        yield "is done but names no test"
    for entry in row.tests():
        match = TEST.match(entry)
        if not match or match["mark"] not in (None, *RUN_ELSEWHERE):
            yield f'"{entry}" is not a test name, nor one followed by (GPU) or (long)'
        elif match["mark"]:
            record = RUN_ELSEWHERE[match["mark"]]
            if not any(match["name"] in text for text in dated_entries(root / record)):
                yield f'{match["name"]} ({match["mark"]}): {record} has no dated entry that mentions it'
        elif known is not None and not fnmatch.filter(known, match["name"]):
            yield f'{match["name"]}: no such test {how_known}'


def check_rows(rows, root, known, how_known):
    for row in rows:
        if not row.capability:
            yield f"{row.id}: no capability"
        if row.state == "done":
            yield from (f"{row.id} {problem}" for problem in check_tests(row, root, known, how_known))
        elif row.state != "open" and not re.match(r"n/a: \S", row.state):
            yield f'{row.id}: the state "{row.state}" is none of done, open, n/a: reason'


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=root, help="the repository (default: this one)")
    parser.add_argument("--ran", type=pathlib.Path,
                        help="test-results.xml of a run: only tests that ran count; without, names are not looked up")
    arguments = parser.parse_args()

    known, how_known = None, ""
    if arguments.ran:
        known, how_known = tests_that_ran(arguments.ran), f"ran, says {arguments.ran}"

    problems = []
    rows = read_rows(arguments.root / "docs/features.md", problems)
    problems += check_ids(rows)
    problems += check_rows(rows, arguments.root, known, how_known)
    for problem in problems:
        print(f"docs/features.md: {problem}", file=sys.stderr)
    states = [row.state.split(":")[0] for row in rows]
    summary = ", ".join(f"{states.count(state)} {state}" for state in ("done", "open", "n/a"))
    print(f"{len(rows)} rows: {summary}; {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
