// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/process_group.h>
#include <cohort/torch/capture_watch.h>
#include <cohort/torch/ddp.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "torch/ddp/reducer.h"

namespace cohort::recording {

/// What of a DDP wrapper decides how a step goes, beside its module.
class DdpState {
 public:
  explicit DdpState(const ddp::Wrapper& wrapper);
  /// In words, or nullopt.
  std::optional<std::string> change() const;

 private:
  struct Settings {
    bool syncs = false;
    bool is_in_join = false;
    bool static_graph = false;
    bool clones_outputs = false;
    bool has_zero_step = false;
    std::size_t buffer_hooks = 0;
    std::optional<ddp::ReductionMode> reduction{};  ///< nullopt if all parameters are delayed
    bool operator==(const Settings&) const = default;
  };
  Settings settings() const;

  const ddp::Wrapper& wrapper_;
  ProcessGroupPtr group_;
  Settings then_;
  std::unique_ptr<WatchSnapshot> zero_step_;  ///< of its optimizer; null without one
};

}  // namespace cohort::recording
