// SPDX-License-Identifier: BSD-3-Clause
//
// What a DistributedDataParallel was constructed with, and how its iterations went.
//
//   std::cout << to_json(ddp.logging_data()) << "\n";
#pragma once

#include <cohort/export.h>

#include <cstdint>
#include <map>
#include <string>

namespace cohort {

/// The fields have the names that PyTorch's DDP gives them. Times are in nanoseconds and describe the iteration before
/// the last forward; those with the prefix avg_ are averages over the sampled iterations up to it. Fields for
/// environment variables are "N/A" if the variable is not set.
struct DdpLoggingData {
  std::map<std::string, std::string> strings{};
  std::map<std::string, std::int64_t> integers{};

  /// Zero for a field that does not exist.
  std::int64_t integer(const std::string& name) const {
    const auto found = integers.find(name);
    return found == integers.end() ? 0 : found->second;
  }
  /// Empty for a field that does not exist.
  std::string text(const std::string& name) const {
    const auto found = strings.find(name);
    return found == strings.end() ? std::string() : found->second;
  }
};

COHORT_API std::string to_json(const DdpLoggingData& data);

/// The environment variables that configure distributed training, for bug reports: one line "env:NAME=value" for each,
/// with N/A for those that are not set.
COHORT_API std::string ddp_environment();

}  // namespace cohort
