#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The same models and steps as capture_gpu.cpp with PyTorch's own DistributedDataParallel: NCCL, world size 1.

Of its two ways to average gradients (views on and off) and its two ways to step (the default and fused), the fastest is
shown.
"""
import itertools

import torch

from gpu_price import many, medians_of, transformer, world_of_one


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
    medians = medians_of(steps)
    best = min(medians, key=medians.get)
    print(f"{name:12} PyTorch {torch.__version__} DDP: {medians[best]:.3f} ms ({best}); all: " +
          ", ".join(f"{value:.2f}" for value in medians.values()), flush=True)


with world_of_one():
    measure("200 x Linear", many, lambda p, fused: torch.optim.SGD(p, lr=0.01, momentum=0.9, fused=fused),
            torch.randn(64, 256, device="cuda"))
    measure("with AdamW", many, lambda p, fused: torch.optim.AdamW(p, lr=1e-4, fused=fused),
            torch.randn(64, 256, device="cuda"))
    measure("transformer", transformer, lambda p, fused: torch.optim.AdamW(p, lr=1e-4, fused=fused),
            torch.randn(128, 8, 1024, device="cuda"))
