// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/watch_ddp.h"

#include <cohort/torch/zero_optimizer.h>

#include <fmt/format.h>

#include <string_view>

#include "torch/capture/watch_optimizer.h"
#include "torch/ddp/wrapper_impl.h"

namespace cohort::recording {

namespace {

/// What changed in the reducer.
std::string_view reduction_change(const ddp::ReductionMode& then, const ddp::ReductionMode& now) {
  if (now.has_failed != then.has_failed) return "the last backward failed";
  if (now.is_attached != then.is_attached) return "remove_autograd_hooks() was called";
  if (now.is_learning != then.is_learning) return "the first iteration of the static graph is over";
  if (now.bucket_builds != then.bucket_builds) return "the buckets were rebuilt";
  if (now.is_rebuild_due != then.is_rebuild_due) return "the buckets are to be rebuilt";
  if (now.hooks != then.hooks) return "another communication hook was registered";
  if (now.has_divisor != then.has_divisor) return "gradients are divided by another number of ranks";
  return now.is_idle ? "a backward was still to come when the step began, and is not"
                     : "a backward is still to come, and was not when the step was recorded";
}

}  // namespace

DdpState::DdpState(const ddp::Wrapper& wrapper)
    : wrapper_(wrapper), group_(wrapper.process_group()), then_(settings()) {
  const auto& optimizer = ddp::WrapperAccess::impl(wrapper_).zero_step;
  if (optimizer != nullptr) zero_step_ = snapshot_of(*optimizer);
}

DdpState::Settings DdpState::settings() const {
  const auto& impl = ddp::WrapperAccess::impl(wrapper_);
  return {.syncs = impl.syncs,
          .is_in_join = impl.join != nullptr,
          .static_graph = impl.options.static_graph,
          .clones_outputs = impl.clones_outputs,
          .has_zero_step = impl.zero_step != nullptr,
          .buffer_hooks = impl.buffer_hooks,
          .reduction = impl.reducer != nullptr ? std::optional(impl.reducer->mode()) : std::nullopt};
}

std::optional<std::string> DdpState::change() const {
  const auto& group = wrapper_.process_group();
  if (group != group_) {
    return fmt::format("DDP's group was {} and is {}", group_->id(), group != nullptr ? group->id() : "none");
  }
  const auto now = settings();
  if (now == then_) {
    const auto text = zero_step_ != nullptr ? zero_step_->change() : std::nullopt;
    return text ? std::optional(fmt::format("DDP's ZeRO step: {}", *text)) : std::nullopt;
  }
  if (now.syncs != then_.syncs) {
    return now.syncs ? "DDP: the step was recorded in no_sync() and is not"
                     : "DDP: the step is in no_sync() and was not";
  }
  if (now.is_in_join != then_.is_in_join) {
    return now.is_in_join ? "DDP: the step is in a join and was not"
                          : "DDP: the step was recorded in a join and is not";
  }
  if (now.static_graph != then_.static_graph) return "DDP: set_static_graph() was called";
  if (now.clones_outputs != then_.clones_outputs) return "DDP: set_sink_clone() was called";
  if (now.has_zero_step != then_.has_zero_step) return "DDP: a ZeRO step was registered";
  if (now.buffer_hooks != then_.buffer_hooks) return "DDP: another buffer hook was registered";
  return fmt::format("DDP: {}", reduction_change(*then_.reduction, *now.reduction));
}

}  // namespace cohort::recording
