# SPDX-License-Identifier: BSD-3-Clause
"""Groups that PyTorch makes out of a group of backend cohort: by splitting and by shrinking it, where this PyTorch can."""
import datetime
import unittest

import torch
import torch.distributed as dist
from ranks import PATIENT, on_ranks

import cohort.torch


def total(rank, group):
    x = torch.full((3,), float(rank))
    dist.all_reduce(x, group=group)
    return x[0].item()


@unittest.skipUnless(hasattr(dist.ProcessGroup, "split_group"), "this PyTorch cannot split groups")
class Splits(unittest.TestCase):
    def test_a_split_group_computes(self):
        # torch.distributed.split_group() needs an accelerator; what it calls does not.
        def body(rank, size):
            mine = [0, 2] if rank % 2 == 0 else [1, 3]
            part = dist.group.WORLD.split_group(mine, timeout=PATIENT, group_name=f"part{rank % 2}", group_desc="a part")
            assert part.size() == 2 and part.rank() == rank // 2
            assert part.group_name == f"part{rank % 2}" and part.group_desc == "a part"
            x = torch.full((3,), float(rank))
            part.allreduce([x]).wait()
            assert x.tolist() == [float(sum(mine))] * 3
            assert _backend(part).supports_splitting
            assert cohort.torch.engine(part) == "shm"
            again = part.split_group([0], timeout=datetime.timedelta(seconds=30), group_name=f"alone{rank}")
            assert (again is None) == (rank // 2 != 0)
            return total(rank, None)

        self.assertEqual(on_ranks(4, body), {rank: 6.0 for rank in range(4)})


def _backend(group):
    return group._get_backend(torch.device("cpu"))


@unittest.skipUnless(hasattr(dist, "shrink_group"), "this PyTorch cannot shrink groups")
class Shrinks(unittest.TestCase):
    def test_the_others_go_on_without_a_rank(self):
        def body(rank, size):
            total(rank, None)
            if rank == 1:
                return None
            group = dist.shrink_group([1])
            assert group is dist.group.WORLD
            assert (dist.get_world_size(), dist.get_rank()) == (2, rank // 2)
            assert dist.get_backend() == "cohort"
            # DDP on the new group.
            net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
            net(torch.full((1, 2), float(rank))).sum().backward()
            assert net.module.weight.grad.tolist() == [[1.0, 1.0]]
            return total(rank, None)

        self.assertEqual(on_ranks(3, body), {0: 2.0, 1: None, 2: 2.0})

    def test_a_group_of_some_ranks(self):
        def body(rank, size):
            pair = dist.new_group([0, 1, 2])
            if rank not in (0, 1):
                return None
            pair = dist.shrink_group([2], group=pair, shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
            return total(rank, pair)

        self.assertEqual(on_ranks(3, body), {0: 1.0, 1: 1.0, 2: None})


if __name__ == "__main__":
    unittest.main()
