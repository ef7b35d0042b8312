#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""check_snippets.py on headers and pages with one mistake each. usage: check_snippets_test.py COMPILER"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().with_name("check_snippets.py")
COMPILER = sys.argv.pop(1)


class CheckSnippets(unittest.TestCase):
    def check(self, part, **texts):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "include/cohort").mkdir(parents=True)
            (root / "docs").mkdir()
            files = {"include/cohort/cohort.h": "// All of it.\n#pragma once\n", "README.md": "", "CONTRIBUTING.md": "",
                     "prelude.h": "extern int x;\n"}
            files.update({name.replace("__", "/").replace("_DOT_", "."): text for name, text in texts.items()})
            for name, text in files.items():
                (root / name).write_text(text, encoding="utf-8")
            # With a copy of the script, so that its prelude is this one.
            (root / SCRIPT.name).write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
            command = [sys.executable, root / SCRIPT.name, root, part, COMPILER, f"-I{root / 'include'}"]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            return result.returncode, result.stdout + result.stderr

    def header(self, *lines):
        comment = "".join(f"// {line}".rstrip() + "\n" for line in lines)
        return self.check("core", include__cohort__mine_DOT_h=comment + "#pragma once\nint twice(int n);\n")

    def page(self, text):
        return self.check("core", docs__page_DOT_md=text)

    def test_good_examples_pass(self):
        code, output = self.header("Doubles:", "", "  int y = twice(x);", "  class A { int a = 0; };", "", "Again:", "",
                                   "  int y = twice(x);", "  { ... }")
        self.assertEqual(code, 0, output)
        self.assertIn("2 examples", output)
        code, output = self.page("```cpp\nint y = x;\n```\n\n```cpp\nint z = y;\n```\n\n```text\nnot code\n```\n")
        self.assertEqual(code, 0, output)

    def test_example_that_does_not_compile(self):
        code, output = self.header("Doubles:", "", "  thrice(x);")
        self.assertNotEqual(code, 0)
        self.assertIn("mine.h:3", output)
        code, output = self.page("Text.\n\n```cpp\nint y = nobody;\n```\n")
        self.assertNotEqual(code, 0)
        self.assertIn("page.md:4", output)

    def test_text_must_be_marked(self):
        self.assertNotEqual(self.header("A table:", "", "  one   two")[0], 0)
        self.assertEqual(self.header("A table:", "", "```text", "  one   two", "```")[0], 0)
        code, output = self.page("```\none   two\n```\n")
        self.assertNotEqual(code, 0)
        self.assertIn("page.md:1", output)

    def test_tutorial_shows_its_source(self):
        page = "<!-- code: program.cpp -->\n\n```cpp\nint a;\n```\n"
        self.assertEqual(self.check("tutorial", docs__page_DOT_md=page, program_DOT_cpp="int a;\nint b;\n")[0], 0)
        code, output = self.check("tutorial", docs__page_DOT_md=page, program_DOT_cpp="int b;\n")
        self.assertNotEqual(code, 0)
        self.assertIn("page.md:4", output)


unittest.main()
