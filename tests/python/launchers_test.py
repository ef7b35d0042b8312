# SPDX-License-Identifier: BSD-3-Clause
"""init_process_group("cohort") under each launcher. SLURM is in tests/clusters, which has one of its own.

usage: launchers_test.py COHORT_COMMAND
"""
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

PROGRAM = str(pathlib.Path(__file__).resolve().parent / "launched.py")
COMMAND = sys.argv.pop(1) if len(sys.argv) > 1 else "cohort"
OF_LAUNCHERS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")


def free_port():
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return str(each.getsockname()[1])


class Launchers(unittest.TestCase):
    def launch(self, *command, **variables):
        env = {name: value for name, value in os.environ.items() if name not in OF_LAUNCHERS}
        env.update(variables, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
                              check=False)
        if "distributed/run.py" in done.stdout and "without libuv" in done.stdout:
            self.skipTest("torchrun of this PyTorch (Debian's 2.x) does not work: it was built without libuv")
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def need(self, program):
        if shutil.which(program) is None:
            self.skipTest(f"{program} is not installed")

    def test_cohort_run(self):
        self.assertIn("2 ranks on shm, sum 3", self.launch(COMMAND, "run", "-n", "2", sys.executable, PROGRAM))

    def test_torchrun(self):
        # PyTorch 1.13 under Python 3.11 needs the output redirected: its default is a flag that is not there any more.
        with tempfile.TemporaryDirectory() as logs:
            command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", free_port(),
                       "--redirects", "1", "--tee", "1", "--log_dir", logs]
            self.assertIn("2 ranks on shm, sum 3", self.launch(*command, PROGRAM))

    def test_open_mpi(self):
        self.need("mpirun.openmpi")
        command = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "3"]
        self.assertIn("3 ranks on shm, sum 6", self.launch(*command, sys.executable, PROGRAM))

    def test_mpich(self):
        self.need("mpirun.mpich")
        self.assertIn("2 ranks on shm, sum 3", self.launch("mpirun.mpich", "-n", "2", sys.executable, PROGRAM))

    def test_variables_set_by_hand(self):
        port = free_port()
        variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        env = {**os.environ, **variables, "OMP_NUM_THREADS": "1"}
        other = subprocess.Popen([sys.executable, PROGRAM], env={**env, "RANK": "1"})
        try:
            self.assertIn("2 ranks on shm", self.launch(sys.executable, PROGRAM, **variables, RANK="0"))
            self.assertEqual(other.wait(timeout=60), 0)
        finally:
            other.kill()
            other.wait()

    def test_nobody_launched_it(self):
        env = {name: value for name, value in os.environ.items() if name not in OF_LAUNCHERS}
        done = subprocess.run([sys.executable, PROGRAM], env=env, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("RANK expected, but not set", done.stderr)  # PyTorch's own error


class Hosts(unittest.TestCase):
    def test_several_hosts_use_the_hybrid_engine(self):
        port = free_port()
        ranks = []
        for rank in range(4):
            env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                   "COHORT_HOST_ID": f"host{rank // 2}", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
            ranks.append(subprocess.Popen([sys.executable, PROGRAM], env=env, stdout=subprocess.PIPE, text=True))
        try:
            texts = [each.communicate(timeout=120)[0] for each in ranks]
            self.assertEqual([each.returncode for each in ranks], [0] * 4)
            self.assertIn("4 ranks on hybrid, sum 10", texts[0])
        finally:
            for each in ranks:
                each.kill()
                each.wait()


if __name__ == "__main__":
    unittest.main()
