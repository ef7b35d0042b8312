# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's meshes, functional collectives and distributed tensors on backend cohort, where this PyTorch has them (2.x)."""
import importlib.util
import unittest

import torch
from ranks import on_ranks

HAS_DTENSOR = importlib.util.find_spec("torch.distributed.tensor") is not None


@unittest.skipUnless(HAS_DTENSOR, "this PyTorch has no torch.distributed.tensor")
class DTensors(unittest.TestCase):
    def test_training_is_that_of_one_process(self):
        def body(rank, size):
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.tensor import Replicate, Shard, distribute_tensor

            mesh = init_device_mesh("cpu", (size,))
            torch.manual_seed(1)
            weight, x = torch.randn(12, 10), torch.randn(8, 12)
            for placements in ([Shard(0)], [Shard(1)], [Replicate()]):
                ours = distribute_tensor(weight, mesh, placements).requires_grad_()
                dense = weight.clone().requires_grad_()
                inputs = distribute_tensor(x, mesh, [Shard(0)])
                (inputs @ ours).square().sum().backward()
                (x @ dense).square().sum().backward()
                torch.testing.assert_close(ours.grad.full_tensor(), dense.grad)
                torch.testing.assert_close(ours.full_tensor(), weight)

        for size in (2, 3):
            on_ranks(size, body)

    def test_tensor_and_data_parallelism_together(self):
        def body(rank, size):
            from torch import nn
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            torch.manual_seed(2)
            net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
            x = torch.randn(6, 8)
            expected = net(x)
            net = parallelize_module(net, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
            torch.testing.assert_close(net(x), expected)

        on_ranks(4, body)

    def test_functional_collectives(self):
        def body(rank, size):
            import torch.distributed._functional_collectives as functional
            from torch.distributed.device_mesh import init_device_mesh

            mesh = init_device_mesh("cpu", (size,))
            x = torch.full((4,), float(rank))
            total = functional.all_reduce(x, "sum", mesh)
            assert (total == sum(range(size))).all()
            gathered = functional.all_gather_tensor(x, 0, mesh)
            assert gathered[::4].tolist() == list(range(size))
            scattered = functional.reduce_scatter_tensor(torch.ones(size), "sum", 0, mesh)
            assert scattered.item() == size

        on_ranks(2, body)

    def test_coalescing(self):
        def body(rank, size):
            import torch.distributed as dist

            xs = [torch.full((3,), float(rank + 1)) for _ in range(3)]
            with dist._coalescing_manager(device=torch.device("cpu")):
                for x in xs:
                    dist.all_reduce(x)
            assert all((x == 3).all() for x in xs)
            out, mine = torch.empty(size), torch.tensor([float(rank)])
            dist.all_gather_into_tensor(out, mine)
            assert out.tolist() == list(range(size))
            dist.reduce_scatter_tensor(mine, torch.ones(size))
            assert mine.item() == size

        on_ranks(2, body)


if __name__ == "__main__":
    unittest.main()
