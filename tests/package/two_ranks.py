#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Two processes sum a tensor through torch.distributed with the backend cohort, as it is installed.

    two_ranks.py [FOLDER] [--engine NAME]

FOLDER: where the package must have been found, its libraries included. --engine: a backend of Cohort, "gloo" for example,
that must work, too.
"""
import argparse
import os
import subprocess
import sys
import tempfile


def rank(arguments):
    import torch
    import torch.distributed as dist

    import cohort.torch

    dist.init_process_group(
        "cohort", init_method=f"file://{arguments.store}", rank=arguments.rank, world_size=2)
    groups = [dist.group.WORLD]
    if arguments.engine:
        groups.append(dist.new_group(pg_options=cohort.torch.Options(backend=arguments.engine), backend="cohort"))
    for group in groups:
        x = torch.full((1000,), float(arguments.rank + 1))
        dist.all_reduce(x, group=group)
        if not torch.equal(x, torch.full((1000,), 3.0)):
            sys.exit(f"rank {arguments.rank}: the sum of 1 and 2 is {x[0]} over {cohort.torch.engine(group)}")
    with open("/proc/self/maps") as maps:
        loaded = sorted({line.split()[-1] for line in maps if "/libcohort" in line or "/cohort/" in line})
    strangers = [each for each in loaded if arguments.folder and not each.startswith(arguments.folder + "/")]
    if strangers or not loaded:
        sys.exit(f"rank {arguments.rank}: not from {arguments.folder}: {strangers}")
    if arguments.rank == 0:
        names = ", ".join(cohort.torch.engine(group) for group in groups)
        print(f"cohort {cohort.__version__} from {os.path.dirname(cohort.__file__)} summed over {names}")
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--engine")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--store")
    arguments = parser.parse_args()
    if arguments.rank is not None:
        rank(arguments)
        return
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, __file__, *sys.argv[1:], "--store", os.path.join(scratch, "store"), "--rank"]
        ranks = [subprocess.Popen([*command, str(each)]) for each in range(2)]
        try:
            failed = [each for each, process in enumerate(ranks) if process.wait(timeout=120) != 0]
        finally:
            for process in ranks:
                process.kill()
    if failed:
        sys.exit(f"failed: rank {failed}")


main()
