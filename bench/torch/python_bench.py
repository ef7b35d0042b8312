#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Measures torch.distributed from Python, on backend cohort in turn with gloo.

What DistributedDataParallel adds to a step (as ddp_bench.py measures it), all_reduce, and init_process_group. Both backends
run PyTorch's own code in processes of the same kind; ratios are medians over the rounds.

    python_bench.py <build>/python
"""
import os
import socket
import statistics
import tempfile

from ddp_bench import HERE, MODELS, MS, US, Team, flags, harness, has_pytorch, prices

# Bytes, operations in a round, how many times faster than gloo.
ALL_REDUCES = ((4, 400, 5), (64 << 10, 200, 5), (16 << 20, 5, 3))
INIT_RANKS, INIT_BAR = 8, 5
DDP_BAR = 0.5


def team(arguments, backend, ranks, folder, tag):
    os.environ["PYTHONPATH"] = arguments.package
    return Team([[arguments.python, HERE + "/ddp_peer.py", str(rank), str(ranks), f"{folder}/{tag}-{backend}", backend]
                 for rank in range(ranks)])


def slowest(answers):
    """The rank that took longest, for each operation; its median."""
    return statistics.median(max(each) for each in zip(*([int(t) for t in answer.split()] for answer in answers)))


def measure_all_reduce(report, arguments, ours, theirs):
    print("\nall_reduce from Python, 2 processes: how many times faster than gloo")
    for size, count, bar in ALL_REDUCES:
        for where in ("", "group"):
            commands = {ours: f"all_reduce {size} {count} {where}", theirs: f"all_reduce {size} {count}"}
            for each, command in commands.items():
                each.ask(command)  # memory is touched, the engine finds out what is fast
            times = [{each: slowest(each.ask(command)) for each, command in commands.items()}
                     for _ in range(arguments.rounds)]
            ratio = statistics.median(each[theirs] / each[ours] for each in times)
            note = (f"{statistics.median(each[ours] for each in times) / US:.1f} us, gloo "
                    f"{statistics.median(each[theirs] for each in times) / US:.1f}")
            name = f"all_reduce of {size} B" + (", memory of the group" if where else "")
            report.row(name, ratio, at_least=None if where else bar, note=note)


def measure_ddp(report, arguments, ours, theirs):
    print("\nDDP: what it adds to a step on cohort, as a part of what it adds on gloo, 2 processes")
    for model in arguments.models:
        title, count = MODELS[model]
        plan = [(each, variant) for variant in ("bare", "ddp_view", "ddp_copy") for each in (ours, theirs)]
        _, price = prices(plan, model, arguments.rounds, count)
        best = {each: min(price[each, "ddp_view"], price[each, "ddp_copy"]) for each in (ours, theirs)}
        ratio = best[ours] / max(best[theirs], 1.0)
        note = ", ".join(f"{'cohort' if each is ours else 'gloo'} {variant[4:]} {value / MS:.3f} ms"
                         for (each, variant), value in price.items() if variant != "bare")
        report.row(title, ratio, at_most=DDP_BAR, note=note)


def free_port():
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return each.getsockname()[1]


def measure_init(report, arguments, folder):
    print(f"\ninit_process_group of {INIT_RANKS} ranks: how many times faster than on gloo")
    with team(arguments, "cohort", INIT_RANKS, folder, "init") as ours, \
         team(arguments, "gloo", INIT_RANKS, folder, "init") as theirs:
        for each in (ours, theirs):
            each.ask(f"store {free_port()}")
        for title, bar, where in (("with a store that there is", INIT_BAR, lambda number: f"group{number}"),
                                  ("with tcp://, whose store both make alike", None, lambda _: free_port())):
            times = []
            for number in range(arguments.rounds + 1):
                took = {}
                for each in (ours, theirs) if number % 2 else (theirs, ours):
                    each.ask("close")
                    took[each] = max(int(t) for t in each.ask(f"init {where(number)}"))
                times.append(took)
            times = times[1:]
            ratio = statistics.median(each[theirs] / each[ours] for each in times)
            note = (f"{statistics.median(each[ours] for each in times) / MS:.1f} ms, gloo "
                    f"{statistics.median(each[theirs] for each in times) / MS:.1f}")
            report.row(f"init_process_group, {title}", ratio, at_least=bar, note=note)


def measure(arguments, report):
    arguments.models = arguments.models.split(",")
    if not has_pytorch(arguments.python):
        print(f"python_bench.py: skipped, {arguments.python} has no PyTorch with gloo")
        return
    with tempfile.TemporaryDirectory() as folder:
        if arguments.only in (None, "all_reduce", "ddp"):
            with team(arguments, "cohort", 2, folder, "two") as ours, team(arguments, "gloo", 2, folder, "two") as theirs:
                if arguments.only in (None, "all_reduce"):
                    measure_all_reduce(report, arguments, ours, theirs)
                if arguments.only in (None, "ddp"):
                    measure_ddp(report, arguments, ours, theirs)
        if arguments.only in (None, "init"):
            measure_init(report, arguments, folder)


if __name__ == "__main__":
    parser = flags(__doc__, 11)
    parser.add_argument("package", help="<build>/python, the folder with the package cohort")
    parser.add_argument("--only", choices=["all_reduce", "ddp", "init"], help="one part alone")
    harness.run(parser, measure, unit="x")
