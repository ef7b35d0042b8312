# SPDX-License-Identifier: BSD-3-Clause
"""Lets torch.distributed.shrink_group() call a backend by its name.

PyTorch 2.14 takes every backend for the host's tensors that shrinks for its own gloo, and DistributedDataParallel on such a
group then reads an object of gloo's that is not there.
"""
import torch
import torch.distributed as dist

from cohort import _torch


def install():
    c10d = dist.distributed_c10d
    make = getattr(c10d, "_create_shrunk_process_group", None)
    if make is None:
        return

    def make_and_name(backend, *more, **named):
        group = make(backend, *more, **named)
        if _torch.is_cohort(backend):
            custom = dist.ProcessGroup.BackendType.CUSTOM
            group._register_backend(torch.device("cpu"), custom, backend)
            group._set_default_backend(custom)
        return group

    c10d._create_shrunk_process_group = make_and_name
