# SPDX-License-Identifier: BSD-3-Clause
"""Ranks of a group of torch.distributed as processes, for the tests of the Python module.

Ranks are forked from a process that has imported PyTorch and has not computed anything yet, which takes milliseconds
instead of seconds.
"""
import contextlib
import multiprocessing
import os
import signal
import tempfile
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

import cohort.torch

PATIENT = timedelta(seconds=60)


def _run(rank, size, file, body, options, backend, results):
    try:
        torch.set_num_threads(1)
        store = dist.FileStore(file, size)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENT, pg_options=options)
        value = body(rank, size)
        results.put((rank, None, value))
    except BaseException:
        results.put((rank, traceback.format_exc(), None))
    results.close()
    results.join_thread()
    # On gloo, what a rank has sent may leave it only now.
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
    os._exit(0)


def on_ranks(size, body, options=None, expected=None, backend="cohort"):
    """Calls body(rank, size) in `size` processes of one group, and returns what they return, by rank. `expected`: the ranks
    that are to answer; the others die."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        results = context.Queue()
        ranks = [context.Process(target=_run, args=(rank, size, folder + "/store", body, options, backend, results))
                 for rank in range(size)]
        for each in ranks:
            each.start()
        values = {}
        try:
            for _ in range(size if expected is None else len(expected)):
                rank, error, value = results.get(timeout=120)
                if error is not None:
                    raise AssertionError(f"rank {rank}: {error}")
                values[rank] = value
        finally:
            for each in ranks:
                if each.is_alive():
                    each.join(timeout=10)
                if each.is_alive():
                    each.kill()
                    each.join()
        return values


def die():
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def raises(case, error, *texts):
    """Expects an exception whose message has all the texts, and yields it as the context's `exception`."""
    with case.assertRaises(error) as caught:
        yield caught
    for text in texts:
        case.assertIn(text, str(caught.exception))
