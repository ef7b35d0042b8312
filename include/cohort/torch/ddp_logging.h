// SPDX-License-Identifier: BSD-3-Clause
//
// What a DistributedDataParallel has been made of and how its iterations went.
//
//   std::cout << to_json(ddp.logging_data()) << "\n";
#pragma once

#include <cohort/export.h>

#include <cstdint>
#include <map>
#include <string>

namespace cohort {

/// By the names that PyTorch's DDP gives them. Times are in nanoseconds and describe the iteration before the last
/// forward, their avg_ the sampled ones up to it. Text of the environment is "N/A" where a variable is not set.
struct DdpLoggingData {
  std::map<std::string, std::string> strings{};
  std::map<std::string, std::int64_t> integers{};

  /// Zero, and empty, for what there is not.
  std::int64_t integer(const std::string& name) const {
    const auto found = integers.find(name);
    return found == integers.end() ? 0 : found->second;
  }
  std::string text(const std::string& name) const {
    const auto found = strings.find(name);
    return found == strings.end() ? std::string() : found->second;
  }
};

COHORT_API std::string to_json(const DdpLoggingData& data);

/// The environment that training in parallel may be set by, one "env:NAME=value" (or N/A) a line: for bug reports.
COHORT_API std::string ddp_environment();

}  // namespace cohort
