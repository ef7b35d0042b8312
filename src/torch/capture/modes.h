// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <cohort/process_group.h>
#include <cohort/torch/mesh.h>

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "torch/compat/autocast.h"

namespace cohort::recording {

/// What a thread has set around a step and decides what it computes: modes of libtorch, the current group and the
/// current mesh.
class Modes {
 public:
  /// As they are now.
  Modes();
  /// What has changed since, in words, or nullopt.
  std::optional<std::string> change() const;

 private:
  static std::string text_of(const Autocast& autocast);

  bool grad_;
  bool inference_;
  Autocast autocast_cpu_;
  Autocast autocast_cuda_;
  at::ScalarType default_dtype_;
  bool deterministic_;
  bool deterministic_warns_;
  std::weak_ptr<ProcessGroup> group_;  ///< by identity
  std::string group_id_;
  std::optional<DeviceMesh> mesh_;  ///< by value
};

}  // namespace cohort::recording
