// SPDX-License-Identifier: BSD-3-Clause
#include "bench/peers.h"

#include <cohort/error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>

#include "common/program.h"

namespace cohort::bench {

namespace {

using Words = std::vector<std::string>;
using Variables = std::vector<std::pair<std::string, std::string>>;

// glibc gives large blocks back to the system and pays for their pages again at the next call. Told to keep them, the
// MPI libraries' large reductions take half the time.
Variables keep_memory() {
  return {{"MALLOC_MMAP_THRESHOLD_", "4294967296"},
          {"MALLOC_TRIM_THRESHOLD_", "8589934592"},
          {"MALLOC_TOP_PAD_", "268435456"}};
}

/// What it takes to measure a library.
struct Library {
  std::string_view name;    ///< as in the names of its settings
  std::string_view driver;  ///< in the folder of the drivers
  Words launchers{};        ///< any of them; empty: the driver starts its ranks itself
};
const std::array<Library, 3>& libraries() {
  static const std::array<Library, 3> all{{{"openmpi", "mpi_driver.openmpi", {"mpirun.openmpi", "mpirun"}},
                                           {"mpich", "mpi_driver.mpich", {"mpiexec.hydra", "mpiexec.mpich"}},
                                           {"gloo", "gloo_driver"}}};
  return all;
}

/// The first of these that is installed.
std::optional<std::string> installed(const Words& names) {
  for (const auto& name : names) {
    try {
      return tool::find_program(name);
    } catch (const tool::ProgramError&) {
      continue;
    }
  }
  return std::nullopt;
}

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

struct Tuning {
  std::string_view name;
  Words flags{};
  bool keeps_memory = false;
};

void add_open_mpi(const PeerPlace& place, std::vector<PeerSetting>& settings) {
  const auto driver = place.drivers / libraries()[0].driver;
  const auto launcher = installed(libraries()[0].launchers);
  if (!std::filesystem::exists(driver) || !launcher) return;

  const Words shared{"--mca", "pml", "ob1", "--mca", "btl", "self,vader"};
  const Words rabenseifner{"--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", "6",
                           "--mca", "coll_tuned_bcast_algorithm",   "8"};
  const auto prefer = [&](const char* component) {
    return shared + Words{"--mca", fmt::format("coll_{}_priority", component), "100"};
  };
  std::vector<Tuning> tunings{{"default"}, {"rab_malloc", rabenseifner, true}};
  Words common{*launcher, "--allow-run-as-root", "-np", fmt::to_string(place.ranks)};
  if (place.ranks > place.cores) {
    // Without it the ranks spin, and every operation costs time slices.
    common.emplace_back("--oversubscribe");
    tunings.push_back({"coll_adapt", prefer("adapt")});
    tunings.push_back({"coll_han", prefer("han")});
  } else {
    tunings.push_back({"nocma", shared + Words{"--mca", "btl_vader_single_copy_mechanism", "none"}});
    tunings.push_back({"coll_sm", prefer("sm")});
    tunings.push_back({"tuned_rab", rabenseifner});
    tunings.push_back({"ucx",
                       {"--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "opal_common_ucx_tls", "any", "--mca",
                        "opal_common_ucx_devices", "any", "-x", "UCX_TLS=self,posix,sysv,cma"}});
    tunings.push_back({"malloc", {}, true});
  }
  for (const auto& tuning : tunings) {
    PeerSetting setting{.name = fmt::format("openmpi:{}", tuning.name), .command = common + tuning.flags};
    if (tuning.keeps_memory) setting.environment = keep_memory();
    for (const auto& variable : setting.environment) {
      setting.command.insert(setting.command.end(), {"-x", variable.first});
    }
    setting.command.push_back(driver);
    settings.push_back(std::move(setting));
  }
}

void add_mpich(const PeerPlace& place, std::vector<PeerSetting>& settings) {
  const auto driver = place.drivers / libraries()[1].driver;
  const auto launcher = installed(libraries()[1].launchers);
  if (!std::filesystem::exists(driver) || !launcher) return;

  const Words common{*launcher, "-n", fmt::to_string(place.ranks)};
  settings.push_back({.name = "mpich:default", .command = common + Words{driver}});
  if (place.ranks > place.cores) return;
  settings.push_back({.name = "mpich:bind", .command = common + Words{"-bind-to", "core", driver}});
  settings.push_back({.name = "mpich:malloc", .command = common + Words{driver}, .environment = keep_memory()});
}

void add_gloo(const PeerPlace& place, std::vector<PeerSetting>& settings) {
  const auto driver = place.drivers / libraries()[2].driver;
  if (!std::filesystem::exists(driver)) return;
  std::vector<std::string> names{"ring", "bcube", "hd"};
  if (place.ranks <= place.cores) names.emplace_back("hd_busy");
  for (const auto& name : names) {
    settings.push_back({.name = "gloo:" + name, .command = {driver, fmt::to_string(place.ranks), name}});
  }
}

}  // namespace

std::vector<PeerSetting> available_peers(const PeerPlace& place) {
  std::vector<PeerSetting> settings;
  add_open_mpi(place, settings);
  add_mpich(place, settings);
  add_gloo(place, settings);
  return settings;
}

std::string describe_search(const PeerPlace& place) {
  std::string text;
  for (const auto& library : libraries()) {
    const auto driver = place.drivers / library.driver;
    std::string missing;
    if (!std::filesystem::exists(driver)) {
      missing = fmt::format("there is no {} (built with cmake -DCOHORT_BENCH=ON where the library is installed)",
                            driver.lexically_normal().string());
    } else if (!library.launchers.empty() && !installed(library.launchers)) {
      missing = fmt::format("{} is not in PATH", fmt::join(library.launchers, " or "));
    }
    text += fmt::format("cohort bench: --peers auto: {}: {}\n", library.name, missing.empty() ? "found" : missing);
  }
  return text;
}

std::vector<PeerSetting> choose_peers(std::vector<PeerSetting> available, const std::vector<std::string>& wanted) {
  const auto is_named = [](const PeerSetting& setting, const std::string& name) {
    return name == "auto" || setting.name == name || setting.name.rfind(name + ":", 0) == 0;
  };
  for (const auto& name : wanted) {
    if (name == "auto" || name == "none") continue;
    if (std::none_of(available.begin(), available.end(), [&](const auto& s) { return is_named(s, name); })) {
      std::vector<std::string_view> names;
      names.reserve(available.size());
      for (const auto& setting : available) names.push_back(setting.name);
      throw ValueError(fmt::format(
          "there is no peer \"{}\" here: {}", name,
          names.empty() ? "none was built (cmake -DCOHORT_BENCH=ON)" : fmt::format("{}", fmt::join(names, ", "))));
    }
  }
  std::erase_if(available, [&](const PeerSetting& setting) {
    return std::none_of(wanted.begin(), wanted.end(), [&](const auto& name) { return is_named(setting, name); });
  });
  return available;
}

std::filesystem::path peer_drivers_of(const std::filesystem::path& program) {
  return program.parent_path() / ".." / ".." / "bench" / "peers";
}

}  // namespace cohort::bench
