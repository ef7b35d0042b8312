// SPDX-License-Identifier: BSD-3-Clause
//
// The options of new_group("nccl", ...); docs/engines-nccl.md lists them for users.
#pragma once

#include <cohort/options.h>
#include <cohort/process_group.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backends/nccl/engine_interface.h"

namespace cohort::nccl {

struct GroupOptions {
  bool is_high_priority_stream = false;
  bool timing = false;  ///< measure each operation on the device
  std::optional<std::chrono::milliseconds> timeout{};
  std::string group_name{};
  std::vector<std::int64_t> global_ranks{};
  ProcessGroupPtr split_from{};
  int split_color = 0;

  /// NCCL's own configuration, without `size` and `version`, which follow the library.
  Config config{};
  std::string net_name{};  ///< config.net_name is set only in the result of config_for()

  /// The configuration for a library of this version; valid while these options exist.
  Config config_for(int library_version) const;
};

/// Throws a KeyError that names similar options for an unknown one, and a ValueError for an option that this library is
/// too old for.
GroupOptions read_options(const Options& options, int library_version);

}  // namespace cohort::nccl
