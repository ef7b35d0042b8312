// SPDX-License-Identifier: BSD-3-Clause
//
// What the torch layer knows of capture (src/torch/capture): somebody may observe what a thread computes, in order to
// do it again later without running the code. Everything runs as it would without the observer. What code that is
// observed has to say for that is here and, for users as well, in cohort/torch/capture_host.h (is_capturing, on_host,
// HostArgument):
//
//   if (is_capturing()) return ops::wait_tensor(result);               // an operator, since those alone are seen
//   refuse_to_record(CaptureRefusal::host_read, "clip_grad_norm_ with error_if_nonfinite",
//                    "the host reads the norm and throws, which a replay would not do", {"Leave it out."});
//   const ObservedCall call("to_local", tensor, [&] { return std::vector<CallConstant>{{"placements", text}}; });
//
// If nobody observes, each costs a look at thread-local state.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <cohort/torch/capture_error.h>
#include <cohort/torch/capture_host.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace cohort {

/// An operand of an observed call that is no tensor.
struct CallConstant {
  std::string name;
  std::string text;
};

class StepObserver {
 public:
  /// That of this thread's work, or null. For CUDA tensors backward runs on threads of the autograd engine, which carry
  /// it along.
  static StepObserver* active() noexcept;

  /// Runs an operator on plain tensors, with these keys.
  virtual void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) = 0;
  /// The host has called the function, and it is to be called at this place each time.
  virtual void add_host_action(const std::function<void()>& function) = 0;
  /// What runs until the end belongs to this call on the tensor, unless it is part of another one.
  virtual void begin_call(const char* name, std::vector<CallConstant> constants, const at::Tensor& tensor) = 0;
  virtual void end_call() = 0;
  /// What runs now cannot be done again.
  virtual void refuse(const CaptureError& why) = 0;

 protected:
  ~StepObserver() = default;
};

/// While it exists, the operators of this thread's work are observed.
class ObservedScope {
 public:
  explicit ObservedScope(StepObserver& observer);

 private:
  c10::DebugInfoGuard observer_;
  c10::impl::IncludeDispatchKeyGuard key_;
};

/// While it exists, what this thread does belongs to one call on the tensor.
class ObservedCall {
 public:
  /// `constants` makes the operands that are no tensors.
  template <class Constants>
  ObservedCall(const char* name, const at::Tensor& tensor, const Constants& constants)
      : observer_(StepObserver::active()) {
    if (observer_ != nullptr) [[unlikely]]
      observer_->begin_call(name, constants(), tensor);
  }
  ~ObservedCall() {
    if (observer_ != nullptr) [[unlikely]]
      observer_->end_call();
  }
  ObservedCall(const ObservedCall&) = delete;
  ObservedCall& operator=(const ObservedCall&) = delete;

 private:
  StepObserver* observer_;
};

/// For what the library does in a way that could not be repeated: an observer is refused with these words.
void refuse_to_record(CaptureRefusal reason, std::string_view context, std::string_view explanation,
                      std::initializer_list<std::string_view> hints);

}  // namespace cohort
