#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks that includes point downwards only (docs/architecture.md), among the layers and among the torch layer's
folders, that the environment is read in one place, and that one folder knows the versions of libtorch.

usage: check_layering.py ROOT
"""
import pathlib
import re
import sys

# Which folders under src/ each may include, itself aside.
ALLOWED = {
    "core": set(),
    "store": {"core"},
    "reduce": {"core"},
    "graph": {"core"},
    "rendezvous": {"core", "store"},
    "observe": {"core", "store"},
    "group": {"core", "store", "rendezvous", "reduce", "observe"},
    "backends": {"core", "store", "rendezvous", "reduce", "observe", "group"},
    "torch": {"core", "store", "rendezvous", "reduce", "graph", "observe", "group", "backends"},
}
# The folders under src/torch, each of which may include those of the rows above its own; "." is src/torch itself.
TORCH_FOLDERS = [
    ["compat"],
    ["."],
    ["dispatch", "mesh"],
    ["functional"],
    ["dtensor"],
    ["c10d", "parallelize", "state", "sync_batch_norm"],
    ["data", "optim"],
    ["checkpoint", "hooks"],
    ["ddp"],
    ["capture"],
]
# The folders of public headers that are neither called like one of its sources nor begin with its name.
TORCH_HEADERS = {
    "checkpoint_error.h": "state",
    "comm_hook.h": "hooks",
    "optimizer_in_backward.h": "optim",
    "outputs.h": ".",
}
TORCH = {"torch", "ATen", "c10"}
# Public headers show users none of the libraries we build with.
HIDDEN = {"asio", "asio.hpp", "openssl", "fmt", "nlohmann", "CLI", "hwloc.h", "hwloc", "hwy"}
UMBRELLA = "cohort.h"

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
GETENV = re.compile(r"\b(secure_)?getenv\s*\(")
VERSION = re.compile(r"\bTORCH_VERSION_M[A-Z]+|\b__has_include\s*\(\s*<(torch|ATen|c10)/|\bDispatchKey::Fake\b")
COMPAT = ("torch", "compat")


def layer_of_header(root, name):
    """A public header belongs to the folder that implements it; one without a source file to core."""
    found = sorted((root / "src").glob(f"*/{pathlib.Path(name).stem}.cpp"))
    return found[0].parent.name if found else "core"


def layer_of_file(root, path):
    """The folder under src/ that a file in include/ or src/ belongs to; None for the umbrella and for other files."""
    if path.parts[0] == "src":
        return path.parts[1]
    if path.parts[:3] == ("include", "cohort", "torch"):
        # Graphs are recorded by the torch layer and need no libtorch.
        return "graph" if (root / "src/graph" / f"{path.stem}.cpp").is_file() else "torch"
    return layer_of_header(root, path.name) if path.parts[0] == "include" and path.name != UMBRELLA else None


def layer_of_include(root, include):
    """The folder under src/ an include belongs to, or None if it is not ours."""
    parts = include.split("/")
    if parts[0] == "cohort":
        return layer_of_file(root, pathlib.Path("include", include))
    return parts[0] if parts[0] in ALLOWED and (root / "src" / include).is_file() else None


def torch_folder(root, path):
    """The folder under src/torch that a file of the torch layer belongs to, a public header with its sources."""
    if path.parts[0] == "src":
        return path.parts[2] if len(path.parts) > 3 else "."
    if path.name in TORCH_HEADERS:
        return TORCH_HEADERS[path.name]
    found = [p for pattern in ("*.cpp", "*/*.cpp") for p in (root / "src/torch").glob(pattern) if p.stem == path.stem]
    if found:
        return torch_folder(root, found[0].relative_to(root))
    return path.stem.split("_")[0]


def torch_row(folder):
    return next((row for row, folders in enumerate(TORCH_FOLDERS) if folder in folders), None)


def check_torch_folders(root, path):
    """Of a file in the torch layer: that what it includes there is in its own folder or further down."""
    relative = path.relative_to(root)
    own = torch_folder(root, relative)
    if torch_row(own) is None:
        yield f"{relative}: src/torch/{own} has no place among the folders of {pathlib.Path(__file__).name}"
        return
    for include, where in includes_of(relative, path.read_text(encoding="utf-8")):
        target = next((p for top in ("src", "include") if (root / (p := pathlib.Path(top, include))).is_file()), None)
        if target is None or layer_of_file(root, target) != "torch":
            continue
        folder = torch_folder(root, target)
        if folder != own and (torch_row(folder) is None or torch_row(folder) >= torch_row(own)):
            yield f"{where}: {own} includes {include}, which belongs to {folder}"


def includes_of(relative, text):
    return [(m[1], f"{relative}:{text.count(chr(10), 0, m.start(1)) + 1}") for m in INCLUDE.finditer(text)]


def check_file(root, path):
    relative = path.relative_to(root)
    parts = relative.parts
    text = path.read_text(encoding="utf-8")
    public = parts[0] == "include"
    layer = layer_of_file(root, relative)
    torch_layer = layer == "torch"

    for include, where in includes_of(relative, text):
        first = include.split("/")[0]
        if first in TORCH and layer_of_include(root, include) is None and not torch_layer:
            yield f"{where}: includes {include}, and libtorch belongs to the torch layer alone"
        if public and first in HIDDEN:
            yield f"{where}: a public header includes {include}"
        if layer is None:
            continue
        if layer not in ALLOWED:
            yield f"{where}: the folder src/{layer} has no place in the layers of {pathlib.Path(__file__).name}"
            return
        target = layer_of_include(root, include)
        if include == f"cohort/{UMBRELLA}":
            yield f"{where}: the library's own files include what they use, not {include}"
        elif target is not None and target != layer and target not in ALLOWED[layer]:
            yield f"{where}: {layer} includes {include}, which belongs to {target}"

    if torch_layer:
        yield from check_torch_folders(root, path)

    if relative != pathlib.Path("src/core/env.cpp"):
        code = re.sub(r"//[^\n]*", "", text)
        for match in GETENV.finditer(code):
            yield f"{relative}:{code.count(chr(10), 0, match.start()) + 1}: {match[0].strip('(')}: only src/core/env.cpp reads the environment"


def check_versions(root, path):
    relative = path.relative_to(root)
    if relative.parts[1:3] == COMPAT:
        return
    code = re.sub(r"//[^\n]*", "", path.read_text(encoding="utf-8"))
    for match in VERSION.finditer(code):
        yield f"{relative}:{code.count(chr(10), 0, match.start()) + 1}: {match[0]}: only src/torch/compat knows versions of libtorch"


def sources(root, *folders):
    return [p for top in folders for p in sorted((root / top).rglob("*")) if p.suffix in (".h", ".cpp")]


def main():
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    root = pathlib.Path(sys.argv[1]).resolve()
    files = sources(root, "include", "src", "tools")
    if not files:
        print(f"{root}: no sources found", file=sys.stderr)
        return 2
    problems = [problem for path in files for problem in check_file(root, path)]
    users = sources(root, "bench", "examples", "python", "tests/torch", "tests/python")
    problems += [problem for path in files + users for problem in check_versions(root, path)]
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(files)} files, {len(problems)} against the rules")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
