#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Trains small models with PyTorch's own DistributedDataParallel on gloo and writes down what came out.

    reference.py FOLDER RANKS        for each case a folder: FOLDER/mlp_float64/...; exits with 77 without PyTorch

In each case's folder: parameters.bin (before the first step), inputs.bin and targets.bin (steps x ranks x batch ...),
losses.bin (ranks x steps), final.bin (parameters, then statistics of batch norm, of rank 0) and buckets.txt (the layout
after buckets were rebuilt; empty: they were not). oracle_test.cpp reads them and trains the same with Cohort.

A .bin file is tensors one after another: int64 dtype (0 float32, 1 float64, 2 int64), int64 dimensions, the sizes as
int64, and the elements in row-major order; all little-endian.
"""
import os
import struct
import sys

from forked_ranks import run_forked

try:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
except ImportError:
    torch = None

STEPS = 50
BATCH = 6
MIB = 1024 * 1024

if torch:

    class ConvNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
            self.norm1 = nn.BatchNorm2d(8)
            self.conv2 = nn.Conv2d(8, 16, 3)
            self.norm2 = nn.BatchNorm2d(16)
            self.out = nn.Linear(16, 10)

        def forward(self, x, step, rank):
            x = torch.relu(self.norm1(self.conv1(x)))
            x = torch.relu(self.norm2(self.conv2(x)))
            return self.out(x.mean([2, 3]))

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(64, 256)
            self.second = nn.Linear(256, 512)
            self.third = nn.Linear(512, 512)
            self.out = nn.Linear(512, 10)

        def forward(self, x, step, rank):
            x = torch.relu(self.first(x))
            x = torch.relu(self.second(x))
            x = torch.relu(self.third(x))
            return self.out(x)

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(40, 32)
            self.layer1 = nn.TransformerEncoderLayer(32, 4, 64, 0.0)
            self.layer2 = nn.TransformerEncoderLayer(32, 4, 64, 0.0)
            self.out = nn.Linear(32, 10)

        def forward(self, x, step, rank):
            x = self.layer2(self.layer1(self.words(x.transpose(0, 1))))
            return self.out(x.mean(0))

    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(40, 32, sparse=True)
            self.out = nn.Linear(32, 10)

        def forward(self, x, step, rank):
            return self.out(self.words(x).mean(1))

    class Unused(nn.Module):
        """Each rank takes another branch at each step; the third branch is taken by rank 0 at each fifth step alone."""

        def __init__(self):
            super().__init__()
            self.first = nn.Linear(64, 32)
            self.left = nn.Linear(32, 10)
            self.right = nn.Linear(32, 10)
            self.seldom = nn.Linear(32, 10)

        def forward(self, x, step, rank):
            x = torch.relu(self.first(x))
            y = self.left(x) if (step + rank) % 2 == 0 else self.right(x)
            return y + self.seldom(x) if rank == 0 and step % 5 == 0 else y

    def floats(*shape):
        return lambda ranks, dtype: torch.randn(STEPS, ranks, BATCH, *shape, dtype=dtype)

    def words(ranks, dtype):
        return torch.randint(0, 40, (STEPS, ranks, BATCH, 7))

    # The cap in MiB (None: the default), options of the wrapper, learning rate and momentum.
    CASES = {
        "mlp": (Mlp, floats(64), None, {}, 0.05, 0.9),
        "convnet": (ConvNet, floats(3, 9, 9), 0.001, {}, 0.05, 0.9),
        "transformer": (Transformer, words, 0.02, {}, 0.02, 0.9),
        "sparse": (Sparse, words, 0.001, {}, 0.5, 0.0),
        "unused": (Unused, floats(64), 0.001, {"find_unused_parameters": True}, 0.05, 0.9),
    }


def write(path, tensors):
    codes = {torch.float32: 0, torch.float64: 1, torch.int64: 2}
    with open(path, "wb") as out:
        for each in tensors:
            each = each.detach().contiguous()
            out.write(struct.pack("<%dq" % (2 + each.dim()), codes[each.dtype], each.dim(), *each.shape))
            out.write(each.numpy().tobytes())


def train(folder, name, dtype, rank, ranks):
    make, inputs_of, cap, options, rate, momentum = CASES[name]
    torch.manual_seed(7)
    torch.set_default_dtype(dtype)
    model = make()
    inputs = inputs_of(ranks, dtype)
    targets = torch.randint(0, 10, (STEPS, ranks, BATCH))
    if rank == 0:
        os.makedirs(folder, exist_ok=True)
        write(folder + "/parameters.bin", model.parameters())
        write(folder + "/inputs.bin", [inputs])
        write(folder + "/targets.bin", [targets])
    if cap is None:
        dist._DEFAULT_FIRST_BUCKET_BYTES = MIB
    else:
        options = dict(options, bucket_cap_mb=cap)
        # From 2.0 on a cap that was given is that of the first bucket too; 1.13 always takes this.
        dist._DEFAULT_FIRST_BUCKET_BYTES = int(cap * MIB)
    ddp = DistributedDataParallel(model, **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=rate, momentum=momentum)
    losses = torch.zeros(STEPS, dtype=dtype)
    for step in range(STEPS):
        loss = nn.functional.cross_entropy(ddp(inputs[step, rank], step, rank), targets[step, rank])
        optimizer.zero_grad(set_to_none=name == "unused")
        loss.backward()
        optimizer.step()
        losses[step] = loss.detach()
    everybodys = [torch.zeros_like(losses) for _ in range(ranks)]
    dist.all_gather(everybodys, losses)
    if rank == 0:
        write(folder + "/losses.bin", [torch.stack(everybodys)])
        write(folder + "/final.bin", list(model.parameters()) + [b for b in model.buffers() if b.dim() > 0])
        with open(folder + "/buckets.txt", "w") as out:
            out.write(ddp._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", ""))


def work(folder, rank, ranks):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + folder + "/meeting", rank=rank, world_size=ranks)
    for name in CASES:
        for dtype in (torch.float32, torch.float64):
            train("%s/%s_%s" % (folder, name, str(dtype).split(".")[1]), name, dtype, rank, ranks)
    dist.destroy_process_group()


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    if not torch or not dist.is_available() or not dist.is_gloo_available():
        return 77
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    folder, ranks = os.path.abspath(sys.argv[1]), int(sys.argv[2])
    return run_forked(ranks, lambda rank: work(folder, rank, ranks))


sys.exit(main())
