#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""check_features.py on tables with one mistake each."""
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools/dev/check_features.py"
spec = importlib.util.spec_from_file_location("check_features", SCRIPT)
sys.dont_write_bytecode = True
check_features = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_features)

JUNIT = '<testsuite><testcase name="Store.get" status="run"/><testcase name="Store.skipped" status="notrun"/></testsuite>'


class CheckFeatures(unittest.TestCase):
    def check(self, replace=None, row="", records=None):
        """Runs the check on a table of open rows in which row `replace` reads `row`."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs").mkdir()
            lines = [row if id == replace else f"| {id} | what | open | |" for id in check_features.IDS]
            (root / "docs/features.md").write_text("\n".join(lines))
            for name, text in (records or {}).items():
                (root / "docs" / name).write_text(text)
            (root / "ran.xml").write_text(JUNIT)
            result = subprocess.run([sys.executable, SCRIPT, "--root", root, "--ran", root / "ran.xml"],
                                    capture_output=True, text=True)
            return result.returncode, result.stderr

    def accepts(self, *arguments, **records):
        self.assertEqual(self.check(*arguments, **records), (0, ""))

    def refuses(self, words, *arguments, **records):
        code, message = self.check(*arguments, **records)
        self.assertEqual(code, 1)
        self.assertIn(words, message)

    def test_open_rows_need_nothing(self):
        self.accepts()

    def test_ids(self):
        self.refuses("PG-07 is missing", "PG-07", "")
        self.refuses("PG-08 is there 2 times", "PG-07", "| PG-08 | what | open | |")
        self.refuses("PG-99 is not an id", "PG-07", "| PG-99 | what | open | |")

    def test_states(self):
        self.accepts("PG-01", "| PG-01 | what | n/a: there is no such thing here | |")
        self.refuses("is none of", "PG-01", "| PG-01 | what | n/a | |")
        self.refuses("is none of", "PG-01", "| PG-01 | what | nearly | |")
        self.refuses("3 columns", "PG-01", "| PG-01 | what | open |")

    def test_names(self):
        self.accepts("PG-01", "| PG-01 | what | done | `Store.get` |")
        self.accepts("PG-01", "| PG-01 | what | done | Store.*, *.get |")
        self.refuses("names no test", "PG-01", "| PG-01 | what | done | |")
        self.refuses("Store.put: no such test", "PG-01", "| PG-01 | what | done | Store.get, Store.put |")
        self.refuses("Store.skipped: no such test", "PG-01", "| PG-01 | what | done | Store.skipped |")
        self.refuses("is not a test name", "PG-01", "| PG-01 | what | done | Store.get (sometimes) |")

    def test_runs_elsewhere(self):
        row = "| PG-01 | what | done | Nccl.all_reduce (GPU) |"
        self.refuses("docs/gpu.md has no dated entry", "PG-01", row)
        self.refuses("docs/gpu.md has no dated entry", "PG-01", row, records={"gpu.md": "Nccl.all_reduce ran once"})
        self.accepts("PG-01", row, records={"gpu.md": "## 2026-01-31\n\n- Nccl.all_reduce passed"})


if __name__ == "__main__":
    unittest.main()
