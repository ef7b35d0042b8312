# SPDX-License-Identifier: BSD-3-Clause
"""Cohort for Conan 2: `conan create packaging/conan` builds the source tree that this file is part of."""
import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load, rmdir
from conan.tools.gnu import PkgConfigDeps

required_conan_version = ">=2.0"


class CohortConan(ConanFile):
    name = "cohort"
    description = "Distributed training for C++20: process groups with collectives over shared memory, Gloo, MPI or NCCL"
    license = "BSD-3-Clause"
    topics = ("distributed-training", "collectives", "mpi", "nccl")
    package_type = "library"
    settings = "os", "compiler", "build_type", "arch"
    options = {"shared": [True, False], "fPIC": [True, False], "tools": [True, False]}
    default_options = {"shared": True, "fPIC": True, "tools": True}
    implements = ["auto_shared_fpic"]

    @property
    def _source_tree(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        lists = load(self, os.path.join(self._source_tree, "CMakeLists.txt"))
        self.version = self.version or re.search(r"project\(cohort VERSION ([0-9.]+)", lists).group(1)

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*", "src/*", "tools/cohort/*"):
            copy(self, pattern, src=self._source_tree, dst=self.export_sources_folder)

    def layout(self):
        cmake_layout(self)

    def requirements(self):
        self.requires("asio/[>=1.22 <2]")
        self.requires("fmt/[>=9.1 <12]")
        self.requires("highway/[>=1.0.3 <2]")
        self.requires("nlohmann_json/[>=3.11 <4]")
        self.requires("openssl/[>=3 <4]")
        if self.options.tools:
            self.requires("cli11/[>=2.1 <3]")
            self.requires("hwloc/[>=2.9 <3]")

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("Cohort runs on Linux only")
        check_min_cppstd(self, 20)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["COHORT_EXAMPLES"] = False
        toolchain.cache_variables["COHORT_PYTHON"] = "OFF"
        toolchain.cache_variables["COHORT_TESTS"] = False
        toolchain.cache_variables["COHORT_TOOLS"] = bool(self.options.tools)
        # The collectives alone. A libtorch or a Gloo of the host would not be part of the package's identity.
        toolchain.cache_variables["COHORT_TORCH"] = "OFF"
        toolchain.cache_variables["GLOO_LIBRARY"] = "OFF"
        toolchain.cache_variables["COHORT_WERROR"] = False
        toolchain.generate()
        deps = CMakeDeps(self)
        # As Highway names itself, and the build asks for it.
        deps.set_property("highway", "cmake_file_name", "hwy")
        deps.set_property("highway::hwy", "cmake_target_name", "hwy::hwy")
        deps.generate()
        # hwloc is found by pkg-config.
        PkgConfigDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", src=self.source_folder, dst=os.path.join(self.package_folder, "licenses"))
        # Conan writes these for its users.
        rmdir(self, os.path.join(self.package_folder, "lib", "cmake"))
        rmdir(self, os.path.join(self.package_folder, "lib", "pkgconfig"))

    def package_info(self):
        self.cpp_info.libs = ["cohort"]
        self.cpp_info.system_libs = ["pthread", "dl"]
        self.cpp_info.set_property("cmake_file_name", "cohort")
        self.cpp_info.set_property("cmake_target_name", "cohort::cohort")
        self.cpp_info.set_property("pkg_config_name", "cohort")
