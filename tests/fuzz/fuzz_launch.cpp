// SPDX-License-Identifier: BSD-3-Clause
//
// The launchers' variables: lines NAME=value, and SLURM's lists.
#include <cohort/error.h>
#include <cohort/launch.h>

#include "accepted.h"
#include "core/parse.h"
#include "rendezvous/slurm.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto tried = [](const auto& parse) {
    try {
      parse();
      cohort::fuzz::accepted = true;
    } catch (const cohort::ValueError&) {  // NOLINT(bugprone-empty-catch): a refusal is an answer
    }
  };
  tried([&] { cohort::first_slurm_host(text); });
  tried([&] { cohort::slurm_tasks_on_node(text, 3); });
  tried([&] {
    std::map<std::string, std::string, std::less<>> variables;
    for (const auto line : cohort::split(text, '\n')) {
      const auto equals = line.find('=');
      if (equals != std::string_view::npos) variables.emplace(line.substr(0, equals), line.substr(equals + 1));
    }
    variables.erase("PMI_FD");  // would ask the kernel about a descriptor of ours
    cohort::set_log_level(cohort::LogLevel::off);
    cohort::find_launch(cohort::Env::from(variables));
  });
  return 0;
}
