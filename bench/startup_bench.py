#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Measures the start of a job: from the launcher's exec to the moment at which the last rank has passed its first barrier.

Cohort (`cohort run`, new_group("shm")) takes turns with Open MPI and MPICH (mpirun, MPI_Init) and PyTorch (torchrun,
init_process_group("gloo")), as far as they are there. And the time of split_group on the slowest rank.
"""

import os
import shutil
import statistics
import subprocess
import tempfile
import time

import harness

LIMIT = 120  # seconds that a single start may take before the benchmark is broken
BARS_MS = {2: 10, 8: 20, 32: 80}
SPLIT_BAR_MS = {8: 1}

TORCH_RANK = """
import os, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
with open(os.path.join(sys.argv[1], str(os.getpid())), "w") as out:
    out.write(f"{time.clock_gettime(time.CLOCK_MONOTONIC):.9f}")
dist.destroy_process_group()
"""


def start_once(command, ranks):
    """Seconds to the last rank's first barrier, and the slowest rank's split_group where the ranks report it."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.clock_gettime(time.CLOCK_MONOTONIC)
        harness.launch(command + [folder], LIMIT)
        reports = []
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), encoding="ascii") as report:
                reports.append([float(word) for word in report.read().split()])
    if len(reports) != ranks:
        raise harness.Broken(f"{' '.join(command)}: {len(reports)} of {ranks} ranks reported")
    splits = [report[1] for report in reports if len(report) > 1]
    return max(report[0] for report in reports) - start, max(splits) if splits else None


def contestants(cohort, build, ranks, script):
    n = str(ranks)
    found = {"cohort": [cohort, "run", "-n", n, os.path.join(build, "bench", "first_barrier")]}
    for name, flags in (("openmpi", ["--oversubscribe", "--allow-run-as-root"]), ("mpich", [])):
        program = os.path.join(build, "bench", "peers", f"mpi_first_barrier.{name}")
        launcher = shutil.which(f"mpirun.{name}")
        if launcher and os.path.exists(program):
            found[name] = [launcher, *flags, "-n", n, program]
    torch = "/usr/bin/python3"
    if subprocess.run([torch, "-c", "import torch.distributed"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
        found["PyTorch"] = [torch, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", n, script]
    return found


def measure_ranks(cohort, build, ranks, rounds, script, report):
    commands = contestants(cohort, build, ranks, script)
    times = {name: [] for name in commands}
    splits = []
    start_once(commands["cohort"], ranks)  # warms the page cache
    for turn in range(rounds):
        for name, command in list(commands.items()):
            if name == "PyTorch" and turn >= 3:
                continue
            try:
                seconds, split = start_once(command, ranks)
            except harness.Broken as error:
                if name == "cohort":
                    raise
                print(f"  {name} is not measured: {str(error).strip().splitlines()[-1]}")
                del commands[name], times[name]
                continue
            times[name].append(seconds * 1e3)
            if split is not None:
                splits.append(split * 1e3)
    medians = {name: statistics.median(values) for name, values in times.items()}
    report.row(f"{ranks} ranks", medians["cohort"], at_most=BARS_MS.get(ranks), peers=medians,
               note=", ".join(f"{name} {value:.1f}" for name, value in medians.items() if name != "cohort"))
    report.row(f"{ranks} ranks, split_group", statistics.median(splits), at_most=SPLIT_BAR_MS.get(ranks))


def measure(arguments, report):
    build = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(arguments.cohort))))
    print(f"\nFrom exec to the first barrier, ms, medians, {os.cpu_count()} cores")
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(TORCH_RANK)
        script.flush()
        for ranks in (int(n) for n in arguments.ranks.split(",")):
            measure_ranks(arguments.cohort, build, ranks, arguments.rounds, script.name, report)


if __name__ == "__main__":
    parser = harness.arguments_of(__doc__)
    parser.add_argument("cohort", help=harness.COHORT)
    parser.add_argument("--ranks", default="2,8,32", help="numbers of ranks, with commas (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=11, help="starts of each (default: %(default)s; of PyTorch at most 3)")
    harness.run(parser, measure)
