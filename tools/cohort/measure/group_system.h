// SPDX-License-Identifier: BSD-3-Clause
//
// Cohort itself as the system that is measured: one rank of a process group, on ordinary memory, memory of the group or
// memory of a CUDA device.
#pragma once

#include <cohort/process_group.h>
#include <cohort/reduce_op.h>

#include <array>
#include <memory>
#include <vector>

#include "measure/device_mirror.h"
#include "measure/system.h"

namespace cohort::measure {

class GroupSystem final : public System {
 public:
  GroupSystem(ProcessGroupPtr group, MemoryKind kind, const Device& device = {});

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::optional<std::string> refusal(const Command& command) const override;
  void* memory(std::size_t number, std::size_t bytes) override;
  void release() override;
  bool is_on_device() const override { return mirror_ != nullptr; }
  void upload() override {
    if (is_on_device()) mirror_->copy(DeviceMirror::Direction::to_device);
  }
  void download() override {
    if (is_on_device()) mirror_->copy(DeviceMirror::Direction::to_host);
  }
  void prepare(const Job& job) override;
  void run(const Job& job) override;
  void finish() override;
  void barrier() override { group_->barrier(); }
  void max_over_ranks(std::span<double> values) override { group_->all_reduce(values, {.op = ReduceOp::max()}); }

 private:
  Work start(const Job& job);

  ProcessGroupPtr group_;
  MemoryKind kind_;
  Device device_;
  std::unique_ptr<DeviceMirror> mirror_;  ///< null: operations work on the host's memory
  std::array<GroupMemory, 2> shared_;
  // Made once, because the operation is to be measured, not the description of its memory.
  Buffer input_;
  Buffer output_;
  std::vector<Work> under_way_;
};

}  // namespace cohort::measure
