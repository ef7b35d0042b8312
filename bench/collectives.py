#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Measures Cohort's collectives over shared memory in turn with Open MPI, MPICH and Gloo, and judges them by their bars.

Each line compares with the peer setting that is best at that operation and size: the median over the rounds of its time
divided by ours in the same round. Float32 sums. A missed bar is printed as MISSED and does not change the exit code.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

KIB, MIB = 1 << 10, 1 << 20
TOLERANCE = 0.95
SMALL = ["4", "64", "1K"]
LARGE = ["64K", "256K", "1M", "4M", "16M", "64M"]


def bar_of(op, size, ranks, memory):
    """How many times faster than the best peer it has to be with a core for each rank; None: no bar."""
    if op == "send_recv":
        return 1 / 1.3 if size <= KIB and memory == "ordinary" and ranks == 2 else None
    if size <= KIB:
        if op in ("all_reduce", "broadcast", "barrier") and memory == "ordinary":
            return {2: 1.0, 8: 1.3}.get(ranks)
        return None
    if size < 64 * KIB:
        return None
    if op == "all_reduce":
        if memory == "group":
            return {2: 5.0 if size >= 64 * MIB else 2.5, 8: 3.0}.get(ranks)
        return {2: 1.3 if size >= 64 * MIB else 1.0, 8: 1.2}.get(ranks)
    if op in ("broadcast", "all_gather", "reduce_scatter", "all_to_all"):
        if memory == "ordinary":
            return 1.0
        return 1.2 if op == "all_to_all" and ranks == 2 else 1.5
    return None


def measure(cohort, ranks, collectives, sizes, memory, arguments):
    """The results of one `cohort bench`, by operation and size."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [cohort, "bench", ",".join(collectives), "--ranks", str(ranks), "--sizes", ",".join(sizes),
                   "--memory", memory, "--backends", "shm", "--peers", "auto", "--rounds", str(arguments.rounds),
                   "--limit-ms", str(arguments.limit_ms), "--drop-peers", "1.5", "--placement",
                   "in" if "all_reduce" in collectives else "out", "--timeout", "30", "--json", out.name]
        if arguments.peer_drivers:
            command += ["--peer-drivers", arguments.peer_drivers]
        # Without the launchers' variables, which would make it one rank of theirs.
        env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
        process = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=env, check=False)
        if process.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}\n{process.stdout}")
        for line in process.stdout.splitlines():
            if "not measured" in line and not line.startswith("# shm"):
                print(f"  {line}")
        results = json.load(out)["results"]
    cells = {}
    for result in results:
        if "p50_us" in result:
            cells.setdefault((result["collective"], result["size"]), []).append(result)
    return cells


def judge(ratio, bar):
    if bar is None:
        return "-"
    return "met" if ratio >= bar * TOLERANCE else "MISSED"


def row(op, ranks, size, memory, figure, ours, peer, ratio, bar):
    result = judge(ratio, bar)
    name = f"{peer['backend']}" if peer else "-"
    print(f"  {op:<15} {ranks:>2} {size:>10} {memory:<9} {figure:<4} {ours:>10.2f} {peer[figure + '_us'] if peer else 0:>10.2f}"
          f" {name:<20} {ratio:>6.2f}x {'' if bar is None else f'{bar:>5.2f}x':>7}  {result}", flush=True)
    return {"collective": op, "ranks": ranks, "size": size, "memory": memory, "figure": figure, "ours_us": ours,
            "peer": name, "peer_us": peer[figure + "_us"] if peer else None, "ratio": ratio, "bar": bar,
            "result": result}


def compare(cells, ranks, oversubscribed):
    rows = []
    for (op, size), results in cells.items():
        peers = [result for result in results if result["peer"]]
        if not peers:
            continue
        for ours in (result for result in results if not result["peer"]):
            best = min(peers, key=lambda peer: peer["p50_us"])
            ratio = statistics.median(p / o for p, o in zip(best["rounds_us"], ours["rounds_us"]))
            bar = 1.0 if oversubscribed else bar_of(op, size, ranks, ours["memory"])
            rows.append(row(op, ranks, size, ours["memory"], "p50", ours["p50_us"], best, ratio, bar))
            if oversubscribed:
                # Of those that were measured to the end: two rounds hold no rare delays.
                steady = [peer for peer in peers if len(peer["rounds_us"]) == len(ours["rounds_us"])] or peers
                best = min(steady, key=lambda peer: peer["p99_us"])
                rows.append(row(op, ranks, size, ours["memory"], "p99", ours["p99_us"], best,
                                best["p99_us"] / ours["p99_us"], 1.0))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cohort", help="the cohort command, <build>/tools/cohort/cohort")
    parser.add_argument("--ranks", default="auto", help="numbers of ranks, with commas between them (default: 2, 4, 8 and 16"
                        " as far as there are cores, and 4 and 8 where there are fewer)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds in turn with the peers (default: %(default)s)")
    parser.add_argument("--limit-ms", type=float, default=8,
                        help="time for one operation, size, peer and round; long ones take longer (default: %(default)s)")
    parser.add_argument("--peer-drivers", help="folder with the peers' drivers, if not <build>/bench/peers")
    parser.add_argument("--largest", default="64M", choices=LARGE, help="largest size (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file as well")
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    if arguments.ranks == "auto":
        counts = [n for n in (2, 4, 8, 16) if n <= cores or n in (4, 8)]
    else:
        counts = [int(n) for n in arguments.ranks.split(",")]
    large = LARGE[:LARGE.index(arguments.largest) + 1]
    start = time.monotonic()
    rows = []
    for ranks in counts:
        oversubscribed = ranks > cores
        print(f"\n{ranks} ranks on {cores} cores{', more ranks than cores' if oversubscribed else ''}")
        print(f"  {'':<15} {'':>2} {'bytes':>10} {'memory':<9} {'':<4} {'ours, us':>10} {'peer, us':>10} {'best peer':<20}"
              f" {'faster':>7} {'bar':>7}  result")
        if oversubscribed:
            plans = [(["all_reduce", "barrier"], SMALL + [size for size in large if size != "64M"], "ordinary")]
        else:
            plans = [(["all_reduce", "broadcast"], SMALL + large, "both"),
                     (["all_gather", "reduce_scatter", "all_to_all"], [s for s in large if s not in ("256K", "4M")], "both"),
                     (["barrier", "send_recv"], SMALL, "ordinary")]
        for collectives, sizes, memory in plans:
            rows += compare(measure(arguments.cohort, ranks, collectives, sizes, memory, arguments), ranks, oversubscribed)
    judged = [r for r in rows if r["bar"] is not None]
    missed = [r for r in judged if r["result"] == "MISSED"]
    print(f"\n{len(judged) - len(missed)} of {len(judged)} bars met, {time.monotonic() - start:.0f} s")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"cores": cores, "rounds": arguments.rounds, "rows": rows}, out, indent=2)


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, OSError) as error:
        print(f"collectives.py: {error}", file=sys.stderr)
        sys.exit(1)
