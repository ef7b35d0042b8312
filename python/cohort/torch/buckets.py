# SPDX-License-Identifier: BSD-3-Clause
"""Puts the buckets of PyTorch's DistributedDataParallel into memory of the group.

The reducer, which is C++, allocates them when it is made and once more after the first iteration, in the order in which
gradients arrived. PyTorch 2.7 and later ask the backend for the memory if a variable of the environment says so. 1.13 asks
nobody; there, tensors of this thread are allocated in memory of the group meanwhile. Versions in between use ordinary
memory.
"""
import contextlib
import os

import torch.distributed as dist

from cohort import _torch

SWITCH = "DDP_DISABLE_COMM_MEM"


@contextlib.contextmanager
def _through_the_allocator(backend):
    _torch.allocate_tensors_in(backend)
    try:
        yield
    finally:
        _torch.allocate_tensors_ordinarily()


@contextlib.contextmanager
def _through_the_backend(_):
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SWITCH]
        else:
            os.environ[SWITCH] = before


_in_group_memory = _through_the_allocator if hasattr(_torch, "allocate_tensors_in") else _through_the_backend


def install(backend_of):
    class Reducer(dist.Reducer):
        """torch.distributed.Reducer, with buckets in memory of the group where its group is one of backend cohort."""

        def __init__(self, *arguments, **named):
            group = next(each for each in (*arguments, *named.values()) if isinstance(each, dist.ProcessGroup))
            self._backend = None
            # A group that has NCCL as well leaves the choice to NCCL.
            if dist.get_backend(group) == "cohort" and _torch.wants_group_memory(backend_of(group)):
                self._backend = backend_of(group)
            with self._where_buckets_belong():
                super().__init__(*arguments, **named)

        def _where_buckets_belong(self):
            return contextlib.nullcontext() if self._backend is None else _in_group_memory(self._backend)

        def _rebuild_buckets(self):
            with self._where_buckets_belong():
                return super()._rebuild_buckets()

    dist.Reducer = Reducer
