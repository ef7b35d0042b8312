// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/modes.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>
#include <cohort/current_group.h>

#include <fmt/format.h>

#include <string_view>

#include "torch/mesh/state.h"

namespace cohort::recording {

namespace {

at::ScalarType default_dtype() {
  return c10::get_default_dtype_as_scalartype();
}

std::optional<std::string> changed_flag(std::string_view what, bool was, bool is) {
  if (was == is) return std::nullopt;
  const auto text = [](bool flag) { return flag ? "on" : "off"; };
  return fmt::format("{} was {} and is {}", what, text(was), text(is));
}

std::string id_of(const ProcessGroupPtr& group) {
  return group != nullptr ? group->id() : "none";
}

/// Also tells apart a group that was destroyed and a later one at its address.
bool is_same(const std::weak_ptr<ProcessGroup>& a, const std::weak_ptr<ProcessGroup>& b) noexcept {
  return !a.owner_before(b) && !b.owner_before(a);
}

}  // namespace

std::string Modes::text_of(const Autocast& autocast) {
  return autocast.is_enabled ? c10::toString(autocast.dtype) : "off";
}

Modes::Modes()
    : grad_(at::GradMode::is_enabled()),
      inference_(c10::InferenceMode::is_enabled()),
      autocast_cpu_(autocast_of(c10::DeviceType::CPU)),
      autocast_cuda_(autocast_of(c10::DeviceType::CUDA)),
      default_dtype_(default_dtype()),
      deterministic_(at::globalContext().deterministicAlgorithms()),
      deterministic_warns_(at::globalContext().deterministicAlgorithmsWarnOnly()),
      group_(current_process_group()),
      group_id_(id_of(group_.lock())) {
  if (const auto* const mesh = MeshAccess::current()) mesh_ = *mesh;
}

std::optional<std::string> Modes::change() const {
  if (auto text = changed_flag("grad mode", grad_, at::GradMode::is_enabled())) return text;
  if (auto text = changed_flag("inference mode", inference_, c10::InferenceMode::is_enabled())) return text;
  if (const auto now = autocast_of(c10::DeviceType::CPU); now != autocast_cpu_) {
    return fmt::format("autocast on the CPU was {} and is {}", text_of(autocast_cpu_), text_of(now));
  }
  if (const auto now = autocast_of(c10::DeviceType::CUDA); now != autocast_cuda_) {
    return fmt::format("autocast on CUDA was {} and is {}", text_of(autocast_cuda_), text_of(now));
  }
  if (const auto now = default_dtype(); now != default_dtype_) {
    return fmt::format("default dtype was {} and is {}", c10::toString(default_dtype_), c10::toString(now));
  }
  const auto& context = at::globalContext();
  if (auto text = changed_flag("use of deterministic algorithms", deterministic_, context.deterministicAlgorithms())) {
    return text;
  }
  if (auto text = changed_flag("warning instead of an error where there is no deterministic algorithm",
                               deterministic_warns_, context.deterministicAlgorithmsWarnOnly())) {
    return text;
  }
  if (const auto now = current_process_group(); !is_same(now, group_)) {
    return fmt::format("the current group was {} and is {}", group_id_, id_of(now));
  }
  const auto* const mesh = MeshAccess::current();
  if (mesh != nullptr ? mesh_ != *mesh : mesh_.has_value()) {
    return fmt::format("the current mesh was {} and is {}", mesh_ ? to_string(*mesh_) : "none",
                       mesh != nullptr ? to_string(*mesh) : "none");
  }
  return std::nullopt;
}

}  // namespace cohort::recording
