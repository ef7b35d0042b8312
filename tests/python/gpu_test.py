# SPDX-License-Identifier: BSD-3-Clause
"""Backend cohort beside NCCL in one group, on a machine with a GPU (PyTorch 2). Each rank is a host of its own to NCCL, so
that several can share the GPU."""
import os
import unittest

import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import cohort.torch

IS_POSSIBLE = int(torch.__version__.split(".")[0]) >= 2 and dist.is_nccl_available() and os.path.exists("/dev/nvidiactl")


@unittest.skipUnless(IS_POSSIBLE, "there is no GPU, or no PyTorch 2 with NCCL")
class BesideNccl(unittest.TestCase):
    def test_each_device_has_its_backend(self):
        def body(rank, size):
            os.environ.update(NCCL_HOSTID=f"cohort-test-{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
            x = torch.tensor([rank + 1.0])
            dist.all_reduce(x)
            y = torch.tensor([rank + 1.0], device="cuda:0")
            dist.all_reduce(y)
            assert x.item() == y.item() == size * (size + 1) / 2
            assert cohort.torch.engine() == "shm"
            for device in ("cpu", "cuda:0"):
                torch.manual_seed(rank)
                ddp = DistributedDataParallel(nn.Linear(64, 64).to(device))
                ddp(torch.randn(8, 64, device=device)).sum().backward()
                weights = [torch.empty_like(ddp.module.weight.grad) for _ in range(size)]
                dist.all_gather(weights, ddp.module.weight.grad)
                assert torch.equal(weights[0], weights[-1])

        for size in (1, 2):
            on_ranks(size, body, backend="cpu:cohort,cuda:nccl")


if __name__ == "__main__":
    unittest.main()
