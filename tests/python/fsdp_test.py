# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's fully sharded training (FSDP2) on backend cohort, where this PyTorch has it."""
import unittest

import torch
from ranks import on_ranks
from torch import nn

# Before 2.7 it needs streams that the host has not got.
WORKS_ON_THE_HOST = hasattr(getattr(torch.cpu, "Stream", None), "record_event")


def make_net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(10, 33), nn.ReLU(), nn.Linear(33, 7), nn.LayerNorm(7), nn.Linear(7, 3))


def train(net, batches):
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()


def make_batches(size):
    torch.manual_seed(2)
    return [(torch.randn(4 * size, 10), torch.randn(4 * size, 3)) for _ in range(4)]


@unittest.skipUnless(WORKS_ON_THE_HOST, "fully_shard of this PyTorch does not work on the host, or there is none")
class FullySharded(unittest.TestCase):
    def expect_that_of_one_process(self, size, shape, names):
        def body(rank, size):
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
            sharded, alone = make_net(), make_net()
            for each in [*sharded, sharded]:
                if next(each.parameters(), None) is not None:
                    fully_shard(each, mesh=mesh)
            batches = make_batches(size)
            mine = slice(4 * rank, 4 * rank + 4)
            train(sharded, [(x[mine], y[mine]) for x, y in batches])
            train(alone, batches)
            for ours, theirs in zip(sharded.parameters(), alone.parameters()):
                torch.testing.assert_close(ours.full_tensor(), theirs)
                assert ours.grad.to_local().numel() < theirs.numel()

        on_ranks(size, body)

    def test_sharded_over_all_ranks(self):
        for size in (2, 3):
            self.expect_that_of_one_process(size, (size,), ("shard",))

    def test_replicated_over_pairs(self):
        self.expect_that_of_one_process(4, (2, 2), ("replicate", "shard"))


if __name__ == "__main__":
    unittest.main()
