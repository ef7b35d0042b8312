# SPDX-License-Identifier: BSD-3-Clause
"""What the Python programs of this folder have in common: flags, the table with its bars, processes, `cohort bench`."""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile

COHORT = "the cohort command, <build>/tools/cohort/cohort"


class Broken(Exception):
    """A benchmark that did not run, other than one that missed its bar."""


class Report:
    """Rows, printed as they come; a missed bar is printed as MISSED."""

    def __init__(self, unit="ms"):
        self.rows = []
        self.unit = unit

    def row(self, what, value, at_most=None, at_least=None, unit=None, note="", **more):
        """Returns whether the bar was met."""
        unit = unit or self.unit
        met = (at_most is None or value <= at_most) and (at_least is None or value >= at_least)
        bar = f"<= {at_most:g}" if at_most is not None else f">= {at_least:g}" if at_least is not None else ""
        result = "" if not bar else "met" if met else "MISSED"
        print(f"  {what:<54} {value:>9.3f} {unit:<3} {bar:>9} {result:<7} {note}", flush=True)
        limits = {name: limit for name, limit in (("at_most", at_most), ("at_least", at_least)) if limit is not None}
        self.rows.append({"what": what, "unit": unit, "ours": value, "bar": limits, "result": result, "note": note,
                          **more})
        return met


def arguments_of(doc):
    doc += "\nA missed bar is printed as MISSED and does not change the exit code."
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file as well")
    return parser


def run(parser, measure, **report):
    """Measures with a report, and writes that to --json. A broken benchmark has exit code 1."""
    arguments = parser.parse_args()
    result = Report(**report)
    try:
        measure(arguments, result)
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as out:
                json.dump({"cores": os.cpu_count(), "rows": result.rows}, out, indent=2)
    except (Broken, OSError, ValueError) as error:
        sys.exit(f"{os.path.basename(sys.argv[0])}: {error}")


def own_environment(**more):
    """Without the launchers' variables, which would make a process one rank of theirs."""
    return {name: value for name, value in {**os.environ, **more}.items() if name not in ("RANK", "WORLD_SIZE")}


def launch(command, limit, may_fail=False):
    """Runs a command in a session of its own, so that nothing is left when it hangs; its standard output."""
    command = [str(word) for word in command]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, errors="replace", start_new_session=True, env=own_environment())
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise Broken(f"{' '.join(command)}: not done after {limit} s")
    if process.returncode != 0 and not may_fail:
        raise Broken(f"{' '.join(command)}: exit code {process.returncode}\n{output}{errors}")
    return output


def bench(cohort, flags, peers=(), launcher=()):
    """The results of a `cohort bench` that have figures, by operation and size. Prints what could not be measured."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out, tempfile.NamedTemporaryFile("w", suffix=".json") as listed:
        json.dump(list(peers), listed)
        listed.flush()
        command = [*launcher, cohort, "bench", *flags, "--timeout", "30", "--json", out.name]
        output = launch(command + (["--peers", listed.name] if peers else []), limit=None)
        for line in output.splitlines():
            if "not measured" in line and not line.startswith("# shm"):
                print(f"  {line}")
        cells = {}
        for result in json.load(out)["results"]:
            if "p50_us" in result:
                cells.setdefault((result["collective"], result["size"]), []).append(result)
        return cells


def median_ratio(numerator, denominator):
    """Of the rounds that both have."""
    return statistics.median(a / b for a, b in zip(numerator["rounds_us"], denominator["rounds_us"]))


def median_difference(minuend, subtrahend):
    return statistics.median(a - b for a, b in zip(minuend["rounds_us"], subtrahend["rounds_us"]))
