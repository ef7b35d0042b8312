#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compiles every C++ example of the public headers' top comments and of the Markdown pages.

usage: check_snippets.py ROOT core|torch COMPILER [FLAG...]
       check_snippets.py ROOT tutorial

An example is a block that is indented by three spaces in a header's top comment, or fenced with ```cpp on a page. What
is not C++ is fenced with another language (```text where there is none), in headers too; a fence without a language is
an error. Lines keep their place: a compiler's message names the header or page and the line of the example.

The examples of one file make one function, later ones in the scope of earlier ones; classes, templates and functions
go before it. Names that an example uses without declaring them are in prelude.h and torch_prelude.h. A `...` that
stands for statements is left out.

core compiles what needs no libtorch, torch the rest: each is one translation unit, as reading libtorch's headers takes
longer than all the examples. A page whose first line is <!-- code: FILE... --> shows parts of these files: `tutorial`
checks that each block is in one of them verbatim, and the build compiles the files.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

LANGUAGES = {"cpp", "cmake", "console", "json", "python", "sh", "text"}
DECLARATION = re.compile(r"(template|class|struct|enum|namespace|void|int main)\b")
HERE = pathlib.Path(__file__).resolve().parent


class Example:
    """Lines of one block, each with its number in the file."""

    def __init__(self, lines):
        self.lines = lines

    def text(self):
        return "\n".join(line for _, line in self.lines)

    def needs_torch(self):
        return re.search(r"\b(torch|at)::|cohort/torch/|\bddp\b", self.text()) is not None


def header_examples(path):
    examples, block, fenced = [], [], False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("//"):
            break
        words = line[2:]
        if words.strip().startswith("```"):
            fenced = not fenced
        is_code = not fenced and words.startswith("   ")
        if is_code:
            block.append((number, words[3:]))
        elif block and not words.strip() and not fenced:
            block.append((number, ""))
        elif block:
            examples.append(Example(block))
            block = []
    if block:
        examples.append(Example(block))
    return examples


def page_blocks(path):
    """Pairs of language and example."""
    blocks, language, block = [], None, []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fence = re.match(r"\s*```(.*)$", line)
        if fence is None:
            if language is not None:
                block.append((number, line))
        elif language is None:
            language, block = fence[1].strip(), []
            if language not in LANGUAGES:
                sys.exit(f"{path}:{number}: a fence of language \"{language}\": {', '.join(sorted(LANGUAGES))}")
        else:
            blocks.append((language, Example(block)))
            language = None
    if language is not None:
        sys.exit(f"{path}: a fence is not closed")
    return blocks


def sources_of(page):
    first = page.read_text(encoding="utf-8").split("\n", 1)[0]
    marked = re.fullmatch(r"<!-- code: (.+) -->", first)
    return marked[1].split() if marked else []


def pages(root):
    return [root / "README.md", root / "CONTRIBUTING.md", *sorted(root.glob("docs/*.md"))]


def files(root, part):
    """Pairs of a file and its examples that this part compiles."""
    found = [(header, header_examples(header)) for header in sorted(root.glob("include/cohort/*.h"))]
    for page in pages(root):
        if not sources_of(page):
            found.append((page, [example for language, example in page_blocks(page) if language == "cpp"]))
    for path, examples in found:
        first = next((i for i, example in enumerate(examples) if example.needs_torch()), len(examples))
        if part == "core":
            yield path, examples[:first]
        elif first < len(examples):
            yield path, examples
    for header in sorted(root.glob("include/cohort/torch/*.h")):
        if part == "torch":
            yield header, header_examples(header)


def units(example):
    """Splits at lines that begin at the left while no brace or parenthesis is open."""
    depth, unit = 0, []
    for number, line in example.lines:
        code = re.sub(r"\"(\\.|[^\"\\])*\"|'(\\.|[^'\\])'|//.*", "", line)
        if unit and depth == 0 and line and not line[0].isspace() and line[0] not in "}{":
            yield unit
            unit = []
        unit.append((number, line))
        depth += sum(code.count(c) for c in "({[") - sum(code.count(c) for c in ")}]")
    if unit:
        yield unit


def without_ellipsis(line):
    code, slashes, comment = line.partition("//")
    code = re.sub(r"(^|[\s{)])\.\.\.(?=\s|}|$)", r"\1;", code)
    return code + slashes + comment


def render(path, examples):
    """One file's examples as (includes, global declarations, function)."""
    includes, specialisations, declarations, body = [], [], [], []
    for example in examples:
        body.append("{")
        for unit in units(example):
            place = f'#line {unit[0][0]} "{path}"'
            first = next((line for _, line in unit if line.strip() and not line.startswith("//")), "")
            lines = [without_ellipsis(line) for _, line in unit]
            if any(line.startswith("#include") for line in lines):
                includes += [line for line in lines if line.startswith("#include")]
                lines = ["" if line.startswith("#include") else line for line in lines]
                first = next((line for line in lines if line.strip()), "")
            if first.startswith("template <>"):
                specialisations += [place, *lines]
            elif DECLARATION.match(first):
                declarations += [place, *lines]
            else:
                body += [place, *lines]
    name = f"of_{re.sub(r'[^a-z0-9]', '_', str(path).lower())}"
    scope = [f"namespace examples::{name} {{", *declarations, "[[maybe_unused]] void function() {", *body,
             "}" * len(examples), "}", "}"]
    return includes, specialisations, scope


def translation_unit(root, part):
    folders = ["cohort"] if part == "core" else ["cohort", "cohort/torch"]
    headers = [header for folder in folders for header in sorted(root.glob(f"include/{folder}/*.h"))]
    includes = [f"#include <{header.relative_to(root / 'include')}>" for header in headers]
    specialisations, scopes, count = [], [], 0
    for path, examples in files(root, part):
        examples = [example for example in examples if example.text().strip()]
        if not examples:
            continue
        count += len(examples)
        more, special, scope = render(path, examples)
        includes += more
        specialisations += special
        scopes += scope
    prelude = ["prelude.h"] if part == "core" else ["prelude.h", "torch_prelude.h"]
    lines = [*sorted(set(includes)), *(f'#include "{HERE / name}"' for name in prelude), *specialisations, *scopes]
    return "\n".join(lines) + "\n", count


def compile_examples(root, part, compiler):
    text, count = translation_unit(root, part)
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / f"{part}_examples.cpp"
        source.write_text(text, encoding="utf-8")
        command = [*compiler, "-std=c++20", "-fsyntax-only", "-w", str(source)]
        code = subprocess.run(command, check=False).returncode
    print(f"{count} examples ({part}): {'compiled' if code == 0 else 'FAILED'}")
    return code


def check_tutorials(root):
    failed = checked = 0
    for page in pages(root):
        sources = sources_of(page)
        if not sources:
            continue
        code = "".join((root / source).read_text(encoding="utf-8") for source in sources)
        for language, example in page_blocks(page):
            if language != "cpp":
                continue
            checked += 1
            if example.text() not in code:
                failed += 1
                print(f"{page}:{example.lines[0][0]}: this block is not in {' or '.join(sources)}, or not as it is there")
    print(f"{checked} blocks of tutorials, {failed} of them not in their source")
    return 1 if failed or not checked else 0


def main():
    if len(sys.argv) < 3 or sys.argv[2] not in ("core", "torch", "tutorial"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    root = pathlib.Path(sys.argv[1])
    if sys.argv[2] == "tutorial":
        return check_tutorials(root)
    # CMake passes a list of flags that is empty as an empty word.
    return compile_examples(root, sys.argv[2], [word for word in sys.argv[3:] if word])


sys.exit(main())
