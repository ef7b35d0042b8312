#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Measures `cohort run`: starting and ending N processes, and the time from a rank's crash to the launcher's return."""

import os
import statistics
import sys
import tempfile
import time

import harness

LIMIT = 30  # seconds that a single launch may take before the benchmark is broken

# Rank 1 notes the time and kills itself; the rest sleep. CLOCK_MONOTONIC is one for all processes of the host.
CRASH = """
import os, signal, sys, time
if os.environ["RANK"] != "1": time.sleep(25)
time.sleep(0.3)  # the others are asleep by then
with open(sys.argv[1], "w") as out: out.write(repr(time.monotonic()))
os.kill(os.getpid(), signal.SIGSEGV)
"""


def launch(command, may_fail=False):
    """Seconds it took, and its end."""
    start = time.monotonic()
    harness.launch(command, LIMIT, may_fail)
    end = time.monotonic()
    return end - start, end


def starts(cohort, ranks, rounds):
    """The launcher and, for scale, a shell that starts as many processes, taking turns."""
    ours, shell = [], []
    launch([cohort, "run", "-n", ranks, "true"])  # warms the page cache
    for _ in range(rounds):
        ours.append(launch([cohort, "run", "-n", ranks, "true"])[0])
        shell.append(launch(["sh", "-c", "/bin/true & " * ranks + "wait"])[0])
    return statistics.median(ours) * 1e3, statistics.median(shell) * 1e3


def crash(cohort, ranks, rounds):
    """From a rank's note of its crash to the launcher's return."""
    times = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            note = os.path.join(folder, "crashed")
            _, end = launch([cohort, "run", "-n", ranks, sys.executable, "-c", CRASH, note], may_fail=True)
            if not os.path.exists(note):
                raise harness.Broken("rank 1 did not come to its crash")
            with open(note, encoding="ascii") as written:
                times.append(end - float(written.read()))
    return statistics.median(times) * 1e3, max(times) * 1e3


def measure(arguments, report):
    print("\nLauncher, median of a launch")
    ours, shell = starts(arguments.cohort, arguments.n, arguments.rounds)
    report.row(f"cohort run -n {arguments.n} true", ours, at_most=100,
               note=f"a shell that starts as many: {shell:.1f} ms")
    median, worst = crash(arguments.cohort, arguments.n, arguments.crash_rounds)
    report.row(f"crash of a rank, {arguments.n - 1} others asleep", median, at_most=1000, note=f"worst {worst:.1f} ms")


if __name__ == "__main__":
    parser = harness.arguments_of(__doc__)
    parser.add_argument("cohort", help=harness.COHORT)
    parser.add_argument("-n", type=int, default=8, help="ranks (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="launches (default: %(default)s)")
    parser.add_argument("--crash-rounds", type=int, default=7, help="launches with a crash (default: %(default)s)")
    harness.run(parser, measure)
