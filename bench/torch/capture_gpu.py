#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The same models and steps as capture_gpu.cpp with PyTorch's own DistributedDataParallel: NCCL, world size 1.

Of its two ways to average gradients (views on and off) and its two ways to step (the default and fused), the fastest is
shown.
"""
import itertools
import statistics
import tempfile
import time

import torch
import torch.distributed as dist


def timed(step):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e3


def measure(name, make, make_optimizer, x):
    steps = {}
    for views, fused in itertools.product((True, False), (None, True)):
        torch.manual_seed(1)
        net = torch.nn.parallel.DistributedDataParallel(make().cuda(), device_ids=[0], gradient_as_bucket_view=views)
        optimizer = make_optimizer(net.parameters(), fused)

        def step(net=net, optimizer=optimizer):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()

        steps[f"views {'on' if views else 'off'}, {'fused' if fused else 'default'} optimizer"] = step
    times = {each: [] for each in steps}
    for i in range(-5, 30):
        for each, step in steps.items():
            took = timed(step)
            if i >= 0:
                times[each].append(took)
    medians = {each: statistics.median(values) for each, values in times.items()}
    best = min(medians, key=medians.get)
    print(f"{name:12} PyTorch {torch.__version__} DDP: {medians[best]:.3f} ms ({best}); all: " +
          ", ".join(f"{value:.2f}" for value in medians.values()), flush=True)


def many():
    return torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(200)])


def transformer():
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0)
    return torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)


with tempfile.NamedTemporaryFile() as file:
    dist.init_process_group("nccl", init_method=f"file://{file.name}_store", rank=0, world_size=1)
    measure("200 x Linear", many, lambda p, fused: torch.optim.SGD(p, lr=0.01, momentum=0.9, fused=fused),
            torch.randn(64, 256, device="cuda"))
    measure("transformer", transformer, lambda p, fused: torch.optim.AdamW(p, lr=1e-4, fused=fused),
            torch.randn(128, 8, 1024, device="cuda"))
    dist.destroy_process_group()
