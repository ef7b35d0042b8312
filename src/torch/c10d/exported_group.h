// SPDX-License-Identifier: BSD-3-Clause
//
// A group of Cohort's as c10d sees it. Each function makes one call of the group, and the Work that c10d expects.
#pragma once

#include <cohort/torch/c10d.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch/c10d/exported_work.h"
#include "torch/compat/features.h"

namespace cohort {

class ExportedGroup final : public C10dBackend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  /// What c10d's options have in common.
  struct How {
    bool async_op = true;
    Timeout timeout{};
  };

  ExportedGroup(ProcessGroupPtr group, const ToC10dOptions& options);

  const ProcessGroupPtr& group() const { return group_; }
  bool wants_group_memory() const { return options_.group_memory && group_->capabilities().group_memory; }

  const std::string getBackendName() const override { return "cohort"; }  // NOLINT(*-const-return-type): c10d's

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  /// All ranks count alike from 0 on, so there is nothing to agree on.
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return group_->sequence_number(); }

#if COHORT_TORCH_HAS_C10D_BACKEND
  // Without `override`, since they came at different times after 2.0.
  bool supportsCoalescing() const { return true; }
  /// Operations are collected until endCoalescing(), which runs them as one. c10d has one scope at a time in a group.
  void startCoalescing();
  WorkPtr endCoalescing();
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options);
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options);
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options);
  void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook);
  void waitForPendingWorks() { group_->wait_for_pending(); }
  void setTimeout(std::chrono::milliseconds timeout) { group_->set_timeout(timeout); }
  void abort() { group_->abort("aborted through torch.distributed"); }
  void shutdown() { group_->shutdown(); }

  bool supportsSplitting() const { return true; }
  bool supportsShrinking() const { return group_->capabilities().shrinking || group_->capabilities().regrouping; }
  /// What split() gets where the caller gives no options.
  c10::intrusive_ptr<Options> getBackendOptions();
  /// Null on a rank that is not among them.
  c10::intrusive_ptr<C10dBackend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                        const c10::intrusive_ptr<Options>& options);
  c10::intrusive_ptr<C10dBackend> shrink(const std::vector<std::int64_t>& excluded, int flags,
                                         const c10::intrusive_ptr<Options>& options);

  bool supportsTensorAlloc(c10::DeviceIndex /*index*/) { return wants_group_memory(); }
  at::Tensor allocateTensor(long elements, at::TensorOptions options);  // NOLINT(google-runtime-int): c10d's
#endif

 private:
  /// What c10d and its profiler call an operation.
  struct Kind {
    c10d::OpType type;
    const char* title;
  };
  using Issue = std::function<Work(Operations& target, const How& how)>;
  /// Calls `issue` with the group, or with the batch of a coalescing scope, and wraps the Work that it returns.
  WorkPtr run(const Kind& kind, const Tensors& inputs, Tensors outputs, const How& how, const Issue& issue);
  WorkPtr sum_sparse(Tensors& tensors, const c10d::AllreduceOptions& options);

  const ProcessGroupPtr group_;
  const ToC10dOptions options_;
  /// An open coalescing scope: the operations so far, and the Works that have been returned for them.
  struct Scope {
    Batch batch;
    std::vector<c10::intrusive_ptr<ExportedWork>> works{};
    Tensors outputs{};
  };
  std::optional<Scope> scope_;
};

}  // namespace cohort
