// SPDX-License-Identifier: BSD-3-Clause
//
// What the host does in a training step that is captured (capture.h). A replay does not run the step's code again, so a
// number that code computed while the step was recorded would stay what it was. Code that changes numbers from step to
// step says so:
//
//   std::int64_t steps = 0;
//   double rate = 0.1;
//   auto captured = cohort::capture([&](torch::Tensor gradient) {
//     cohort::on_host([&] { ++steps; });                            // now, and in every replay, at this place
//     const cohort::HostArgument alpha("alpha", [&] { return -rate; });
//     parameter.add_(gradient, alpha.value());                      // in every replay with the value of that time
//   });
//
// cohort::optim (optim.h) is written so. Outside of a recording both cost no more than the call of the function.
//
// On a GPU the host runs ahead of the operators: a replay does all that the host does first, in this order, and then
// launches what the GPU does.
#pragma once

#include <c10/core/Scalar.h>
#include <cohort/export.h>

#include <functional>
#include <string>
#include <string_view>

namespace cohort {

/// Whether this thread records a step now.
COHORT_API bool is_capturing() noexcept;

/// Runs the function; if a step is being recorded, each replay runs it as well, in the same order among the operators.
/// The function must not compute with tensors, and what it refers to must live as long as the captured step.
COHORT_API void on_host(const std::function<void()>& function);

/// While it exists, the argument of this name of every operator that this thread calls gets its value from the
/// function: now, and anew in each replay. The operator is called with value(), or the recording is refused. Scopes
/// nest, so that an operator can have several such arguments. x * factor.value() is one as well, whose argument is
/// "other". Where autograd records the operator, the recording is refused: backward would have the number of the
/// recording.
class COHORT_API HostArgument {
 public:
  /// `name` is the argument's in the operator's schema: "alpha", "value", "other", ...
  HostArgument(std::string name, std::function<c10::Scalar()> function);
  ~HostArgument();
  HostArgument(const HostArgument&) = delete;
  HostArgument& operator=(const HostArgument&) = delete;

  const c10::Scalar& value() const noexcept { return value_; }
  const std::string& name() const noexcept { return name_; }
  const std::function<c10::Scalar()>& function() const noexcept { return function_; }
  const HostArgument* outer() const noexcept { return outer_; }
  /// The innermost scope of this thread; null if there is none.
  static const HostArgument* innermost() noexcept;
  /// Whether there is a scope for this name.
  static bool is_given(std::string_view name) noexcept;

 private:
  std::string name_;
  std::function<c10::Scalar()> function_;
  c10::Scalar value_;
  const HostArgument* outer_;
};

}  // namespace cohort
