# SPDX-License-Identifier: BSD-3-Clause
"""The backend "cohort" of torch.distributed.

    import torch.distributed as dist
    import cohort.torch                                     # makes the backend known

    dist.init_process_group("cohort")                       # instead of "gloo"

Everything else of torch.distributed is used as before: collectives, messages, sub-groups, DistributedDataParallel. Groups
of processes on one host use shared memory, others shared memory inside a host and Gloo or MPI between hosts. With
"cpu:cohort,cuda:nccl" (PyTorch 2) it serves the tensors of the host beside NCCL.

    options = cohort.torch.Options(engine="mpi")
    dist.init_process_group("cohort", pg_options=options)
    x = cohort.torch.empty(1024, 1024)                      # in memory of the group: collectives on it copy nothing
"""
import atexit
import datetime
import functools
import operator

import torch
import torch.distributed as dist

from cohort import _torch, errors
from cohort.torch import buckets, environment, shrinking

__all__ = ["Options", "empty", "engine", "is_cohort", "monitored_barrier"]

NAME = "cohort"


class Options:
    """How a group is made; give it as ``pg_options``.

    backend: "auto" (the default), or a backend of Cohort by name: "shm", "hybrid", "gloo" or "mpi".
    engine: what "auto" and "hybrid" use between hosts, "gloo" or "mpi"; by default COHORT_ENGINE, or "gloo".
    timeout: a timedelta; by default that of init_process_group or new_group.
    group_memory: whether DistributedDataParallel's buckets are in memory of the group, where the group has such memory.
    """

    def __init__(self, backend="auto", engine=None, timeout=None, group_memory=True):
        if timeout is not None and not isinstance(timeout, datetime.timedelta):
            raise TypeError(f"timeout must be a datetime.timedelta, not {timeout!r}")
        self.backend = backend
        self.engine = engine
        self.timeout = timeout
        self.group_memory = group_memory

    def __repr__(self):
        return (f"cohort.torch.Options(backend={self.backend!r}, engine={self.engine!r}, timeout={self.timeout!r}, "
                f"group_memory={self.group_memory!r})")


def _make(given, options):
    """Called by torch.distributed for each group that this process is a member of."""
    options = Options() if options is None else options
    if not isinstance(options, Options):
        raise TypeError(f"pg_options of backend cohort must be cohort.torch.Options, not {type(options).__name__}")
    timeout = given.timeout if options.timeout is None else options.timeout
    return _torch.make_backend(given.store, given.group_rank, given.group_size, timeout, options.backend,
                               {} if options.engine is None else {"engine": options.engine}, options.group_memory)


def _backend_of(group):
    """The backend for host memory of a group of torch.distributed; None: of the default group."""
    group = dist.group.WORLD if group is None else group
    if group is None:
        raise RuntimeError('there is no default group: call torch.distributed.init_process_group("cohort") first')
    return group._get_backend(torch.device("cpu")) if hasattr(group, "_get_backend") else group


def is_cohort(group=None):
    """Whether a group's host memory is served by this backend."""
    return _torch.is_cohort(_backend_of(group))


def engine(group=None):
    """What a group runs on: "shm", "hybrid", "gloo" or "mpi"."""
    return _torch.engine(_backend_of(group))


def empty(*size, dtype=None, group=None):
    """A tensor in memory of the group, filled with zeros, for data that is communicated often: ranks of the same host read
    and write it in place. It stays valid after the group is gone. Groups without such memory give an ordinary tensor."""
    if len(size) == 1 and not hasattr(size[0], "__index__"):
        size = tuple(size[0])
    sizes = [operator.index(each) for each in size]
    return _torch.empty_like(_backend_of(group), sizes, torch.empty(0, dtype=dtype))


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """torch.distributed.monitored_barrier, which refuses backends other than gloo. Processes that are not in the group
    return at once, as there."""
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return
    given = {} if timeout is None else {"timeout": timeout}
    _backend_of(group).monitored_barrier(wait_all_ranks=wait_all_ranks, **given)


def _register():
    if hasattr(dist.Backend, NAME.upper()):
        return
    _torch.set_error_classes(errors.OF_KIND)
    register = functools.partial(dist.Backend.register_backend, NAME, _make, extended_api=True)
    if hasattr(dist.Backend, "backend_capability"):  # PyTorch 2: a backend says which devices it is for
        register(devices=["cpu"])
    else:
        register()
    # A callback or a daemon thread that comes back from a collective once the interpreter has ended would end the process.
    atexit.register(_torch.prepare_for_exit, datetime.timedelta(seconds=5))
    environment.install()
    shrinking.install()
    buckets.install(_backend_of)


_register()
