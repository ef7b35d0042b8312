# SPDX-License-Identifier: BSD-3-Clause
"""Ranks as forked processes: importing PyTorch once saves seconds. To be used before PyTorch has started a thread."""
import os
import sys
import traceback


def run_forked(ranks, work):
    """Calls work(rank) in a process for each rank. Whether one of them has failed."""
    children = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                work(rank)
                status = 0
            except BaseException as e:
                if rank == 0:
                    traceback.print_exc()
                else:
                    print("rank %d: %s" % (rank, str(e)[:300]), file=sys.stderr)
            finally:
                sys.stderr.flush()
                os._exit(status)
        children.append(pid)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in children)
