#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Lists the units of a unity build that clang-tidy is to read: tidy_units.py BUILD core|torch|changed

core and torch are all units of that layer. changed are the units of the core with a source that has changed since the
last run on it, and for each changed header one unit that includes it; not those of the torch layer, since clang 14 reads
only parts of the headers of libtorch 1.13, and takes what it misses for mistakes of ours. docs/long-runs.md has that run's commit,
in the line that begins with "clang-tidy on the core"; where the repository does not have the commit, as in a shallow
clone, all units of the core take their place.
"""
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def last_full_run():
    page = (ROOT / "docs/long-runs.md").read_text(encoding="utf-8")
    found = re.search(r"^clang-tidy on the core: .*\bcommit ([0-9a-f]{7,40})\b", page, re.MULTILINE)
    return found[1] if found else None


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def changed_files(commit):
    if commit is None or git("merge-base", "--is-ancestor", commit, "HEAD").returncode != 0:
        return None
    listed = git("diff", "--name-only", commit, "--", "*.h", "*.cpp").stdout
    listed += git("ls-files", "--others", "--exclude-standard", "--", "*.h", "*.cpp").stdout
    return [name for name in listed.split() if (ROOT / name).exists()]


def sources_of(unit):
    """A unit of a unity build includes its sources; other units are their own source."""
    text = pathlib.Path(unit).read_text(encoding="utf-8")
    included = re.findall(r'^#include "(/[^"]*\.cpp)"', text, re.MULTILINE)
    return included or [unit]


def spelled(header):
    """A header as sources include it."""
    for folder in ("include/", "src/", "tools/cohort/"):
        if header.startswith(folder):
            return header[len(folder):]
    return pathlib.Path(header).name


def units_with_changes(units, changed):
    chosen = {unit for unit, sources in units.items() if any(str(ROOT / name) in sources for name in changed)}
    for header in (name for name in changed if name.endswith(".h")):
        includes = re.compile(rf'#include ["<]{re.escape(spelled(header))}[">]')
        including = [unit for unit, sources in units.items()
                     if any(includes.search(pathlib.Path(source).read_text(encoding="utf-8")) for source in sources)]
        if including and not chosen.intersection(including):
            chosen.add(including[0])
    return chosen


def main():
    if len(sys.argv) != 3 or sys.argv[2] not in ("core", "torch", "changed"):
        sys.exit(__doc__.strip())
    commands = json.loads((pathlib.Path(sys.argv[1]) / "compile_commands.json").read_text(encoding="utf-8"))
    units = {entry["file"]: sources_of(entry["file"]) for entry in commands}
    folders = {unit: pathlib.Path(sources[0]).relative_to(ROOT).parts for unit, sources in units.items()}
    torch = {unit for unit, folder in folders.items() if folder[:2] == ("src", "torch")}
    core = {unit for unit, folder in folders.items() if folder[0] in ("src", "tools")} - torch
    if sys.argv[2] == "torch":
        chosen = torch
    else:
        changed = changed_files(last_full_run()) if sys.argv[2] == "changed" else None
        chosen = core if changed is None else units_with_changes({u: units[u] for u in core}, changed)
    print("\n".join(sorted(chosen)))


main()
