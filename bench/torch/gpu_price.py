#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The same models and steps as gpu_price.cpp with PyTorch's own DistributedDataParallel: NCCL, world size 1."""
import contextlib
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


def medians_of(steps):
    """Milliseconds of each step, taking turns."""
    times = {each: [] for each in steps}
    for i in range(-5, 30):
        for each, step in steps.items():
            took = timed(step)
            if i >= 0:
                times[each].append(took)
    return {each: statistics.median(values) for each, values in times.items()}


def measure(name, make, x):
    nets = {"bare": make().cuda()}
    for views in (True, False):
        nets[f"DDP, views {'on' if views else 'off'}"] = torch.nn.parallel.DistributedDataParallel(
            make().cuda(), device_ids=[0], gradient_as_bucket_view=views)

    def step(net):
        net.zero_grad(set_to_none=True)
        net(x).sum().backward()

    medians = medians_of({each: lambda net=net: step(net) for each, net in nets.items()})
    bare = medians.pop("bare")
    best = min(medians, key=medians.get)
    print(f"{name:12} PyTorch {torch.__version__}: bare {bare:.3f} ms, {best} {medians[best]:.3f} ms, "
          f"price {medians[best] - bare:.3f} ms", flush=True)


def many():
    return torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(200)])


def transformer():
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0)
    return torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)


@contextlib.contextmanager
def world_of_one():
    with tempfile.NamedTemporaryFile() as file:
        dist.init_process_group("nccl", init_method=f"file://{file.name}_store", rank=0, world_size=1)
        yield
        dist.destroy_process_group()


if __name__ == "__main__":
    with world_of_one():
        measure("200 x Linear", many, torch.randn(64, 256, device="cuda"))
        measure("transformer", transformer, torch.randn(128, 8, 1024, device="cuda"))
