# SPDX-License-Identifier: BSD-3-Clause
"""The operations of torch.distributed on backend cohort."""
import unittest

import torch
import torch.distributed as dist
from ranks import on_ranks

import cohort.torch

SIZES = (1, 2, 3)


class Collectives(unittest.TestCase):
    def on_all(self, body):
        for size in SIZES:
            with self.subTest(ranks=size):
                on_ranks(size, body)

    def test_reductions(self):
        def body(rank, size):
            total = size * (size + 1) / 2
            for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64,
                          torch.uint8, torch.int8, torch.int16):
                x = torch.full((5,), rank + 1, dtype=dtype)
                dist.all_reduce(x)
                assert (x == total).all(), (dtype, x)
            flags = torch.tensor([rank == 0, False])
            dist.all_reduce(flags)
            assert flags.tolist() == [True, False]
            z = torch.full((3,), complex(1, rank + 1))
            dist.all_reduce(z)
            assert (z == complex(size, total)).all()
            for op, expected in ((dist.ReduceOp.MAX, size), (dist.ReduceOp.MIN, 1), (dist.ReduceOp.AVG, total / size)):
                y = torch.tensor([rank + 1.0])
                dist.all_reduce(y, op=op)
                assert y.item() == expected, (op, y)
            bits = torch.tensor([1 << rank])
            dist.all_reduce(bits, op=dist.ReduceOp.BOR)
            assert bits.item() == (1 << size) - 1
            r = torch.ones(2)
            dist.reduce(r, dst=size - 1)
            assert (r == (size if rank == size - 1 else 1)).all()
            out = torch.empty(2)
            dist.reduce_scatter(out, [torch.full((2,), float(rank + each)) for each in range(size)])
            assert (out == total - size + size * rank).all()

        self.on_all(body)

    def test_data_movement(self):
        def body(rank, size):
            x = torch.tensor([rank])
            dist.broadcast(x, src=size - 1)
            assert x.item() == size - 1
            pieces = [torch.empty(2) for _ in range(size)]
            dist.all_gather(pieces, torch.full((2,), float(rank)))
            assert [p[0].item() for p in pieces] == list(range(size))
            dist.gather(torch.tensor([float(rank)]), [torch.empty(1) for _ in range(size)] if rank == 0 else None)
            taken = torch.empty(1)
            dist.scatter(taken, [torch.tensor([each * 2.0]) for each in range(size)] if rank == 0 else None)
            assert taken.item() == rank * 2
            outs = [torch.empty(1) for _ in range(size)]
            dist.all_to_all(outs, [torch.tensor([rank * 10.0 + each]) for each in range(size)])
            assert [o.item() for o in outs] == [each * 10 + rank for each in range(size)]
            single = torch.empty(size)
            dist.all_to_all_single(single, torch.arange(size) + rank * 10.0)
            assert single.tolist() == [each * 10 + rank for each in range(size)]
            everything = [None] * size
            dist.all_gather_object(everything, {"rank": rank})
            assert everything == [{"rank": each} for each in range(size)]
            dist.barrier()

        self.on_all(body)

    def test_messages(self):
        def body(rank, size):
            right, left = (rank + 1) % size, (rank - 1) % size
            a, b = torch.empty(1), torch.empty(1)
            works = [dist.isend(torch.tensor([rank * 1.0]), right, tag=1), dist.isend(torch.tensor([rank + 50.0]), right, tag=2),
                     dist.irecv(b, left, tag=2), dist.irecv(a, left, tag=1)]
            for work in works:
                work.wait()
            assert (a.item(), b.item()) == (left, left + 50)
            dist.barrier()
            if rank == 0:
                seen = set()
                for _ in range(size - 1):
                    seen.add((dist.recv(a), a.item()))
                assert seen == {(each, float(each)) for each in range(1, size)}
            else:
                dist.send(torch.tensor([float(rank)]), 0)
            dist.barrier()  # rank 0 would take the next message from anybody as well
            ops = [dist.P2POp(dist.isend, torch.tensor([rank * 1.0]), right), dist.P2POp(dist.irecv, a, left)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            assert a.item() == left

        for size in (2, 3):
            on_ranks(size, body)

    def test_futures_and_callbacks_that_wait(self):
        def body(rank, size):
            x, y = torch.ones(4), torch.ones(4)

            def more(_):
                return dist.all_reduce(y, async_op=True).get_future().wait()[0]

            result = dist.all_reduce(x, async_op=True).get_future().then(more).wait()
            assert (x == size).all() and (result == size).all()
            work = dist.all_reduce(x, async_op=True)
            work.wait()
            assert work.is_completed()

        self.on_all(body)

    def test_sparse(self):
        def body(rank, size):
            x = torch.sparse_coo_tensor([[0, rank + 1]], torch.ones(2, 2), (size + 1, 2))
            dist.all_reduce(x)
            dense = x.to_dense()
            assert (dense[0] == size).all() and (dense[1:] == 1).all()

        self.on_all(body)

    def test_subgroups(self):
        def body(rank, size):
            pair = dist.new_group([0, 2])
            x = torch.tensor([rank])
            if rank in (0, 2):
                dist.all_reduce(x, group=pair)
                assert x.item() == 2
            alone = [dist.new_group([each]) for each in range(size)]
            dist.all_reduce(x, group=alone[rank])
            dist.barrier()
            dist.destroy_process_group(pair)

        on_ranks(3, body)

    def test_engine_and_numbers(self):
        def body(rank, size):
            assert dist.get_backend() == "cohort" and cohort.torch.is_cohort()
            backend = cohort.torch._backend_of(None)  # PyTorch 2 asks no backend of others for the group's number
            before = backend._get_sequence_number_for_group()
            dist.barrier()
            assert backend._get_sequence_number_for_group() == before + 1
            cohort.torch.monitored_barrier(wait_all_ranks=True)
            return cohort.torch.engine()

        self.assertEqual(set(on_ranks(2, body).values()), {"shm"})
        options = cohort.torch.Options(backend="gloo")
        self.assertEqual(set(on_ranks(2, body, options).values()), {"gloo"})


if __name__ == "__main__":
    unittest.main()
