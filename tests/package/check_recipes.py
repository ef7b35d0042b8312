#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks the recipes for vcpkg and Conan as far as it can be done without vcpkg and Conan, and what else repeats the
version. What a recipe asks of its package manager is answered here by functions of the same names, which run the real
build.

    check_recipes.py SOURCE_DIR WORK_DIR [--build]     --build: compiles and installs, too, rather than only configure
"""
import argparse
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

# What the build looks for, and the names of it in vcpkg and in Conan Center.
DEPENDENCIES = {
    "find_path(ASIO_INCLUDE_DIR": ("asio", "asio"),
    "find_package(fmt": ("fmt", "fmt"),
    "find_package(hwy": ("highway", "highway"),
    "find_package(nlohmann_json": ("nlohmann-json", "nlohmann_json"),
    "find_package(OpenSSL": ("openssl", "openssl"),
    "find_package(CLI11": ("cli11", "cli11"),
    "pkg_check_modules(HWLOC": ("hwloc", "hwloc"),
    "find_library(GLOO_LIBRARY": ("gloo", None),
    "find_package(Torch": ("libtorch", None),
}
# Found with what every system has, or for parts that no package has.
OF_THE_SYSTEM = {"Threads", "PkgConfig", "GTest", "Python3", "benchmark"}
# https://learn.microsoft.com/vcpkg/reference/vcpkg-json
MANIFEST_FIELDS = {
    "builtin-baseline", "default-features", "dependencies", "description", "documentation", "features", "homepage",
    "license", "maintainers", "name", "overrides", "port-version", "summary", "supports", "vcpkg-configuration",
    "version", "version-date", "version-semver", "version-string",
}
FEATURE_FIELDS = {"description", "dependencies", "license", "supports"}
DEPENDENCY_FIELDS = {"default-features", "features", "host", "name", "platform", "version>="}
PORT_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class Mistake(Exception):
    pass


def need(condition, what):
    if not condition:
        raise Mistake(what)


def project_version(source):
    return re.search(r"^project\(cohort VERSION ([0-9.]+)", (source / "CMakeLists.txt").read_text(), re.M).group(1)


def check_dependency_table(source):
    """Nothing that the build looks for is missing in the table above."""
    files = [source / "CMakeLists.txt", *source.glob("cmake/*.cmake"), *source.glob("src/**/CMakeLists.txt"),
             *source.glob("tools/cohort/**/CMakeLists.txt")]
    text = "\n".join(file.read_text() for file in files)
    for call in DEPENDENCIES:
        need(call in text, f"the build has no {call})")
    known = {call.split("(")[1] for call in DEPENDENCIES} | OF_THE_SYSTEM
    for name in re.findall(r"find_package\((\w+)[^)]*REQUIRED", text):
        need(name in known, f"the build needs {name}, which no recipe knows: add it to DEPENDENCIES and to the recipes")


def check_debian(source, version):
    first = (source / "debian" / "changelog").read_text().splitlines()[0]
    need(first.startswith(f"cohort ({version})"), f"debian/changelog begins with {first!r}, and the project is {version}")
    soversion = ".".join(version.split(".")[:2])
    names = re.findall(r"^Package: (.*)$", (source / "debian" / "control").read_text(), re.M)
    for name in (f"libcohort{soversion}", f"libcohort-torch{soversion}"):
        need(name in names, f"debian/control has no package {name}")


def check_manifest(manifest, version):
    def names_of(dependencies, where):
        for each in dependencies:
            if isinstance(each, dict):
                need(not set(each) - DEPENDENCY_FIELDS, f"{where}: unknown fields {set(each) - DEPENDENCY_FIELDS}")
            name = each["name"] if isinstance(each, dict) else each
            need(PORT_NAME.fullmatch(name), f"{where}: {name!r} is no name of a port")
            yield name

    need(not set(manifest) - MANIFEST_FIELDS, f"vcpkg.json: unknown fields {set(manifest) - MANIFEST_FIELDS}")
    need(manifest["name"] == "cohort", f"vcpkg.json: the name is {manifest['name']!r}")
    need(manifest["version"] == version, f"vcpkg.json: the version is {manifest['version']}, and the project's {version}")
    names = set(names_of(manifest["dependencies"], "vcpkg.json"))
    for feature, content in manifest["features"].items():
        need(PORT_NAME.fullmatch(feature), f"vcpkg.json: {feature!r} is no name of a feature")
        need(not set(content) - FEATURE_FIELDS, f"feature {feature}: unknown fields {set(content) - FEATURE_FIELDS}")
        need(content.get("description"), f"feature {feature}: no description")
        names |= set(names_of(content.get("dependencies", []), f"feature {feature}"))
    names -= {"vcpkg-cmake", "vcpkg-cmake-config"}
    expected = {vcpkg for vcpkg, _ in DEPENDENCIES.values()}
    need(names == expected, f"vcpkg.json depends on {sorted(names)}, the build on {sorted(expected)}")


def run_portfile(source, work, features, build):
    portfile = source / "packaging" / "vcpkg" / "ports" / "cohort" / "portfile.cmake"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    with open(work / "log", "w") as log:
        status = subprocess.run(
            ["cmake", f"-DPORTFILE={portfile}", f"-DPACKAGES={work}", f"-DFEATURES={','.join(features)}",
             f"-DBUILD={'ON' if build else 'OFF'}", "-P", str(Path(__file__).parent / "vcpkg_functions.cmake")],
            stdout=log, stderr=subprocess.STDOUT).returncode
    if status != 0:
        print((work / "log").read_text()[-6000:])
        raise Mistake(f"portfile.cmake with the features {features}")
    print(f"vcpkg: portfile.cmake {'built' if build else 'configured'} with the features {features}")


def conan_modules(recorded, build):
    """Modules with the names that the recipe imports. Whatever it imports besides is missing, and so a mistake."""
    class ConanFile:
        version = None

        def __init__(self):
            self.cpp_info = types.SimpleNamespace(set_property=lambda *_: None)

        def requires(self, reference):
            recorded.requires.append(reference.split("/")[0])

    class Generator:
        def __init__(self, conanfile):
            self.cache_variables = {}

        def set_property(self, *_):
            pass

        def generate(self):
            recorded.variables.update(self.cache_variables)

    class CMake:
        def __init__(self, conanfile):
            self.conanfile = conanfile

        def run(self, *arguments):
            done = subprocess.run(["cmake", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            need(done.returncode == 0, f"cmake {' '.join(map(str, arguments))}\n{done.stdout[-6000:]}")
            need("Manually-specified variables were not used" not in done.stdout,
                 f"the recipe sets variables that the build does not have\n{done.stdout[-1000:]}")

        def configure(self):
            def text(value):
                return str(value).upper() if isinstance(value, bool) else value

            variables = [f"-D{name}={text(value)}" for name, value in recorded.variables.items()]
            shared = "ON" if self.conanfile.options.shared else "OFF"
            self.run("-S", self.conanfile.source_folder, "-B", self.conanfile.build_folder, "-G", "Ninja",
                     "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_INSTALL_LIBDIR=lib",
                     f"-DBUILD_SHARED_LIBS={shared}", *variables)

        def build(self):
            if build:
                self.run("--build", self.conanfile.build_folder, "-j2")

        def install(self):
            self.run("--install", self.conanfile.build_folder, "--prefix", self.conanfile.package_folder)

    def copy(_, pattern, src, dst):
        found = [file for file in Path(src).glob(pattern.replace("/*", "/**/*")) if file.is_file()]
        need(found, f"conanfile.py: nothing matches {pattern}")
        for file in found:
            target = Path(dst) / file.relative_to(src)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)

    contents = {
        "conan": {"ConanFile": ConanFile},
        "conan.errors": {"ConanInvalidConfiguration": Mistake},
        "conan.tools": {},
        "conan.tools.build": {"check_min_cppstd": lambda *_: None, "can_run": lambda _: True},
        "conan.tools.cmake": {"CMake": CMake, "CMakeDeps": Generator, "CMakeToolchain": Generator,
                              "cmake_layout": lambda _: None},
        "conan.tools.files": {"copy": copy, "load": lambda _, path: Path(path).read_text(),
                              "rmdir": lambda _, path: shutil.rmtree(path)},
        "conan.tools.gnu": {"PkgConfigDeps": Generator},
    }
    modules = {}
    for name, content in contents.items():
        modules[name] = types.ModuleType(name)
        vars(modules[name]).update(content)
    return modules


def load_recipe(path, modules):
    sys.dont_write_bytecode = True
    sys.modules.update(modules)
    spec = importlib.util.spec_from_file_location(f"recipe_in_{path.parent.name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    base = modules["conan"].ConanFile
    classes = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, base) and each is not base]
    need(len(classes) == 1, f"{path} has {len(classes)} recipes")
    return classes[0]()


def check_conan(source, work, version, build):
    shutil.rmtree(work, ignore_errors=True)
    recorded = types.SimpleNamespace(requires=[], variables={})
    modules = conan_modules(recorded, build)
    folder = source / "packaging" / "conan"
    recipe = load_recipe(folder / "conanfile.py", modules)
    recipe.recipe_folder = str(folder)
    recipe.export_sources_folder = recipe.source_folder = str(work / "source")
    recipe.build_folder = str(work / "build")
    recipe.package_folder = str(work / "package")
    need(set(recipe.default_options) == set(recipe.options), "conanfile.py: every option has a default")
    for name, value in recipe.default_options.items():
        need(value in recipe.options[name], f"conanfile.py: option {name} cannot be {value}")
    recipe.options = types.SimpleNamespace(**recipe.default_options)
    recipe.settings = types.SimpleNamespace(os="Linux")

    recipe.set_version()
    need(recipe.version == version, f"conanfile.py: the version is {recipe.version}, and the project's {version}")
    recipe.export_sources()
    recipe.layout()
    recipe.requirements()
    expected = {conan for _, conan in DEPENDENCIES.values() if conan}
    need(set(recorded.requires) == expected, f"conanfile.py requires {sorted(recorded.requires)}, the build {sorted(expected)}")
    recipe.validate()
    recipe.generate()
    recipe.build()
    if build:
        recipe.package()
        need((work / "package" / "licenses" / "LICENSE").exists(), "conanfile.py packages no licence")
    recipe.package_info()
    if build:
        for library in recipe.cpp_info.libs:
            need(any((work / "package" / "lib").glob(f"lib{library}.so")), f"conanfile.py packages no lib{library}")
    load_recipe(folder / "test_package" / "conanfile.py", modules)
    print(f"conan: conanfile.py {'built and packaged' if build else 'configured'} what it exports")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--build", action="store_true")
    arguments = parser.parse_args()
    source, work = arguments.source.resolve(), arguments.work.resolve()
    version = project_version(source)
    try:
        check_dependency_table(source)
        check_debian(source, version)
        check_manifest(json.loads((source / "packaging/vcpkg/ports/cohort/vcpkg.json").read_text()), version)
        for features in [[], ["gloo", "tools"]] if not arguments.build else [["gloo", "tools"]]:
            run_portfile(source, work / "vcpkg", features, arguments.build)
        check_conan(source, work / "conan", version, arguments.build)
    except Mistake as mistake:
        sys.exit(f"check_recipes.py: {mistake}")


main()
