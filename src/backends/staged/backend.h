// SPDX-License-Identifier: BSD-3-Clause
//
// Device memory for groups of the host: each operation's memory is copied through pinned memory of the host, where a
// group of its own does the operation (staged_op.h). Stream-ordered like any backend of device memory, with one
// difference: what the host does cannot be enqueued, so whoever orders a stream behind an operation (the call itself
// where it is not asynchronous, else Work::wait()) is kept until the host is through. It cannot be captured into a
// graph.
#pragma once

#include <cohort/backend.h>
#include <cohort/process_group.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "backends/staged/staging_thread.h"

namespace cohort::staged {

class StagedBackend final : public Backend {
 public:
  /// Of a group on host memory, which is this backend's alone from now on. It lends its name.
  StagedBackend(ProcessGroupPtr host, const cuda::ContextPtr& context);
  ~StagedBackend() override;
  StagedBackend(const StagedBackend&) = delete;
  StagedBackend& operator=(const StagedBackend&) = delete;

  Capabilities capabilities() const override;
  void check_arguments(const Operation& op) const override;
  int perform(const Operation& op, Call& call) override;

  BackendPtr split(const BackendSplit& split, Deadline deadline) override;
  void abort(std::string_view reason) override;
  void drain() override;
  void shutdown() override;

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
  std::map<const Call*, StagedOpPtr> batches_;  ///< being collected; under mutex_
  StagingThread staging_thread_;
};

}  // namespace cohort::staged
