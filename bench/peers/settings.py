#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes the list for `cohort bench --peers`: other libraries, each in the settings that one of its users would try.

Which of them is best differs by operation, size and machine; what Cohort is compared with is the best of each size.

    settings.py BUILD_FOLDER RANKS [openmpi gloo:hd ...] > peers.json
"""

import json
import os
import shutil
import sys

# glibc gives large blocks back to the system and pays for their pages again at the next call. Told to keep them, the
# MPI libraries' large reductions take half the time.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592",
               "MALLOC_TOP_PAD_": "268435456"}


def mca(**values):
    return [word for name, value in values.items() for word in ("--mca", name, str(value))]


def open_mpi(launcher, driver, ranks, cores):
    shared = mca(pml="ob1", btl="self,vader")
    rabenseifner = mca(coll_tuned_use_dynamic_rules=1, coll_tuned_allreduce_algorithm=6, coll_tuned_bcast_algorithm=8)
    tunings = [("default", [], {}), ("rab_malloc", rabenseifner, KEEP_MEMORY)]
    common = [launcher, "--allow-run-as-root", "-np", str(ranks)]
    if ranks > cores:
        # Without it the ranks spin, and every operation costs time slices.
        common.append("--oversubscribe")
        tunings += [("coll_" + name, shared + mca(**{f"coll_{name}_priority": 100}), {}) for name in ("adapt", "han")]
    else:
        ucx = mca(pml="ucx", osc="ucx", opal_common_ucx_tls="any", opal_common_ucx_devices="any")
        tunings += [("nocma", shared + mca(btl_vader_single_copy_mechanism="none"), {}),
                    ("coll_sm", shared + mca(coll_sm_priority=100), {}),
                    ("tuned_rab", rabenseifner, {}),
                    ("ucx", ucx + ["-x", "UCX_TLS=self,posix,sysv,cma"], {}),
                    ("malloc", [], KEEP_MEMORY)]
    return [(name, common + flags + [word for variable in environment for word in ("-x", variable)] + [driver],
             environment) for name, flags, environment in tunings]


def mpich(launcher, driver, ranks, cores):
    common = [launcher, "-n", str(ranks)]
    more = [("bind", [*common, "-bind-to", "core", driver], {}), ("malloc", [*common, driver], KEEP_MEMORY)]
    return [("default", [*common, driver], {})] + (more if ranks <= cores else [])


def ranks_of(cohort, ranks):
    """The ranks of `cohort run`, with their output as it is."""
    return [cohort, "run", "-n", str(ranks), "--no-prefix", "--no-pty"]


def gloo(launcher, driver, ranks, cores):
    names = ["ring", "bcube", "hd"] + (["hd_busy"] if ranks <= cores else [])
    return [(name, [*ranks_of(launcher, ranks), driver, name], {}) for name in names]


# Driver in the folder of this name in the build folder, launchers of which any will do.
LIBRARIES = {"openmpi": (open_mpi, "mpi_driver.openmpi", ["mpirun.openmpi", "mpirun"]),
             "mpich": (mpich, "mpi_driver.mpich", ["mpiexec.hydra", "mpiexec.mpich"]),
             "gloo": (gloo, "gloo_driver", ["tools/cohort/cohort"])}


def found(build, library):
    """Launcher and driver; prints what is missing."""
    _, name, launchers = LIBRARIES[library]
    driver = os.path.join(build, "bench", "peers", name)
    there = [path for each in launchers if (path := shutil.which(each) or shutil.which(os.path.join(build, each)))]
    if not os.path.exists(driver):
        print(f"peer {library}: there is no {driver} (built with cmake -DCOHORT_BENCH=ON where the library is)",
              file=sys.stderr)
    elif not there:
        print(f"peer {library}: {' or '.join(launchers)} is not in PATH", file=sys.stderr)
    else:
        return there[0], driver
    return None


def settings(build, ranks, wanted=()):
    """All settings of what is built and installed, or of the libraries and settings that `wanted` names."""
    peers = []
    for library, (tuned, _, _) in LIBRARIES.items():
        if wanted and not any(each.split(":")[0] == library for each in wanted):
            continue
        place = found(build, library)
        for name, command, environment in tuned(*place, ranks, len(os.sched_getaffinity(0))) if place else []:
            if not wanted or library in wanted or f"{library}:{name}" in wanted:
                peers.append({"name": f"{library}:{name}", "command": command, "environment": environment})
    return peers


if __name__ == "__main__":
    if len(sys.argv) < 3 or not sys.argv[2].isdigit():
        sys.exit(__doc__)
    json.dump(settings(os.path.abspath(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]), sys.stdout, indent=2)
