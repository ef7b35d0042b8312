#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Measures Cohort's collectives over shared memory in turn with Open MPI, MPICH and Gloo, and judges them by their bars.

Each line compares with the peer setting that is best at that operation and size: the median over the rounds of its time
divided by ours in the same round. Float32 sums.
"""

import os
import statistics
import time

import harness
from peers.settings import settings

KIB = 1 << 10
TOLERANCE = 0.95
SIZES = "4,64,1K,4K,16K,64K,256K,1M,16M,64M"
MODES = ["back-to-back", "rewritten"]


def bar_of(op, size, ranks, memory):
    """How many times faster than the best peer it has to be with a core for each rank; None: no bar."""
    if memory == "ordinary":
        return 1.3 if ranks >= 8 and op != "send_recv" else 1.0
    if size < 64 * KIB:
        return None
    if op in ("all_reduce", "reduce_scatter"):
        return 4.5 if ranks >= 8 else 3.0
    return {"broadcast": 2.5, "all_gather": 1.8, "all_to_all": 1.8, "send_recv": 1.5}.get(op)


def measure(peers, ranks, collectives, memory, mode, arguments):
    """The results of one `cohort bench`, by operation and size."""
    flags = [",".join(collectives), "--ranks", str(ranks), "--sizes", arguments.sizes, "--memory", memory,
             "--rounds", str(arguments.rounds), "--limit-ms", str(arguments.limit_ms), "--drop-peers", "1.5",
             "--placement", "in" if "all_reduce" in collectives else "out"]
    return harness.bench(arguments.cohort, flags + (["--back-to-back"] if mode == "back-to-back" else []), peers)


def judge(ratio, bar):
    if bar is None:
        return "-"
    return "met" if ratio >= bar * TOLERANCE else "MISSED"


def row(op, ranks, size, memory, mode, figure, ours, peer, ratio, rounds, bar):
    result = judge(ratio, bar)
    print(f"  {op:<15} {ranks:>2} {size:>10} {memory:<9} {figure:<4} {ours:>10.3f} {peer[figure + '_us']:>10.3f}"
          f" {peer['backend']:<20} {ratio:>6.2f}x {rounds:>6} {'' if bar is None else f'{bar:>5.2f}x':>7}  {result}", flush=True)
    return {"collective": op, "ranks": ranks, "size": size, "memory": memory, "mode": mode, "figure": figure,
            "ours_us": ours, "peer": peer["backend"], "peer_us": peer[figure + "_us"], "ratio": ratio, "rounds": rounds,
            "bar": bar, "result": result}


def compare(cells, ranks, mode, oversubscribed):
    rows = []
    for (op, size), results in cells.items():
        peers = [result for result in results if result["peer"]]
        if not peers:
            continue
        for ours in (result for result in results if not result["peer"]):
            best = min(peers, key=lambda peer: peer["p50_us"])
            ratio = harness.median_ratio(best, ours)
            rounds = min(len(best["rounds_us"]), len(ours["rounds_us"]))
            bar = 1.0 if oversubscribed else bar_of(op, size, ranks, ours["memory"])
            rows.append(row(op, ranks, size, ours["memory"], mode, "p50", ours["p50_us"], best,
                            ratio, rounds, bar))
            if oversubscribed:
                # Of those that were measured to the end: two rounds hold no rare delays.
                steady = [peer for peer in peers if len(peer["rounds_us"]) == len(ours["rounds_us"])] or peers
                best = min(steady, key=lambda peer: peer["p99_us"])
                rows.append(row(op, ranks, size, ours["memory"], mode, "p99", ours["p99_us"], best,
                                best["p99_us"] / ours["p99_us"], rounds, 1.0))
            else:
                # The tail: at most twice the median with a core for each rank.
                tail = ours["p99_us"] / ours["p50_us"]
                rows[-1]["tail"] = tail
                rows[-1]["peer_tail"] = best["p99_us"] / best["p50_us"]
    return rows


def measure_all(arguments, report):
    cores = len(os.sched_getaffinity(0))
    if arguments.ranks == "auto":
        counts = [n for n in (2, 4, 8, 16) if n <= cores or n in (4, 8)]
    else:
        counts = [int(n) for n in arguments.ranks.split(",")]
    build = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(arguments.cohort))))
    start = time.monotonic()
    rows = report.rows
    for mode in MODES if arguments.mode == "both" else [arguments.mode]:
        for ranks in counts:
            peers = settings(build, ranks)
            oversubscribed = ranks > cores
            print(f"\n{ranks} ranks on {cores} cores{', more ranks than cores' if oversubscribed else ''}, {mode}")
            print(f"  {'':<15} {'':>2} {'bytes':>10} {'memory':<9} {'':<4} {'ours, us':>10} {'peer, us':>10} {'best peer':<20}"
                  f" {'faster':>7} {'slices':>6} {'bar':>7}  result")
            plans = [(["all_reduce", "broadcast"], arguments.memory),
                     (["all_gather", "reduce_scatter", "all_to_all", "send_recv"], arguments.memory),
                     (["barrier"], "ordinary")]
            if oversubscribed:
                plans = [(["all_reduce", "barrier"], "ordinary")]
            for collectives, memory in plans:
                if arguments.only:
                    collectives = [op for op in collectives if op in arguments.only.split(",")]
                if ranks != 2:
                    collectives = [op for op in collectives if op != "send_recv"]
                if collectives:
                    rows += compare(measure(peers, ranks, collectives, memory, mode, arguments), ranks, mode, oversubscribed)
    judged = [r for r in rows if r["bar"] is not None]
    missed = [r for r in judged if r["result"] == "MISSED"]
    print(f"\n{len(judged) - len(missed)} of {len(judged)} bars met, {time.monotonic() - start:.0f} s")
    tails = [r["tail"] for r in rows if "tail" in r]
    if tails:
        print(f"p99 over p50: median {statistics.median(tails):.2f} (best peers: "
              f"{statistics.median(r['peer_tail'] for r in rows if 'tail' in r):.2f}), at most 2 in "
              f"{sum(t <= 2 for t in tails)} of {len(tails)} cells")


def main():
    parser = harness.arguments_of(__doc__)
    parser.add_argument("cohort", help=harness.COHORT)
    parser.add_argument("--ranks", default="auto", help="numbers of ranks, with commas between them (default: 2, 4, 8 and 16"
                        " as far as there are cores, and 4 and 8 where there are fewer)")
    parser.add_argument("--mode", choices=MODES + ["both"], default="both",
                        help="back-to-back: operations follow one another on untouched memory, as in OSU's loops;"
                        " rewritten: every rank writes its array before each operation, as programs do (default: both)")
    parser.add_argument("--only", default="", help="these operations, with commas between them")
    parser.add_argument("--sizes", default=SIZES, help="with commas between them (default: %(default)s)")
    parser.add_argument("--memory", choices=["ordinary", "group", "both"], default="both")
    parser.add_argument("--rounds", type=int, default=9, help="rounds in turn with the peers (default: %(default)s)")
    parser.add_argument("--limit-ms", type=float, default=60,
                        help="time for one operation, size, peer and round; long ones take longer (default: %(default)s)")
    harness.run(parser, measure_all)


if __name__ == "__main__":
    main()
