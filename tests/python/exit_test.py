# SPDX-License-Identifier: BSD-3-Clause
"""Interpreters that end while something of a group is under way: a callback of a future, or a daemon thread."""
import atexit
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from datetime import timedelta

PATIENT = timedelta(seconds=60)


def at_the_end(store):
    """Called when the library has been told that the interpreter ends: the other rank comes now, and the interpreter goes on
    for long enough that what comes back is seen."""
    store.set("ending", "")
    store.wait(["done"], PATIENT)
    time.sleep(0.3)


def join(rank, file):
    stores = []
    atexit.register(lambda: [at_the_end(each) for each in stores if rank == 0])  # what is registered first is called last
    import torch.distributed as dist

    import cohort.torch

    stores.append(dist.FileStore(file, 2))
    dist.init_process_group("cohort", store=dist.FileStore(file + ".group", 2), rank=rank, world_size=2, timeout=PATIENT)
    return stores[0]


def come_late(store):
    """Takes part in the collective when the other rank's interpreter is ending."""
    import torch
    import torch.distributed as dist

    store.wait(["ending"], PATIENT)
    x = torch.ones(4)
    dist.all_reduce(x)
    assert x.tolist() == [2, 2, 2, 2], x
    store.set("done", "")


def callback(rank, file):
    store = join(rank, file)
    import torch
    import torch.distributed as dist

    if rank == 1:
        return come_late(store)
    dist.all_reduce(torch.ones(4), async_op=True).get_future().then(lambda _: print("a callback ran", flush=True))


def sleeps_in_a_collective(thread):
    """Whether the thread is in a function of torch.distributed, and neither runs nor is about to."""
    frame = sys._current_frames().get(thread.ident)
    with open(f"/proc/self/task/{thread.native_id}/stat") as stat:
        state = stat.read().rpartition(")")[2].split()[0]
    return frame is not None and "distributed" in frame.f_code.co_filename and state == "S"


def daemon(rank, file):
    store = join(rank, file)
    import torch
    import torch.distributed as dist

    if rank == 1:
        return come_late(store)

    def reduce():
        dist.all_reduce(torch.ones(4))
        print("the thread came back", flush=True)

    thread = threading.Thread(target=reduce, daemon=True)
    thread.start()
    seen = 0
    while seen < 20:
        time.sleep(0.005)
        seen = seen + 1 if sleeps_in_a_collective(thread) else 0


class Exits(unittest.TestCase):
    def expect_good_end(self, program):
        with tempfile.TemporaryDirectory() as folder:
            ranks = [subprocess.Popen([sys.executable, __file__, program, str(rank), folder + "/store"],
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(2)]
            for rank, each in enumerate(ranks):
                output, _ = each.communicate(timeout=120)
                self.assertEqual(each.returncode, 0, f"rank {rank}: {output}")
                self.assertEqual(output, "")

    def test_a_callback_that_is_left_is_dropped(self):
        self.expect_good_end("callback")

    def test_a_daemon_thread_stays_in_its_collective(self):
        self.expect_good_end("daemon")

    def test_callbacks_that_have_begun_end(self):
        # In one process: what the library is asked at the end.
        import torch
        import torch.distributed as dist

        import cohort.torch

        with tempfile.TemporaryDirectory() as folder:
            dist.init_process_group("cohort", store=dist.FileStore(folder + "/store", 1), rank=0, world_size=1)
            begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

            def slow(_):
                begun.set()
                go_on.wait(60)
                ended.set()

            dist.all_reduce(torch.ones(1), async_op=True).get_future().then(slow)
            begun.wait(60)
            timer = threading.Timer(0.1, go_on.set)
            timer.start()
            cohort.torch._torch.prepare_for_exit(PATIENT)
            self.assertTrue(ended.is_set())
            timer.join()
            dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] in ("callback", "daemon"):
        globals()[sys.argv[1]](int(sys.argv[2]), sys.argv[3])
    else:
        unittest.main()
