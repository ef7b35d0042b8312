// SPDX-License-Identifier: BSD-3-Clause
//
// Cohort itself as the system that is measured: one rank of a process group, on ordinary memory, memory of the group or
// memory of a CUDA device.
#pragma once

#include <cohort/process_group.h>

#include <array>
#include <memory>
#include <vector>

#include "bench/device_mirror.h"
#include "measure/system.h"

namespace cohort::bench {

class GroupSystem final : public System {
 public:
  GroupSystem(ProcessGroupPtr group, MemoryKind kind, const Device& device = {});

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::optional<std::string> refusal(const Command& command) const override;
  void* memory(std::size_t number, std::size_t bytes) override;
  void release() override;
  bool is_on_device() const override { return mirror_ != nullptr; }
  void upload() override;
  void download() override;
  void prepare(const Job& job) override;
  void run(const Job& job) override;
  void finish() override;
  void barrier() override;
  void max_over_ranks(std::span<double> values) override;

 private:
  Work start(const Job& job);
  void ping_pong(const Job& job);

  ProcessGroupPtr group_;
  MemoryKind kind_;
  Device device_;
  std::unique_ptr<DeviceMirror> mirror_;  ///< null: operations work on the host's memory
  std::array<OrdinaryMemory, 2> ordinary_;
  std::array<GroupMemory, 2> shared_;
  // Made once, because the operation is to be measured, not the description of its memory.
  Buffer input_;
  Buffer output_;
  std::vector<Work> under_way_;
};

}  // namespace cohort::bench
