// SPDX-License-Identifier: BSD-3-Clause
#include "torch/c10d/exported_work.h"

#include <cohort/error.h>

#include <mutex>
#include <utility>

#include "torch/c10d/completion_threads.h"
#include "torch/c10d/exit.h"

namespace cohort {

ExportedWork::ExportedWork(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
                           std::vector<at::Tensor> outputs)
    : c10d::Work(rank, type, title, inputs), outputs_(std::move(outputs)) {}

void ExportedWork::begin(cohort::Work work) {
  work_ = std::move(work);
  is_profiled_ = recordFunctionEndCallback_ != nullptr;
  if (!is_profiled_) return;
  work_->future().on_done(
      [self = c10::intrusive_ptr<ExportedWork>::reclaim_copy(this)](const auto& /*done*/) { self->end_record(); },
      CompletionThreads::instance());
}

void ExportedWork::end_record() {
  if (is_profiled_) finish();
}

const cohort::Work& ExportedWork::issued() const {
  if (!work_) {
    throw Error("an operation of a coalescing scope was asked for its result before the scope has ended");
  }
  return *work_;
}

bool ExportedWork::isCompleted() {
  return issued().is_completed();
}

bool ExportedWork::isSuccess() const {
  return issued().is_success();
}

std::exception_ptr ExportedWork::exception() const {
  return issued().exception();
}

int ExportedWork::sourceRank() const {
  return issued().source_rank();
}

std::vector<at::Tensor> ExportedWork::result() {
  return outputs_;
}

void ExportedWork::synchronize() {
  const Caller caller;
  issued().synchronize();
}

bool ExportedWork::wait(std::chrono::milliseconds timeout) {
  const Caller caller;
  timeout > kNoTimeout ? issued().wait(timeout) : issued().wait();
  end_record();
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> ExportedWork::getFuture() {
  const auto& work = issued();
  {
    const std::lock_guard lock(mutex_);
    if (future_) return future_;
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
  }
  work.future().on_done(
      [self = c10::intrusive_ptr<ExportedWork>::reclaim_copy(this), future = future_](const auto& done) {
        self->end_record();
        if (const auto error = done.exception()) {
          future->setError(error);
        } else {
          future->markCompleted(c10::IValue(self->outputs_));
        }
      },
      CompletionThreads::instance());
  return future_;
}

}  // namespace cohort
