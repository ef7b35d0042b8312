#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What backends gloo and mpi add to the libraries under them, and what hybrid saves beside gloo.

gloo, openmpi, mpich: two ranks, each collective through Cohort and on the raw library (its driver in bench/peers), in
turn; MPI as its own non-blocking call followed by MPI_Test in a loop. hybrid: all_reduce of eight ranks, by
COHORT_HOST_ID on two hosts of four, beside backend gloo among the same eight, on both kinds of memory.

    overhead.py <build>/tools/cohort/cohort [--only gloo,openmpi,mpich,hybrid]
"""

import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import harness  # noqa: E402
from peers.settings import found, ranks_of  # noqa: E402

KIB, MIB = 1 << 10, 1 << 20
# Bars: from 64 KiB on at most 5 % more, for anything smaller at most 3 us.
LARGE, MOST_RATIO, MOST_US = 64 * KIB, 1.05, 3
HYBRID_BAR = 2  # times as fast as gloo, from 1 MiB on


def measure_overhead(library, arguments, report):
    build = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(arguments.cohort))))
    place = found(build, library)
    if not place:
        return
    launcher, driver = place
    if library == "gloo":
        backend = "gloo"
        peers = [{"name": "raw", "command": [*ranks_of(launcher, 2), driver, "ring"]}]
    else:
        backend = "none"
        flags = ["--allow-run-as-root"] if library == "openmpi" else []
        peers = [{"name": name, "command": [launcher, *flags, "-n", "2", driver, how]}
                 for name, how in (("raw", "nonblocking"), ("mpi", "cohort"))]
    print(f"\nBackend {backend if library == 'gloo' else 'mpi'} and {library} itself, 2 ranks")
    for collectives, placement in (("all_reduce,broadcast,barrier", "in"), ("all_gather", "out")):
        cells = harness.bench(arguments.cohort, [
            collectives, "--backends", backend, "--ranks", "2", "--sizes", "4,1K,16K,64K,1M,16M", "--placement",
            placement, "--back-to-back", "--limit-ms", "20", "--rounds", str(arguments.rounds)], peers)
        for (operation, size), results in cells.items():
            by_name = {result["backend"]: result for result in results}
            raw, ours = by_name.pop("raw", None), next(iter(by_name.values()), None)
            if raw is None or ours is None:
                continue
            note = f"{ours['p50_us']:.2f} us, {library} {raw['p50_us']:.2f} us"
            what = f"{operation}, {size} B"
            if size >= LARGE:
                report.row(what, harness.median_ratio(ours, raw), at_most=MOST_RATIO, unit="x", note=note)
            else:
                report.row(what + ", more", harness.median_difference(ours, raw), at_most=MOST_US, note=note)


def measure_hybrid(arguments, report):
    print("\nBackend hybrid, all_reduce of 8 ranks on 2 hosts of 4 (by name): how many times faster than gloo")
    launcher = [*ranks_of(arguments.cohort, 8), "sh", "-c", 'COHORT_HOST_ID=host$((RANK / 4)) exec "$@"', "sh"]
    cells = harness.bench(arguments.cohort, [
        "--backends", "gloo,hybrid", "--memory", "both", "--placement", "in", "--sizes", "4,1K,64K,1M,4M,16M,64M",
        "--back-to-back", "--limit-ms", "20", "--rounds", str(arguments.rounds)], launcher=launcher)
    for (_, size), results in cells.items():
        gloo = next(each for each in results if each["backend"] == "gloo")
        for ours in (each for each in results if each["backend"] == "hybrid"):
            report.row(f"{size} B, {ours['memory']} memory", harness.median_ratio(gloo, ours), unit="x",
                       at_least=HYBRID_BAR if size >= MIB else None,
                       note=f"{ours['p50_us']:.1f} us, gloo {gloo['p50_us']:.1f} us")


def measure(arguments, report):
    for part in arguments.only.split(","):
        if part == "hybrid":
            measure_hybrid(arguments, report)
        else:
            measure_overhead(part, arguments, report)


if __name__ == "__main__":
    flags = harness.arguments_of(__doc__)
    flags.add_argument("cohort", help=harness.COHORT)
    flags.add_argument("--only", default="gloo,openmpi,mpich,hybrid", help="some of %(default)s")
    flags.add_argument("--rounds", type=int, default=15, help="of both, in turn (default: %(default)s)")
    harness.run(flags, measure, unit="us")
