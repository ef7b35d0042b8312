#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Measures what DistributedDataParallel adds to a step, in turn with PyTorch's Python DDP and its C++ reducer on gloo.

A step is zero_grad, forward and backward. The price of a wrapper is its step minus the step of the bare module in the
same round and language; medians over the rounds. PyTorch's best is the cheapest of its variants (Python or C++, with and
without gradient_as_bucket_view).

    ddp_bench.py <build>/bench/torch/ddp_worker
"""
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.dirname(HERE))
import harness  # noqa: E402
from harness import Broken  # noqa: E402

MS, US = 1e6, 1e3

# What it is, steps in a round.
MODELS = {
    "mlp_small": ("MLP 512-768-768-64, batch 16", 20),
    "mlp_large": ("MLP of four 2500 x 2500, batch 8", 3),
    "resnet18": ("ResNet-18, batch 4 of 3 x 64 x 64", 3),
    "many_small": ("1,000 parameters of 256 floats", 10),
    "sleeping": ("24 sleeping layers of 1 Mi floats", 3),
}


class Team:
    """The ranks of one program, which take commands and answer with a line each."""

    def __init__(self, commands):
        env = harness.own_environment(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
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


def prices(plan, model, rounds, per_round):
    """For each team and variant of the plan: step and price in nanoseconds, medians over the rounds."""
    for team in dict.fromkeys(team for team, _ in plan):
        team.ask("model " + model)
    for team, variant in plan:
        team.steps(variant, 4)  # buckets are rebuilt, memory is touched
    steps = {each: [] for each in plan}
    for this_round in range(rounds):
        first = this_round % len(plan)  # each begins as often as the others: what ran before it matters
        for team, variant in plan[first:] + plan[:first]:
            steps[team, variant].append(team.steps(variant, per_round))
    return ({each: statistics.median(times) for each, times in steps.items()},
            {(team, variant): statistics.median(time - bare for time, bare in zip(times, steps[team, "bare"]))
             for (team, variant), times in steps.items()})


def measure_prices(report, arguments, folder):
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
                plan = [(ours, variant) for variant in ("bare", "cohort", "no_sync", "barrier", *reducer)]
                if python:
                    plan += [(python, variant) for variant in ("bare", "ddp_view", "ddp_copy")]
                steps, price = prices(plan, model, arguments.rounds, per_round)
                step, bare = steps[ours, "cohort"], steps[ours, "bare"]
                cohort, no_sync, barrier = (price[ours, variant] for variant in ("cohort", "no_sync", "barrier"))
                theirs = {name: value for (_, name), value in price.items() if name.startswith(("ddp_", "reducer_"))}
                note = (f"step {step / MS:.2f} ms, bare {bare / MS:.2f}; adds {cohort / MS:.3f} ms (no_sync "
                        f"{no_sync / MS:.3f}, waiting for the slowest rank alone {barrier / MS:.3f})")
                if theirs:
                    best = min(theirs, key=theirs.get)
                    note += "; PyTorch " + ", ".join(
                        f"{name} {value / MS:.3f}" for name, value in sorted(theirs.items(), key=lambda e: e[1]))
                    report.row(title, cohort / max(theirs[best], 1.0), at_most=0.3, note=note)
                else:
                    print(f"  {title}: {note} (no PyTorch to compare with)")
                if model == "sleeping":
                    report.row("  its step, as a multiple of the bare step", step / bare, at_most=1.12)
        finally:
            if python:
                python.close()


def measure_cpu(report, arguments, folder):
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
            report.row("thread CPU time per parameter, " + what, statistics.median(extra) / 1000 / US, at_most=1.0,
                       unit="us", note="1,000 parameters, a group of one")


def measure_memory(report, arguments, folder):
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
        report.row(what, more / gradients * 100, at_most=bar, unit="%",
                   note=f"{more / 2**20:.2f} MiB of {gradients / 2**20:.0f} MiB")

    share = largest / gradients * 100
    above("memory above the bare module, of the gradients", after, "", 1.0)
    above("  at the peak of a step", peak, "", 1.0 + share)
    above("  at the peak of the step that rebuilds", beginning, "", 101.0)
    above("  the same, gradients zeroed and not released", beginning, "_zeroed", 101.0)


def measure(arguments, report):
    arguments.models = arguments.models.split(",")
    if not set(arguments.models) <= set(MODELS):
        raise Broken(f"there are only the models {', '.join(MODELS)}")
    with tempfile.TemporaryDirectory() as folder:
        for name, part in (("prices", measure_prices), ("cpu", measure_cpu), ("memory", measure_memory)):
            if arguments.only in (None, name):
                part(report, arguments, folder)


def flags(doc, rounds):
    """Those of this program that python_bench.py has as well."""
    parser = harness.arguments_of(doc)
    parser.add_argument("--python", default="/usr/bin/python3",
                        help="which has PyTorch (default: %(default)s, Debian's)")
    parser.add_argument("--rounds", type=int, default=rounds, help="rounds of each part (default: %(default)s)")
    parser.add_argument("--models", default=",".join(MODELS), help="some of %(default)s")
    return parser


if __name__ == "__main__":
    parser = flags(__doc__, 15)
    parser.add_argument("worker", help="<build>/bench/torch/ddp_worker")
    parser.add_argument("--ranks", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--only", choices=["prices", "cpu", "memory"], help="one part alone")
    harness.run(parser, measure, unit="x")
