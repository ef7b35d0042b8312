#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Measures the start of a job: from the launcher's exec to the moment at which the last rank has passed its first barrier.

Cohort (`cohort run`, new_group("shm")) takes turns with Open MPI and MPICH (mpirun, MPI_Init) and PyTorch (torchrun,
init_process_group("gloo")), as far as they are there. And the time of split_group on the slowest rank. A missed bar is
printed as MISSED and does not change the exit code.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

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


class Broken(Exception):
    pass


def start_once(command, ranks):
    """Seconds to the last rank's first barrier, and the slowest rank's split_group where the ranks report it."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.clock_gettime(time.CLOCK_MONOTONIC)
        process = subprocess.Popen(command + [folder], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, start_new_session=True)
        try:
            _, errors = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise Broken(f"{' '.join(command)}: not done after {LIMIT} s")
        reports = []
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), encoding="ascii") as report:
                reports.append([float(word) for word in report.read().split()])
    if process.returncode != 0 or len(reports) != ranks:
        raise Broken(f"{' '.join(command)}: exit code {process.returncode}, {len(reports)} of {ranks} ranks reported\n"
                     f"{errors.decode(errors='replace')}")
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cohort", help="the cohort command, <build>/tools/cohort/cohort")
    parser.add_argument("--ranks", default="2,8,32", help="numbers of ranks, with commas (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=11, help="starts of each (default: %(default)s; of PyTorch at most 3)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file as well")
    arguments = parser.parse_args()
    build = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(arguments.cohort))))
    rows = []
    print(f"\nFrom exec to the first barrier, ms, medians, {os.cpu_count()} cores")
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(TORCH_RANK)
        script.flush()
        for ranks in (int(n) for n in arguments.ranks.split(",")):
            commands = contestants(arguments.cohort, build, ranks, script.name)
            times = {name: [] for name in commands}
            splits = []
            start_once(commands["cohort"], ranks)  # warms the page cache
            for turn in range(arguments.rounds):
                for name, command in list(commands.items()):
                    if name == "PyTorch" and turn >= 3:
                        continue
                    try:
                        seconds, split = start_once(command, ranks)
                    except Broken as error:
                        if name == "cohort":
                            raise
                        print(f"  {name} is not measured: {str(error).strip().splitlines()[-1]}")
                        del commands[name], times[name]
                        continue
                    times[name].append(seconds * 1e3)
                    if split is not None:
                        splits.append(split * 1e3)
            medians = {name: statistics.median(values) for name, values in times.items()}
            split = statistics.median(splits)
            verdict = lambda value, bar: "" if bar is None else f"<= {bar} {'met' if value <= bar else 'MISSED'}"
            print(f"  {ranks:>3} ranks  " + "  ".join(f"{name} {value:.1f}" for name, value in medians.items()) +
                  f"   {verdict(medians['cohort'], BARS_MS.get(ranks))};  split_group {split:.2f}"
                  f" {verdict(split, SPLIT_BAR_MS.get(ranks))}", flush=True)
            rows.append({"ranks": ranks, "ms": medians, "bar_ms": BARS_MS.get(ranks), "split_ms": split,
                         "split_bar_ms": SPLIT_BAR_MS.get(ranks)})
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"cores": os.cpu_count(), "rows": rows}, out, indent=2)


if __name__ == "__main__":
    try:
        main()
    except (Broken, OSError) as error:
        print(f"startup_bench.py: {error}", file=sys.stderr)
        sys.exit(1)
