// SPDX-License-Identifier: BSD-3-Clause
//
// A Work of Cohort's as c10d sees it.
#pragma once

#include <ATen/core/ivalue.h>
#include <cohort/work.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

#include "torch/compat/features.h"

namespace cohort {

class ExportedWork final : public c10d::Work {
 public:
  /// Begins the profiler's record of the operation, if there is a profiler; `title` is its name there.
  ExportedWork(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
               std::vector<at::Tensor> outputs);

  /// The operation has been issued. Called once, before the object is used otherwise.
  void begin(cohort::Work work);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;
  /// Completed on a thread of CompletionThreads.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

#if COHORT_TORCH_HAS_C10D_BACKEND
  // Without `override`, since they came at different times after 2.0.
  void blockCurrentStream() { wait(kNoTimeout); }
  std::uint64_t getSequencenumber() const { return issued().sequence(); }
#endif

 private:
  /// Throws Error for an operation of a coalescing scope that is still open.
  const cohort::Work& issued() const;
  /// Ends the profiler's record, if it has not ended yet. Whoever learns that the operation is over must find it ended.
  void end_record();

  std::optional<cohort::Work> work_;
  std::vector<at::Tensor> outputs_;
  bool is_profiled_ = false;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  ///< under mutex_; null until somebody asks for it
};

}  // namespace cohort
