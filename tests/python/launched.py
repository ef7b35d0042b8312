# SPDX-License-Identifier: BSD-3-Clause
"""A program as users write it, started by a launcher: the one-line change of docs/python.md."""
import torch
import torch.distributed as dist

import cohort.torch

dist.init_process_group("cohort")
x = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(x)
size = dist.get_world_size()
assert x.item() == size * (size + 1) / 2, x
dist.barrier()
if dist.get_rank() == 0:
    print(f"python: {size} ranks on {cohort.torch.engine()}, sum {x.item():g}", flush=True)
dist.destroy_process_group()
