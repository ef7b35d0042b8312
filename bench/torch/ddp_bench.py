#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Measures what DistributedDataParallel adds to a step, in turn with PyTorch's Python DDP and its C++ reducer on gloo.

A step is zero_grad, forward and backward. The price of a wrapper is its step minus the step of the bare module in the
same round and language; medians over the rounds. PyTorch's best is the cheapest of its variants (Python or C++, with and
without gradient_as_bucket_view). A missed bar is printed as MISSED and does not change the exit code.

    ddp_bench.py <build>/bench/torch/ddp_worker
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
MS, US = 1e6, 1e3

# What it is, steps in a round.
MODELS = {
    "mlp_small": ("MLP 512-768-768-64, batch 16", 20),
    "mlp_large": ("MLP of four 2500 x 2500, batch 8", 3),
    "resnet18": ("ResNet-18, batch 4 of 3 x 64 x 64", 3),
    "many_small": ("1,000 parameters of 256 floats", 10),
    "sleeping": ("24 sleeping layers of 1 Mi floats", 3),
}


class Broken(Exception):
    pass


class Team:
    """The ranks of one program, which take commands and answer with a line each."""

    def __init__(self, commands):
        env = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
        for name in ("RANK", "WORLD_SIZE"):
            env.pop(name, None)
        self.ranks = [subprocess.Popen(each, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
                      for each in commands]

    def ask(self, command, only_first=False):
        """Every rank's answer."""
        ranks = self.ranks[:1] if only_first else self.ranks
        for rank in ranks:
            rank.stdin.write(command + "\n")
            rank.stdin.flush()
        answers = [rank.stdout.readline() for rank in ranks]
        if not all(answers):
            raise Broken(f"a rank ended at \"{command}\": {' '.join(self.ranks[0].args)}")
        return answers

    def steps(self, variant, count):
        """The median step in nanoseconds, over all ranks."""
        answers = self.ask(f"steps {variant} {count}")
        return statistics.median(int(each) for answer in answers for each in answer.split())

    def close(self):
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            try:
                rank.wait(timeout=30)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()
            rank.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def has_pytorch(python):
    check = "import sys, torch.distributed as d; sys.exit(0 if d.is_available() and d.is_gloo_available() else 1)"
    try:
        return subprocess.run([python, "-c", check], stderr=subprocess.DEVNULL, check=False).returncode == 0
    except OSError:
        return False


def workers(worker, ranks, folder, tag):
    store = f"@ddp_bench/{os.getpid()}/{tag}"
    return Team([[worker, str(rank), str(ranks), store, f"{folder}/reducer{tag}"] for rank in range(ranks)])


def prices(ours, python, model, rounds, per_round, ours_variants, python_variants):
    """For each variant: step and price in nanoseconds, medians over the rounds."""
    plan = [(ours, "bare"), *((ours, v) for v in ours_variants)]
    if python:
        plan += [(python, "bare"), *((python, v) for v in python_variants)]
    for team in filter(None, (ours, python)):
        team.ask("model " + model)
    for team, variant in plan:
        team.steps(variant, 4)  # buckets are rebuilt, memory is touched
    steps, extra = {}, {}
    for this_round in range(rounds):
        first = this_round % len(plan)  # each begins as often as the others: what ran before it matters
        times = {(team, variant): team.steps(variant, per_round) for team, variant in plan[first:] + plan[:first]}
        for (team, variant), time in times.items():
            name = "python_bare" if team is python and variant == "bare" else variant
            steps.setdefault(name, []).append(time)
            if variant != "bare":
                extra.setdefault(name, []).append(time - times[team, "bare"])
    return ({name: statistics.median(times) for name, times in steps.items()},
            {name: statistics.median(times) for name, times in extra.items()})


def row(rows, what, value, unit, bar, note=""):
    result = "" if bar is None else "met" if value <= bar else "MISSED"
    limit = "" if bar is None else f"<= {bar:g}"
    print(f"  {what:<54} {value:>9.3f} {unit:<3} {limit:>8} {result:<7} {note}")
    rows.append({"what": what, "unit": unit, "ours": value, "bar": bar, "result": result, "note": note})


def measure_prices(rows, arguments, folder):
    python = None
    peer = None
    if has_pytorch(arguments.python):
        peer = [[arguments.python, HERE + "/ddp_peer.py", str(rank), str(arguments.ranks), folder + "/python"]
                for rank in range(arguments.ranks)]
    with workers(arguments.worker, arguments.ranks, folder, "prices") as ours:
        reducer = ["reducer_view", "reducer_copy"] if ours.ask("has_reducer")[0].strip() == "1" else []
        python = Team(peer) if peer else None
        try:
            print(f"\nDDP: what it adds to a step, {arguments.ranks} processes, one compute thread each, as a part of "
                  "what PyTorch's best adds")
            for model in arguments.models:
                title, per_round = MODELS[model]
                steps, price = prices(ours, python, model, arguments.rounds, per_round,
                                      ["cohort", "no_sync", "barrier", *reducer], ["ddp_view", "ddp_copy"])
                theirs = {name: value for name, value in price.items() if name.startswith(("ddp_", "reducer_"))}
                note = (f"step {steps['cohort'] / MS:.2f} ms, bare {steps['bare'] / MS:.2f}; adds "
                        f"{price['cohort'] / MS:.3f} ms (no_sync {price['no_sync'] / MS:.3f}, waiting for the slowest rank alone "
                        f"{price['barrier'] / MS:.3f})")
                if theirs:
                    best = min(theirs, key=theirs.get)
                    note += "; PyTorch " + ", ".join(
                        f"{name} {value / MS:.3f}" for name, value in sorted(theirs.items(), key=lambda e: e[1]))
                    row(rows, title, price["cohort"] / max(theirs[best], 1.0), "x", 0.3, note)
                else:
                    print(f"  {title}: {note} (no PyTorch to compare with)")
                if model == "sleeping":
                    row(rows, "  its step, as a multiple of the bare step", steps["cohort"] / steps["bare"], "x", 1.12)
        finally:
            if python:
                python.close()


def measure_cpu(rows, arguments, folder):
    """Thread CPU time of hooks and finalize for each parameter, in a group of one rank."""
    with workers(arguments.worker, 1, folder, "cpu") as alone:
        alone.ask("model many_small")

        def cpu(variant, count):
            return statistics.median(int(each) for each in alone.ask(f"cpu {variant} {count}")[0].split())

        print("\nDDP: the reducer's own work and memory")
        # To none: the bare module allocates each gradient, the wrapper does not. Zeroed: neither does, and what is left
        # is hooks and finalize.
        for suffix, what in (("", "gradients set to none"), ("_zeroed", "gradients zeroed")):
            for variant in ("bare", "cohort_alone"):
                cpu(variant + suffix, 5)
            extra = [cpu("cohort_alone" + suffix, 10) - cpu("bare" + suffix, 10) for _ in range(2 * arguments.rounds)]
            row(rows, "thread CPU time per parameter, " + what, statistics.median(extra) / 1000 / US, "us", 1.0,
                "1,000 parameters, a group of one")


def measure_memory(rows, arguments, folder):
    """Above the bare module: after a few steps, gradients alive; at the peak of a step; while buckets are rebuilt. Each in
    processes of its own."""
    after, peak, beginning = {}, {}, {}
    for variant in ("bare", "cohort", "bare_zeroed", "cohort_zeroed"):
        with workers(arguments.worker, arguments.ranks, folder, "memory_" + variant) as team:
            def mean(command):
                return statistics.mean(int(each) for each in team.ask(command))

            team.ask("model mlp_large")
            # Group, threads and kernels of both are there before the first look.
            gradients, largest = (int(each) for each in team.ask("gradients")[0].split())
            team.ask(f"steps {variant} 1")
            beginning[variant] = mean(f"peak {variant} 1")  # the second forward rebuilds
            team.ask(f"steps {variant} 3")
            after[variant] = mean("memory")
            peak[variant] = mean(f"peak {variant} 5")

    def above(what, values, variant, bar):
        more = values["cohort" + variant] - values["bare" + variant]
        row(rows, what, more / gradients * 100, "%", bar, f"{more / 2**20:.2f} MiB of {gradients / 2**20:.0f} MiB")

    share = largest / gradients * 100
    above("memory above the bare module, of the gradients", after, "", 1.0)
    above("  at the peak of a step", peak, "", 1.0 + share)
    above("  at the peak of the step that rebuilds", beginning, "", 101.0)
    above("  the same, gradients zeroed and not released", beginning, "_zeroed", 101.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("worker", help="<build>/bench/torch/ddp_worker")
    parser.add_argument("--ranks", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--python", default="/usr/bin/python3",
                        help="which has the PyTorch to compare with (default: %(default)s, Debian's)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each model (default: %(default)s)")
    parser.add_argument("--models", default=",".join(MODELS), help="some of %(default)s")
    parser.add_argument("--only", choices=["prices", "cpu", "memory"], help="one part alone")
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file as well")
    arguments = parser.parse_args()
    arguments.models = arguments.models.split(",")
    for model in arguments.models:
        if model not in MODELS:
            parser.error(f"there is no model {model}: {', '.join(MODELS)}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, part in (("prices", measure_prices), ("cpu", measure_cpu), ("memory", measure_memory)):
            if arguments.only in (None, name):
                part(rows, arguments, folder)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"cores": os.cpu_count(), "ranks": arguments.ranks, "rows": rows}, out, indent=2)


if __name__ == "__main__":
    try:
        main()
    except (Broken, OSError, ValueError) as error:
        print(f"ddp_bench.py: {error}", file=sys.stderr)
        sys.exit(1)
