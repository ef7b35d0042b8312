# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's DistributedDataParallel on backend cohort, and tensors in memory of the group."""
import unittest

import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import cohort.torch


def shared_mappings():
    """The memory of this process that is shared with others, as (begin, end)."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        rows = [line.split() for line in maps]
    return [tuple(int(each, 16) for each in row[0].split("-")) for row in rows if row[1].endswith("s")]


def is_shared(tensor):
    return any(begin <= tensor.data_ptr() < end for begin, end in shared_mappings())


def model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 8))


def train(net, batches, part):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x[part]), y[part]).backward()
        optimizer.step()
    return [p.detach().clone() for p in net.parameters()]


class Ddp(unittest.TestCase):
    def test_trains_as_one_process_would_on_the_whole_batch(self):
        for options in (None, cohort.torch.Options(group_memory=False)):
            for is_view in (False, True):
                def body(rank, size):
                    torch.manual_seed(1)
                    batches = [(torch.randn(4 * size, 64), torch.randn(4 * size, 8)) for _ in range(5)]
                    ddp = DistributedDataParallel(model(), gradient_as_bucket_view=is_view)
                    ours = train(ddp, batches, slice(4 * rank, 4 * rank + 4))
                    alone = train(model(), batches, slice(None))
                    for a, b in zip(ours, alone):
                        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)

                with self.subTest(options=options, is_view=is_view):
                    on_ranks(2, body, options)

    def test_buckets_are_in_memory_of_the_group(self):
        def body(rank, size):
            ddp = DistributedDataParallel(model(), gradient_as_bucket_view=True)
            for _ in range(3):  # they are made anew after the first
                ddp(torch.randn(4, 64)).sum().backward()
            return is_shared(ddp.module[2].weight.grad), is_shared(ddp.module[0].weight.grad)

        version = tuple(int(each) for each in torch.__version__.split(".")[:2])
        if (2, 0) <= version < (2, 7):
            self.skipTest("this version of PyTorch asks nobody where its buckets are to be")
        # The second one is in a bucket of its own, too small to gain.
        self.assertEqual(set(on_ranks(2, body).values()), {(True, False)})
        self.assertEqual(set(on_ranks(2, body, cohort.torch.Options(group_memory=False)).values()), {(False, False)})

    def test_empty(self):
        def body(rank, size):
            x = cohort.torch.empty(3, 1000, dtype=torch.float64)
            assert x.shape == (3, 1000) and x.dtype == torch.float64 and (x == 0).all()
            assert is_shared(x)
            x += rank + 1
            dist.all_reduce(x)
            assert (x == 3).all()
            assert cohort.torch.empty((2, 3)).shape == (2, 3)
            assert cohort.torch.empty(0).numel() == 0
            pair = dist.new_group()
            dist.destroy_process_group(pair)
            y = cohort.torch.empty(1000)
            dist.destroy_process_group()
            y.fill_(1)  # valid after the group is gone
            with self.assertRaises(RuntimeError):
                cohort.torch.empty(-1)

        on_ranks(2, body)

    def test_ordinary_tensors_stay_ordinary(self):
        def body(rank, size):
            DistributedDataParallel(model())
            return is_shared(torch.zeros(1 << 20))

        self.assertEqual(set(on_ranks(2, body).values()), {False})


if __name__ == "__main__":
    unittest.main()
