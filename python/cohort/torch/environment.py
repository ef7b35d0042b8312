# SPDX-License-Identifier: BSD-3-Clause
"""Lets env://, the default of init_process_group, work under launchers that do not set PyTorch's variables.

mpirun and srun tell a process its rank in variables of their own, and nobody chooses MASTER_PORT. Cohort knows how to find
the other processes of such a job (docs/clusters.md). Where RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set, PyTorch
does what it always does, with one exception: its store uses libuv unless it is told not to, also in builds without libuv
(Debian's), where rank 0 then fails. There it is told.
"""
import importlib
import os

from cohort import _torch

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def _with_or_without_libuv(handler, url, **more):
    try:
        yield from handler(url, **more)
    except RuntimeError as error:
        if "without libuv" not in str(error):
            raise
        yield from handler(url + ("&" if "?" in url else "?") + "use_libuv=0", **more)


def install():
    rendezvous = importlib.import_module("torch.distributed.rendezvous")  # the name is also that of a function
    of_pytorch = rendezvous._rendezvous_handlers["env"]

    def env(url, timeout=rendezvous.default_pg_timeout, **more):
        if "rank=" in url or all(os.environ.get(name) for name in VARIABLES) or _torch.launcher() is None:
            yield from _with_or_without_libuv(of_pytorch, url, timeout=timeout, **more)
        store, rank, size = _torch.rendezvous(timeout)
        yield store, rank, size
        raise RuntimeError("env:// cannot be used for a second rendezvous")

    rendezvous._rendezvous_handlers["env"] = env
