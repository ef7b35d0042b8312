// SPDX-License-Identifier: BSD-3-Clause
//
// What must be as it was for a recording to be replayed: the call's arguments (for tensors dtype, device, sizes,
// strides, requires_grad and, if they are distributed, mesh and placements; other arguments by value, groups by
// identity), what the step watches, and what the thread has set (grad mode, inference mode, autocast, default dtype,
// deterministic algorithms, the current group and mesh). Of groups also what their user may set: timeout, names, bound
// device, default backend. Those of recorded collectives must not have been aborted or shut down.
//
//   Guards guards(call, options.watch);              // before the step runs and is recorded
//   if (const auto why = guards.failure(call)) ...   // "fc1 was in training mode and is in evaluation mode"
#pragma once

#include <cohort/torch/capture.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch/capture/argument_guards.h"
#include "torch/capture/modes.h"
#include "torch/capture/program.h"
#include "torch/capture/tensor_metadata.h"

namespace cohort::recording {

class Guards {
 public:
  /// How things are now, before the step runs. Throws the CaptureError of what cannot be watched.
  Guards(const detail::CapturedCall& call, const WatchList& watch);

  /// A group on which the recording has collectives.
  void add_group(const ProcessGroupPtr& group);

  /// What the recording knows of the memory of arguments and gradients (ArgumentGuards::add_memory()): a gradient that
  /// lies in a bucket of DDP when the step begins is not copied into it, and one that the step sets to none first may
  /// be anything.
  void add_memory(const Program& program);

  /// The first guard that fails, in words, or nullopt. Under 20 us for a thousand parameters.
  std::optional<std::string> failure(const detail::CapturedCall& call) const;

  /// The parameters of everything that is watched, each once.
  std::vector<WatchedTensor> parameters() const;

 private:
  void prefetch_behind(std::size_t i) const;
  bool is_in_group_memory(const void* memory) const;
  std::optional<std::string> gradient_memory_failure(std::size_t i, const at::Tensor& gradient) const;

  struct Parameter {
    TensorGuard tensor;
    const TensorMetadata* gradient;  ///< null if the step replaces the gradient without using it, whatever it is
    const void* autograd;            ///< where autograd keeps what it knows of the tensor; only to be prefetched
  };
  /// What a step may ask a group for, and its user may change.
  struct GroupSettings {
    std::chrono::milliseconds timeout;
    std::string name, description, backend;
    std::optional<Device> device;

    explicit GroupSettings(const ProcessGroup& group);
    /// The first difference, in words, or nullopt.
    std::optional<std::string> change(const GroupSettings& now) const;
  };
  struct Group {
    std::weak_ptr<ProcessGroup> group;
    std::string id;
    GroupSettings settings;
    bool has_collectives;
  };
  void add_group(const ProcessGroupPtr& group, bool has_collectives);

  ArgumentGuards arguments_;
  Modes modes_;
  std::vector<Group> groups_;
  std::vector<std::unique_ptr<WatchSnapshot>> watched_;
  MetadataPool metadata_;
  std::vector<Parameter> parameters_;  ///< of everything that is watched, each once
  /// Where their gradients began, and null for those that lay in no other memory.
  std::vector<const void*> gradient_memory_;
  /// Begins and ends of what the recording keeps of groups' memory, such as buckets; sorted.
  std::vector<std::pair<const std::byte*, const std::byte*>> group_memory_;
  bool compares_gradient_memory_ = false;
};

}  // namespace cohort::recording
