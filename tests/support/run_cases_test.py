#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""run_cases.py on cases that pass, fail, crash and hang: run_cases_test.py BINARY"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

SCRIPT = pathlib.Path(__file__).resolve().parent / "run_cases.py"
BINARY = sys.argv.pop()


def run(chosen, *options):
    """The exit code, the output, and of each case its status and what is said of it."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.xml"
        done = subprocess.run([sys.executable, SCRIPT, BINARY, report, "--limit", "2", *options], text=True,
                              capture_output=True, env={**os.environ, "COHORT_TEST_CASES": chosen}, check=False)
        cases = ElementTree.parse(report).iter("testcase") if report.exists() else []
        return done.returncode, done.stdout, {
            case.get("name"): (case.get("status"), "".join(child.text for child in case)) for case in cases}


class RunCases(unittest.TestCase):
    def test_reports_every_case_by_its_name(self):
        code, output, cases = run(r"^Cases\.|Processes")
        self.assertEqual(code, 1)
        self.assertIn("runner_cases: 4 passed, 3 failed, 1 skipped\n", output)
        self.assertEqual({name: status for name, (status, _) in cases.items()}, {
            "Cases.Pass": "run", "Cases.Fail": "fail", "Cases.Crash": "fail", "Cases.AfterACrash": "run",
            "Cases.Hang": "fail", "Cases.AfterAHang": "run", "Cases.Skip": "notrun", "CasesWithProcesses.AreAlone": "run"})
        self.assertIn("as it should", cases["Cases.Fail"][1])
        self.assertIn("signal 6 (SIGABRT)", cases["Cases.Crash"][1])
        self.assertIn("took longer than 2", cases["Cases.Hang"][1])

    def test_passes_if_all_cases_do(self):
        code, _, cases = run("Pass|Skip")
        self.assertEqual((code, sorted(cases)), (0, ["Cases.Pass", "Cases.Skip"]))

    def test_does_not_overlook_how_the_process_ends(self):
        code, output, cases = run("Cases.Pass|CasesInTheEnd")
        self.assertEqual(code, 1)
        self.assertEqual(cases["runner_cases.end_of_the_process"][0], "fail")
        self.assertIn("code 66", output)

    def test_leaves_out_what_it_is_told_to(self):
        code, _, cases = run("Pass|Processes", "--exclude", "Processes")
        self.assertEqual((code, list(cases)), (0, ["Cases.Pass"]))

    def test_fails_without_cases(self):
        code, output, _ = run("NoSuchCase")
        self.assertEqual(code, 1)
        self.assertIn("no case", output)


unittest.main()
