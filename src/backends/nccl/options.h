// SPDX-License-Identifier: BSD-3-Clause
//
// What new_group("nccl", ...) takes by name; docs/engines-nccl.md lists it for users.
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

  /// NCCL's own, without `size` and `version`, which follow the library.
  Config config{};
  std::string net_name{};  ///< config.net_name points nowhere until config_for() is asked

  /// For a library of this version; valid while these options live.
  Config config_for(int library_version) const;
};

/// A KeyError for what nobody knows, naming what is near it; a ValueError for what this library is too old for.
GroupOptions read_options(const Options& options, int library_version);

}  // namespace cohort::nccl
