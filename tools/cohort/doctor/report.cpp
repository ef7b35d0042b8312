// SPDX-License-Identifier: BSD-3-Clause
#include "doctor/report.h"

#include <cohort/error.h>
#include <cohort/new_group.h>
#include <cohort/version.h>

#include <dlfcn.h>
#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <hwloc.h>
#include <openssl/opensslv.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>

#include "backends/hybrid/factory.h"
#include "group/factories.h"

namespace cohort::tool {

namespace {

/// libcrypto comes with libcohort; it is looked up by name, since the command itself does not link to it.
std::string openssl_version() {
  struct Close {
    void operator()(void* library) const { ::dlclose(library); }
  };
  const auto name = fmt::format("libcrypto.so.{}", OPENSSL_SHLIB_VERSION);
  const std::unique_ptr<void, Close> library(::dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD));
  if (library) {
    using VersionFunction = const char* (*)(int);
    constexpr int full_version = 0;  // OPENSSL_VERSION
    if (auto* const version = reinterpret_cast<VersionFunction>(::dlsym(library.get(), "OpenSSL_version"))) {
      return version(full_version);
    }
  }
  return OPENSSL_VERSION_TEXT;
}

std::string hwloc_version() {
  const unsigned api = hwloc_get_api_version();
  return fmt::format("{} (API {}.{}.{})", HWLOC_VERSION, api >> 16U, (api >> 8U) & 0xffU, api & 0xffU);
}

std::string distribution() {
  std::ifstream file("/etc/os-release");
  constexpr std::string_view key = "PRETTY_NAME=";
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    line.erase(0, key.size());
    std::erase(line, '"');
    return line;
  }
  return {};
}

Versions examine_versions() {
  utsname system{};
  const bool known = ::uname(&system) == 0;
  return {
      .cohort = std::string(version().text),
#ifdef __clang__
      .compiler = "clang " __clang_version__,
#else
      .compiler = "gcc " __VERSION__,
#endif
      .openssl = openssl_version(),
      .hwloc = hwloc_version(),
      .libc = fmt::format("glibc {}", ::gnu_get_libc_version()),
      .kernel = known ? fmt::format("{} {} {}", system.sysname, system.release, system.machine) : std::string(),
      .system = distribution(),
  };
}

std::vector<BackendState> examine_backends() {
  std::vector<BackendState> states;
  for (const auto& name : backend_names()) states.push_back({.name = name, .built_in = true});
  for (const auto& [name, hint] : absent_backends()) states.push_back({.name = name, .hint = hint});
  return states;
}

AutoReport examine_auto() {
  const auto choices = hybrid::choices_of_auto();
  return {.one_host = choices.one_host, .several_hosts = choices.several_hosts, .cuda = choices.cuda};
}

HostName examine_host() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return {};
  return {.name = name.data(), .resolves = host_resolves(name.data())};
}

LaunchReport examine_launch(std::optional<Env>& env) {
  LaunchReport report;
  try {
    env = Env::read();
    for (const auto& variable : Env::known()) {
      if (const auto text = env->text(variable.name); !text.empty()) report.variables.emplace_back(variable.name, text);
    }
    report.found = find_launch(*env);
  } catch (const Error& e) {
    report.error = e.message();
  }
  return report;
}

}  // namespace

bool Report::has_errors() const {
  return std::any_of(problems.begin(), problems.end(), [](const Problem& p) { return p.severity == Severity::error; });
}

Report examine() {
  std::optional<Env> env;
  Report report{
      .versions = examine_versions(),
      .backends = examine_backends(),
      .choice = examine_auto(),
      .cpu = examine_cpu(),
      .memory = examine_memory(),
      .limits = examine_limits(),
      .host = examine_host(),
      .interfaces = examine_interfaces(),
      .gpu = examine_gpus(),
      .launch = examine_launch(env),
  };
  report.problems = find_problems(report, env);
  return report;
}

}  // namespace cohort::tool
