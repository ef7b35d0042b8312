#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs small programs with PyTorch's own DTensor on gloo and writes down what came out.

    dtensor_reference.py FOLDER      FOLDER/ranks2/rank0.txt, ...; exits with 77 without a PyTorch that has DTensor

dtensor_programs.h has the same programs for Cohort, and dtensor_oracle.cpp reads these files and compares. One file for
each rank, with one block for each program:

    program redistribute 5x7 S(0) -> S(1)
    value result [S(1)] global 5 7 local 5 4 offset 0 0
    part 0.125 -1.25 ...            this rank's elements, row-major
    full 0.125 -1.25 ...            the elements of the whole tensor
    collectives all_gather_into_tensor=1

A program that PyTorch refuses has a line "refused" with the error instead.
"""
import logging
import os
import sys

from forked_ranks import run_forked

try:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode
except ImportError:
    torch = None


def values(sizes, seed):
    """Numbers that both languages compute alike and that binary fractions hold exactly."""
    count = 1
    for size in sizes:
        count *= size
    return ((torch.arange(count) * 7 + seed * 13).remainder(23) - 11).to(torch.float64).div(8).reshape(sizes)


def placement_text(placement):
    if placement.is_replicate():
        return "R"
    if placement.is_partial():
        return "P(%s)" % placement.reduce_op
    factor = getattr(placement, "split_factor", 1)
    return "S(%d)" % placement.dim if factor == 1 else "_S(%d, %d)" % (placement.dim, factor)


def placements_text(placements):
    return "[%s]" % ", ".join(placement_text(each) for each in placements)


def offset_of(tensor):
    """Where this rank's part begins, from PyTorch's function for checkpoints, which is not public."""
    try:
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    except ImportError:
        return None
    return compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)[1]


class Run:
    """The programs of one rank on one mesh."""

    def __init__(self, mesh, out):
        self.mesh = mesh
        self.out = out

    def program(self, name, body):
        """Counts the collectives of body(keep), then writes what it kept."""
        kept = []
        counter = CommDebugMode()
        print("program", name, file=self.out)
        try:
            with counter:
                body(lambda title, tensor: kept.append((title, tensor.detach())))
        except (AssertionError, NotImplementedError, RuntimeError, ValueError) as e:
            print("refused", str(e).split("\n")[0], file=self.out)  # on all ranks alike
            return
        counts = {str(op).rsplit(".", 1)[-1]: n for op, n in counter.get_comm_counts().items() if n > 0}
        for title, tensor in kept:
            # A clone waits for what is still on its way.
            local, whole, offset = tensor.to_local().clone(), tensor.full_tensor().clone(), offset_of(tensor)
            print("value", title, placements_text(tensor.placements), "global", *tensor.shape, "local", *local.shape,
                  "offset", *(["?"] if offset is None else offset), file=self.out)
            print("part", *("%.17g" % x for x in local.reshape(-1).tolist()), file=self.out)
            print("full", *("%.17g" % x for x in whole.reshape(-1).tolist()), file=self.out)
        print("collectives", *("%s=%d" % each for each in sorted(counts.items())), file=self.out)

    def tensor(self, sizes, placements, seed=1, needs_gradient=False):
        """Where it is Partial, ranks hold summands that differ with their place."""
        place = self.mesh.get_coordinate()
        for dim, each in enumerate(placements):
            if each.is_partial():
                seed += (dim + 1) * (place[dim] + 1)
        plain = [Replicate() if each.is_partial() else each for each in placements]
        made = distribute_tensor(values(sizes, seed), self.mesh, plain, src_data_rank=None)
        if plain != list(placements):
            whole = values(sizes, 0)
            made = DTensor.from_local(made.to_local(), self.mesh, placements, run_check=False, shape=whole.shape,
                                      stride=whole.stride())
        return made.requires_grad_() if needs_gradient else made

    def whole_numbers(self, sizes, below):
        count = 1
        for size in sizes:
            count *= size
        numbers = (torch.arange(count) * 5 + 1).remainder(below).reshape(sizes)
        return distribute_tensor(numbers, self.mesh, src_data_rank=None)


def redistribute(run, sizes, source, target):
    def body(keep):
        keep("result", run.tensor(sizes, source).redistribute(placements=target))

    comma = lambda placements: ",".join(placement_text(each) for each in placements)
    shape = "x".join(str(size) for size in sizes)
    run.program("redistribute %s %s -> %s" % (shape, comma(source), comma(target)), body)


def all_redistributions(run):
    r, s0, s1, p = Replicate(), Shard(0), Shard(1), Partial()
    for sizes in ((12, 12), (5, 7), (3, 1)):
        for source in (r, s0, s1, p):
            for target in (r, s0, s1):
                if source != target:
                    redistribute(run, sizes, [source], [target])


def some_redistributions_of_a_square(run):
    r, s0, s1, p = Replicate(), Shard(0), Shard(1), Partial()
    for sizes in ((8, 8), (5, 7)):
        for source, target in (
            ([s0, s0], [r, r]), ([s0, s0], [r, s0]), ([s0, s0], [s0, r]), ([s0, s0], [s1, s1]), ([s0, s1], [r, r]),
            ([s0, s1], [s1, s0]), ([s0, r], [r, s1]), ([r, s0], [s0, s0]), ([r, r], [s0, s1]), ([p, r], [r, s0]),
            ([p, p], [r, r]), ([p, p], [r, s0]), ([p, p], [s0, s1]), ([p, s0], [r, s0]), ([s0, p], [s0, r]),
        ):
            redistribute(run, sizes, source, target)


def products(run):
    r, s0, s1 = [Replicate()], [Shard(0)], [Shard(1)]
    for name, left, right in (("S(0) R", s0, r), ("R S(1)", r, s1), ("S(1) S(0)", s1, s0)):

        def body(keep, left=left, right=right):
            product = run.tensor((8, 4), left).mm(run.tensor((4, 12), right, seed=2))
            keep("product", product)
            keep("whole", product.redistribute(placements=r))

        run.program("matmul " + name, body)


def feed_forward(run, name, x_placements, column, row, result, gathered=None, x_has_gradient=False):
    """A column-parallel layer, gelu, a row-parallel layer."""
    w1 = run.tensor((8, 6), column, 2, True)
    b1 = run.tensor((8,), column, 3, True)
    w2 = run.tensor((6, 8), row, 4, True)
    x = run.tensor((4, 4, 6), x_placements, 1, x_has_gradient)

    def body(keep):
        whole = x if gathered is None else x.redistribute(placements=gathered)
        hidden = torch.nn.functional.gelu(torch.nn.functional.linear(whole, w1, b1))
        y = torch.nn.functional.linear(hidden, w2).redistribute(placements=result)
        keep("hidden", hidden)
        keep("y", y)
        (y * y).sum().backward()
        for title, each in (("w1.grad", w1), ("b1.grad", b1), ("w2.grad", w2), ("x.grad", x)):
            if each.grad is not None:
                keep(title, each.grad)

    run.program(name, body)


def embeddings(run):
    r = [Replicate()]
    words = run.whole_numbers((3, 4), 8)
    for name, placements in (("rows", [Shard(0)]), ("columns", [Shard(1)])):
        table = run.tensor((8, 4), placements, needs_gradient=True)

        def body(keep, table=table):
            found = torch.nn.functional.embedding(words, table).redistribute(placements=r)
            keep("found", found)
            (found * run.tensor((3, 4, 4), r, 2)).sum().backward()
            keep("table.grad", table.grad)

        run.program("embedding by " + name, body)


def norms(run):
    for name, placements in (("kept", [Shard(0)]), ("normalized", [Shard(1)])):
        scores = run.tensor((4, 8), placements)
        run.program("softmax, the %s dimension sharded" % name,
                    lambda keep, x=scores: keep("result", torch.softmax(x, 1).redistribute(placements=x.placements)))

    def body(keep):
        x = run.tensor((2, 4, 6), [Shard(1)], 1, True)
        weight, bias = run.tensor((6,), [Replicate()], 2, True), run.tensor((6,), [Replicate()], 3, True)
        y = torch.nn.functional.layer_norm(x, (6,), weight, bias)
        keep("y", y)
        (y * run.tensor((2, 4, 6), [Shard(1)], 4)).sum().backward()
        keep("x.grad", x.grad)
        keep("weight.grad", weight.grad)
        keep("bias.grad", bias.grad)

    run.program("layer norm of a sharded sequence", body)


def views(run):
    for name, sizes, dim, view in (
        ("transpose", (4, 6), 0, lambda x: x.t()),
        ("permute", (4, 6, 2), 1, lambda x: x.permute(2, 0, 1)),
        ("merge, the first sharded", (4, 2, 3), 0, lambda x: x.view(8, 3)),
        ("merge, the second sharded", (2, 4, 3), 1, lambda x: x.reshape(8, 3)),
        ("split", (8, 3), 0, lambda x: x.view(4, 2, 3)),
        ("unsqueeze", (4, 6), 0, lambda x: x.unsqueeze(0)),
    ):
        run.program("view: " + name,
                    lambda keep, sizes=sizes, dim=dim, view=view: keep("view", view(run.tensor(sizes, [Shard(dim)]))))


def reductions(run):
    for name, reduce in (
        ("sum of the sharded dimension", lambda x: x.sum(0)),
        ("sum of the other dimension", lambda x: x.sum(1)),
        ("sum of everything", lambda x: x.sum()),
        ("mean of the sharded dimension", lambda x: x.mean(0)),
        ("largest of the sharded dimension", lambda x: x.amax(0)),
    ):

        def body(keep, reduce=reduce):
            reduced = reduce(run.tensor((8, 4), [Shard(0)]))
            keep("reduced", reduced)
            keep("whole", reduced.redistribute(placements=[Replicate()]))

        run.program(name, body)


def elementwise(run):
    r, s0, p = [Replicate()], [Shard(0)], [Partial()]
    for name, compute in (
        ("sum of two Partial", lambda: run.tensor((4, 4), p) + run.tensor((4, 4), p, 2)),
        ("product of S(0) and R", lambda: run.tensor((4, 4), s0) * run.tensor((4,), r, 2)),
        ("relu of a Partial", lambda: torch.relu(run.tensor((4, 4), p))),
        ("relu of S(0)", lambda: torch.relu(run.tensor((5, 4), s0))),
    ):
        run.program(name, lambda keep, compute=compute: keep("result", compute()))


def programs(rank, ranks, out):
    r, s0, s1 = Replicate(), Shard(0), Shard(1)
    line = Run(init_device_mesh("cpu", (ranks,)), out)
    all_redistributions(line)
    products(line)
    feed_forward(line, "tensor parallel", [r], [s0], [s1], [r])
    feed_forward(line, "tensor parallel, with the input's gradient", [r], [s0], [s1], [r], x_has_gradient=True)
    feed_forward(line, "sequence parallel", [s1], [s0], [s1], [s1], gathered=[r], x_has_gradient=True)
    embeddings(line)
    norms(line)
    views(line)
    reductions(line)
    elementwise(line)
    if ranks == 4:
        square = Run(init_device_mesh("cpu", (2, 2)), out)
        some_redistributions_of_a_square(square)
        feed_forward(square, "data and tensor parallel", [s0, r], [r, s0], [r, s1], [s0, r])


def work(folder, rank, ranks):
    torch.set_num_threads(1)
    # It warns at every all-to-all that gloo gathers instead.
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    dist.init_process_group("gloo", init_method="file://%s/meeting%d" % (folder, ranks), rank=rank, world_size=ranks)
    os.makedirs("%s/ranks%d" % (folder, ranks), exist_ok=True)
    with open("%s/ranks%d/rank%d.txt" % (folder, ranks, rank), "w") as out:
        programs(rank, ranks, out)
    dist.destroy_process_group()


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    if not torch or not dist.is_available() or not dist.is_gloo_available():
        return 77
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    folder = os.path.abspath(sys.argv[1])
    os.makedirs(folder, exist_ok=True)
    print("PyTorch", torch.__version__)
    return max(run_forked(ranks, lambda rank, ranks=ranks: work(folder, rank, ranks)) for ranks in (2, 4))


sys.exit(main())
