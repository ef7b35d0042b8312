#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The list of peers that bench/peers/settings.py makes, with drivers and launchers that are empty files."""

import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "bench"))
from peers.settings import settings  # noqa: E402


class Settings(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name)
        self.patch(mock.patch.dict(os.environ, {"PATH": folder.name}))
        self.patch(mock.patch("os.sched_getaffinity", return_value={0, 1}))
        self.said = self.patch(mock.patch("sys.stderr"))

    def patch(self, patch):
        self.addCleanup(patch.stop)
        return patch.start()

    def add(self, *files):
        for each in files:
            path = self.build / each
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o755)

    def names(self, ranks, *wanted):
        return [each["name"] for each in settings(str(self.build), ranks, wanted)]

    def test_only_what_is_built_and_installed_is_there(self):
        self.assertEqual(self.names(2), [])
        self.add("bench/peers/gloo_driver", "tools/cohort/cohort", "bench/peers/mpi_driver.mpich")
        self.assertEqual(self.names(2), ["gloo:ring", "gloo:bcube", "gloo:hd", "gloo:hd_busy"])
        said = "".join(call.args[0] for call in self.said.write.call_args_list)
        self.assertIn("peer openmpi: there is no " + str(self.build / "bench/peers/mpi_driver.openmpi"), said)
        self.assertIn("peer mpich: mpiexec.hydra or mpiexec.mpich is not in PATH", said)

    def test_libraries_and_settings_are_chosen_by_name(self):
        self.add("bench/peers/gloo_driver", "tools/cohort/cohort", "bench/peers/mpi_driver.mpich", "mpiexec.hydra")
        self.assertEqual(self.names(2, "mpich", "gloo:hd"), ["mpich:default", "mpich:bind", "mpich:malloc", "gloo:hd"])

    def test_nobody_polls_with_more_ranks_than_cores(self):
        self.add("bench/peers/gloo_driver", "tools/cohort/cohort", "bench/peers/mpi_driver.openmpi", "mpirun")
        self.assertEqual(self.names(4, "gloo"), ["gloo:ring", "gloo:bcube", "gloo:hd"])
        for ranks in (2, 4):
            for peer in settings(str(self.build), ranks, ["openmpi"]):
                self.assertEqual("--oversubscribe" in peer["command"], ranks > 2)
                self.assertIn(str(ranks), peer["command"])


if __name__ == "__main__":
    unittest.main()
