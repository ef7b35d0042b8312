#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What `cohort plan` predicts for a step of DistributedDataParallel on this machine, beside what it takes.

usage: plan_validation.py BUILD_FOLDER [--ranks 2,4,8,16] [--models mlp_small,mlp_large] [--buckets 0.25,25] [--rounds 3]

For each number of ranks: each rank records the step on a fake group, all at the same time (computing takes longer where
other ranks use the memory, too), `cohort plan --fit` measures alpha and beta between so many ranks and predicts, and then
the ranks train for real. Recording, fitting and training take turns, and of each the best round counts: whatever else the
machine does can only make a round slower.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402

LIMIT = 600  # seconds for each command


class Validation:
    def __init__(self, build, rounds):
        self.cohort = build / "tools/cohort/cohort"
        self.worker = build / "bench/torch/plan_step"
        self.rounds = rounds
        os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        self.folder = tempfile.TemporaryDirectory()

    def launched(self, ranks, *arguments):
        return harness.launch([self.cohort, "run", "-n", ranks, "--no-prefix", "--no-pty", self.worker, *arguments],
                              LIMIT)

    def round(self, model, ranks, bucket):
        step = pathlib.Path(self.folder.name) / "step"
        self.launched(ranks, "record", step, model, ranks, bucket)
        fitted = json.loads(harness.launch([self.cohort, "plan", step, "--fit", ranks, "--json"], LIMIT))
        prediction = fitted[0]["worlds"][0]["as_recorded"]
        real = float(self.launched(ranks, "run", model, bucket))
        return prediction["step_s"] * 1e3, prediction["compute_s"] * 1e3, prediction["communication_s"] * 1e3, real

    def row(self, model, ranks, bucket):
        taken = [self.round(model, ranks, bucket) for _ in range(self.rounds)]
        step, compute, communication, real = (min(column) for column in zip(*taken))
        error = 100 * (step / real - 1)
        print(f"{model:<12} {ranks:>5} {bucket:>7g} {compute:>11.2f} {communication:>14.2f} {step:>13.2f} {real:>9.2f}"
              f" {error:>+7.1f}%", flush=True)
        return abs(error)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--ranks", default="2")
    parser.add_argument("--models", default="mlp_small,mlp_large")
    parser.add_argument("--buckets", default="0.25,25")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    validation = Validation(arguments.build.resolve(), arguments.rounds)
    print(f"{'model':<12} {'ranks':>5} {'bucket':>7} {'compute ms':>11} {'communication':>14} {'predicted ms':>13}"
          f" {'real ms':>9} {'error':>8}")
    errors = [validation.row(model, int(ranks), float(bucket))
              for model in arguments.models.split(",")
              for bucket in arguments.buckets.split(",")
              for ranks in arguments.ranks.split(",")]
    print(f"median error {statistics.median(errors):.1f}%, largest {max(errors):.1f}%")


if __name__ == "__main__":
    try:
        main()
    except harness.Broken as error:
        sys.exit(f"plan_validation.py: {error}")
