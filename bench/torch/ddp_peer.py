#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""One rank of PyTorch's Python DistributedDataParallel, driven by ddp_bench.py as ddp_worker is, and by python_bench.py.

    ddp_peer.py RANK SIZE FILE [BACKEND]   FILE: where the ranks meet; BACKEND: gloo unless given
    model NAME                         → ok
    steps VARIANT N                    bare, ddp_view or ddp_copy → nanoseconds of each step
    all_reduce BYTES N [group]         → nanoseconds of each; group: in memory of the group
    store PORT                         → ok; a store for `init NAME`
    close                              → ok; the group is destroyed
    init PORT or NAME                  → nanoseconds of init_process_group, with a store to be made or with the one there is
"""
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Mlp(nn.Module):
    def __init__(self, widths, batch):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:]))
        self.example = torch.randn(batch, widths[0])

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x).square().mean()


def convolution(inputs, outputs, size, stride):
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = convolution(inputs, outputs, 3, stride)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = convolution(outputs, outputs, 3, 1)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.around = None
        if stride != 1 or inputs != outputs:
            self.around = nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(y + (self.around(x) if self.around else x))


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = convolution(3, 64, 7, 2)
        self.norm = nn.BatchNorm2d(64)
        blocks, inputs = [], 64
        for outputs in (64, 128, 256, 512):
            blocks += [Residual(inputs, outputs, 1 if outputs == 64 else 2), Residual(outputs, outputs, 1)]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.classes = nn.Linear(512, 1000)
        self.example = torch.randn(4, 3, 64, 64)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.norm(self.conv(x))), 3, 2, 1)
        return self.classes(self.blocks(x).mean([2, 3])).square().mean()


class ManySmall(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(256) * 1e-3 for _ in range(1000))
        self.rows = list(self.weights)  # a ParameterList is slow to walk
        self.example = torch.randn(256)

    def forward(self, x):
        y = x
        for weight in self.rows:
            y = torch.addcmul(y, weight, x)
        return y.square().mean()


SLEEPER_SIZE = 1 << 20


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        return x + weight[:1]

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.005)
        return gradient, gradient.expand(SLEEPER_SIZE)


class Sleeping(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(SLEEPER_SIZE) for _ in range(24))
        self.example = torch.ones(1)

    def forward(self, x):
        for weight in self.weights:
            x = Sleep.apply(x, weight)
        return x.sum()


MODELS = {
    "mlp_small": lambda: Mlp([512, 768, 768, 64], 16),
    "mlp_large": lambda: Mlp([2500] * 5, 8),
    "resnet18": ResNet18,
    "many_small": ManySmall,
    "sleeping": Sleeping,
}


def stepper(model_name, variant):
    torch.manual_seed(1)
    model = MODELS[model_name]()
    example = model.example
    if variant != "bare":
        model = DistributedDataParallel(model, gradient_as_bucket_view=variant == "ddp_view")

    def step():
        model.zero_grad(set_to_none=True)
        model(example).backward()

    return step


STORE = None


def all_reduces(size, count, in_group_memory):
    tensor = torch.zeros(size // 4)
    if in_group_memory:
        import cohort.torch

        tensor = cohort.torch.empty(size // 4)
    times = []
    dist.barrier()
    for _ in range(count):
        start = time.perf_counter_ns()
        dist.all_reduce(tensor)
        times.append(time.perf_counter_ns() - start)
    return times


def init(backend, rank, size, where):
    """`where`: a port at which rank 0 starts a store, or the name of a group in a store that there is."""
    if where.isdigit():
        how = {"init_method": f"tcp://127.0.0.1:{where}"}
    else:
        how = {"store": dist.PrefixStore(where, STORE)}
    start = time.perf_counter_ns()
    dist.init_process_group(backend, rank=rank, world_size=size, timeout=timedelta(seconds=60), **how)
    return time.perf_counter_ns() - start


def main():
    rank, size, meeting = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    backend = sys.argv[4] if len(sys.argv) > 4 else "gloo"
    torch.set_num_threads(1)
    if backend == "cohort":
        import cohort.torch
    dist.init_process_group(backend, init_method="file://" + meeting, rank=rank, world_size=size)
    model, steps = None, {}
    for line in sys.stdin:
        words = line.split()
        if words[0] == "model":
            model, steps = words[1], {}
            print("ok", flush=True)
        elif words[0] == "steps":
            if words[1] not in steps:
                steps[words[1]] = stepper(model, words[1])
            step, times = steps[words[1]], []
            for _ in range(int(words[2])):
                start = time.perf_counter_ns()
                step()
                times.append(time.perf_counter_ns() - start)
            print(*times, flush=True)
        elif words[0] == "all_reduce":
            print(*all_reduces(int(words[1]), int(words[2]), "group" in words), flush=True)
        elif words[0] == "init":
            print(init(backend, rank, size, words[1]), flush=True)
        elif words[0] == "close":
            dist.destroy_process_group()
            print("ok", flush=True)
        elif words[0] == "store":
            global STORE
            STORE = dist.TCPStore("127.0.0.1", int(words[1]), size, rank == 0, timedelta(seconds=60))
            print("ok", flush=True)
        else:
            raise ValueError("not understood: " + line)


main()
