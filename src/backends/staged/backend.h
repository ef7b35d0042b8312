// SPDX-License-Identifier: BSD-3-Clause
//
// Device memory for groups that work on host memory: the memory of each operation is copied through pinned host memory,
// where a group of its own performs the operation (staged_op.h). It is stream-ordered like any backend for device
// memory, with one difference: the work of the host cannot be enqueued, so a caller that orders a stream behind an
// operation (the call itself if it is not asynchronous, otherwise Work::wait()) blocks until the host has finished. It
// cannot be captured into a graph.
#pragma once

#include <cohort/backend.h>
#include <cohort/process_group.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "backends/staged/staging_thread.h"

namespace cohort::staged {

class StagedBackend final : public Backend {
 public:
  /// `host` is a group on host memory, which only this backend uses from now on. The backend takes its name.
  StagedBackend(ProcessGroupPtr host, const cuda::ContextPtr& context);
  ~StagedBackend() override;
  StagedBackend(const StagedBackend&) = delete;
  StagedBackend& operator=(const StagedBackend&) = delete;

  Capabilities capabilities() const override;
  void check_arguments(const Operation& op) const override;
  int perform(const Operation& op, Call& call) override;

  BackendPtr split(const BackendSplit& split, Deadline deadline) override;
  BackendPtr partition(std::span<const BackendSplit> parts, Deadline deadline) override;
  void abort(std::string_view reason) override;
  bool drain(Deadline deadline) override;
  void shutdown(Deadline deadline) override;

 private:
  void begin_batch(Call& call) override;
  void end_batch(Call& call) override;
  void cancel_batch(Call& call) noexcept override;

  StagedOpPtr make_op(Call& call);
  StagedOpPtr batch_of(const Call& call);
  void begin(const StagedOpPtr& op, Call& call);

  const ProcessGroupPtr host_;
  const std::shared_ptr<StagingResources> resources_;
  std::mutex mutex_;
  std::map<const Call*, StagedOpPtr> batches_;  ///< being collected; protected by mutex_
  StagingThread staging_thread_;
};

}  // namespace cohort::staged
