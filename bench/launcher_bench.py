#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Measures `cohort run`: starting and ending N processes, and the time from a rank's crash to the launcher's return.

A missed bar is printed as MISSED and does not change the exit code.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

LIMIT = 30  # seconds that a single launch may take before the benchmark is broken


class Broken(Exception):
    pass


def launch(command, expect_failure=False):
    """Runs a command in a session of its own, so that nothing is left when it hangs. Seconds it took, and its end."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               start_new_session=True)
    try:
        _, errors = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise Broken(f"{' '.join(command)}: not done after {LIMIT} s")
    end = time.monotonic()
    if (process.returncode != 0) != expect_failure:
        raise Broken(f"{' '.join(command)}: exit code {process.returncode}\n{errors.decode(errors='replace')}")
    return end - start, end


def interleaved(cohort, ranks, rounds):
    """The launcher and, for scale, a shell that starts as many processes, taking turns."""
    ours, shell = [], []
    body = " ".join("true &" for _ in range(ranks)) + " wait"
    launch([cohort, "run", "-n", str(ranks), "true"])  # warms the page cache
    for _ in range(rounds):
        ours.append(launch([cohort, "run", "-n", str(ranks), "true"])[0])
        shell.append(launch(["sh", "-c", body.replace("true", "/bin/true")])[0])
    return statistics.median(ours) * 1e3, statistics.median(shell) * 1e3


def crash(cohort, ranks, rounds):
    """Rank 1 notes the time and kills itself; the rest sleep. From that note to the launcher's return."""
    times = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            note = os.path.join(folder, "crashed")
            # CLOCK_MONOTONIC is one for all processes of the host.
            rank = ("import os, signal, time\n"
                    "if os.environ['RANK'] != '1': time.sleep(25)\n"
                    "time.sleep(0.3)\n"  # the others are asleep by then
                    f"with open({note!r}, 'w') as out: out.write(repr(time.monotonic()))\n"
                    "os.kill(os.getpid(), signal.SIGSEGV)\n")
            _, end = launch([cohort, "run", "-n", str(ranks), sys.executable, "-c", rank], expect_failure=True)
            if not os.path.exists(note):
                raise Broken("rank 1 did not come to its crash")
            with open(note, encoding="ascii") as written:
                times.append(end - float(written.read()))
    return statistics.median(times) * 1e3, max(times) * 1e3


def row(what, value, bar, note=""):
    result = "met" if value <= bar else f"MISSED: {value:.1f} ms"
    print(f"  {what:<44} {value:>9.1f} ms   <= {bar:g} ms  {result}{' (' + note + ')' if note else ''}")
    return {"what": what, "unit": "ms", "ours": value, "bar": {"at_most": bar}, "result": result, "note": note}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cohort", help="the cohort command, <build>/tools/cohort/cohort")
    parser.add_argument("-n", type=int, default=8, help="ranks (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="launches (default: %(default)s)")
    parser.add_argument("--crash-rounds", type=int, default=7, help="launches with a crash (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file as well")
    arguments = parser.parse_args()
    print("\nLauncher, median of a launch")
    ours, shell = interleaved(arguments.cohort, arguments.n, arguments.rounds)
    rows = [row(f"cohort run -n {arguments.n} true", ours, 100, f"a shell that starts as many: {shell:.1f} ms")]
    median, worst = crash(arguments.cohort, arguments.n, arguments.crash_rounds)
    rows.append(row(f"crash of a rank, {arguments.n - 1} others asleep", median, 1000, f"worst {worst:.1f} ms"))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"cores": os.cpu_count(), "rows": rows}, out, indent=2)


if __name__ == "__main__":
    try:
        main()
    except (Broken, OSError) as error:
        print(f"launcher_bench.py: {error}", file=sys.stderr)
        sys.exit(1)
