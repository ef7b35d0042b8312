// SPDX-License-Identifier: BSD-3-Clause
//
// Some operators read a tensor's elements through a pointer and call others with what they have read: lengths of
// sequences become the sizes of slices. libtorch takes them apart above the recorder, which would take the sizes for
// constants. They are noticed where libtorch announces each call to profilers.
#pragma once

#include <ATen/record_function.h>

#include <memory>

#include "torch/capture/refusals.h"

namespace cohort::recording {

/// While it exists, this thread's calls are watched. Costs some tens of nanoseconds per operator.
class HiddenReads {
 public:
  HiddenReads();
  ~HiddenReads();
  HiddenReads(const HiddenReads&) = delete;
  HiddenReads& operator=(const HiddenReads&) = delete;

  /// The first such operator that was called, or null. An exception out of the observer would not reach the caller, so
  /// the recorder asks, at the latest when the step has run.
  const RefusedOperator* first() const noexcept { return first_; }

 private:
  static std::unique_ptr<at::ObserverContext> look_at(const at::RecordFunction& call);

  const RefusedOperator* first_ = nullptr;
  HiddenReads* outer_;
  at::CallbackHandle handle_;
};

}  // namespace cohort::recording
