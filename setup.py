# SPDX-License-Identifier: BSD-3-Clause
"""Builds the Python package with CMake: everything that is in the wheel is what `cmake --install` puts there.

More options for CMake are taken from the environment variable CMAKE_ARGS, as in CMAKE_ARGS="-DCOHORT_TOOLS=OFF".
"""
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE = Path(__file__).resolve().parent
# Headers and CMake files are left out: a wheel is for programs in Python.
COMPONENTS = ("runtime", "torch", "python", "tool")


def version():
    found = re.search(r"^project\(cohort VERSION ([0-9.]+)", (SOURCE / "CMakeLists.txt").read_text(), re.MULTILINE)
    return found.group(1)


def imported_torch():
    try:
        import torch
    except ImportError:
        sys.exit(
            f"Cohort's Python module is built for one PyTorch, and {sys.executable} does not see any.\n"
            "Take an interpreter that has PyTorch, and let pip use it as it is: pip install --no-build-isolation ."
        )
    return torch


def dependencies():
    # libtorch's binary interface changes with its minor version.
    major, minor = imported_torch().__version__.split(".")[:2]
    return [f"torch =={major}.{minor}.*"]


class BuildWithCMake(build_ext):
    def run(self):
        if self.editable_mode or self.inplace:
            sys.exit("The Python module is not built in place: pip install --no-build-isolation . without -e")
        build = (Path(self.build_temp) / "cmake").resolve()
        target = Path(self.build_lib).resolve()
        self.configure(build)
        parallel = [] if "CMAKE_BUILD_PARALLEL_LEVEL" in os.environ else ["-j", str(len(os.sched_getaffinity(0)))]
        subprocess.run(["cmake", "--build", str(build), *parallel], check=True)

        # What an earlier build has left would get into the wheel.
        shutil.rmtree(target / "cohort", ignore_errors=True)
        for component in COMPONENTS:
            subprocess.run(
                ["cmake", "--install", str(build), "--prefix", str(target), "--component", component, "--strip"],
                check=True,
            )
        self.without_links(target / "cohort" / "lib")

    def configure(self, build):
        from torch.utils import cmake_prefix_path

        options = {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_CXX_FLAGS_RELEASE": "-O2 -DNDEBUG",
            "CMAKE_INSTALL_BINDIR": "cohort/bin",
            "CMAKE_INSTALL_LIBDIR": "cohort/lib",
            "CMAKE_UNITY_BUILD": "ON",
            "CMAKE_UNITY_BUILD_BATCH_SIZE": "10",
            "COHORT_EXAMPLES": "OFF",
            "COHORT_PYTHON": "ON",
            "COHORT_PYTHON_EXECUTABLE": sys.executable,
            "COHORT_PYTHON_INSTALL_DIR": ".",
            "COHORT_TESTS": "OFF",
            "COHORT_TORCH": "ON",
            "COHORT_WERROR": "OFF",
        }
        # PyTorch as pip installs it has its CMake files inside; a distribution's are where CMake looks anyway.
        if os.path.isdir(cmake_prefix_path):
            options["CMAKE_PREFIX_PATH"] = cmake_prefix_path
        subprocess.run(
            ["cmake", "-S", str(SOURCE), "-B", str(build), "-G", "Ninja"]
            + [f"-D{name}={value}" for name, value in options.items()]
            + shlex.split(os.environ.get("CMAKE_ARGS", "")),
            check=True,
        )

    @staticmethod
    def without_links(libraries):
        """A wheel has no symbolic links, and a second copy of a library would be a second library. The name that the
        loader asks for is the one to keep."""
        for link in list(libraries.iterdir()):
            if link.is_symlink():
                link.resolve().replace(link)


setup(
    version=version(),
    install_requires=dependencies(),
    # Not to be searched for: the tree has folders that look like packages.
    packages=[],
    py_modules=[],
    # By its name alone, which makes the wheel one for this platform and this Python.
    ext_modules=[Extension("cohort._torch", sources=[])],
    cmdclass={"build_ext": BuildWithCMake},
    scripts=["packaging/wheel/cohort"],
)
