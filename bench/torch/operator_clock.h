// SPDX-License-Identifier: BSD-3-Clause
//
// How much of a step is spent in operators on plain tensors: while it exists, an observer of libtorch's dispatcher adds
// up the time of every such operator, those that rules for distributed tensors run on the local parts among them. The
// collectives are operators as well. What is left of a step is the way to these: rules, autograd, and the observer
// itself.
#pragma once

#include <ATen/record_function.h>
#include <cohort/torch/dtensor.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>

namespace cohort::benchmarks {

struct OperatorTimes {
  double kernels = 0;      ///< in seconds
  double collectives = 0;  ///< in seconds
  std::int64_t local = 0;
  std::int64_t distributed = 0;
};

class OperatorClock {
 public:
  OperatorClock()
      : handle_(at::addGlobalCallback(
            at::RecordFunctionCallback(begin, end).needsInputs(true).scopes({at::RecordScope::FUNCTION}))) {
    state() = {};
  }
  ~OperatorClock() { at::removeCallback(handle_); }
  OperatorClock(const OperatorClock&) = delete;
  OperatorClock& operator=(const OperatorClock&) = delete;

  /// The times of the operators that this thread has called.
  OperatorTimes times() const { return state().times; }

 private:
  using Clock = std::chrono::steady_clock;

  struct State {
    OperatorTimes times;
    int depth = 0;  ///< of operators on plain tensors within one another
    bool is_collective = false;
    Clock::time_point begun;
  };
  static State& state() {
    thread_local State own;
    return own;
  }

  static bool is_distributed(const c10::IValue& value) {
    if (value.isTensor()) return is_dtensor(value.toTensor());
    if (!value.isTensorList()) return false;
    const auto list = value.toTensorVector();
    return std::any_of(list.begin(), list.end(), [](const at::Tensor& each) { return is_dtensor(each); });
  }

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    auto& own = state();
    const auto inputs = function.inputs();
    if (own.depth == 0 && std::any_of(inputs.begin(), inputs.end(), is_distributed)) {
      ++own.times.distributed;
      return nullptr;
    }
    if (own.depth++ == 0) {
      own.is_collective = std::string_view(function.name()).starts_with("cohort::");
      own.begun = Clock::now();
    }
    return nullptr;
  }

  static void end(const at::RecordFunction&, at::ObserverContext*) {
    auto& own = state();
    if (own.depth == 0 || --own.depth > 0) return;
    const auto seconds = std::chrono::duration<double>(Clock::now() - own.begun).count();
    (own.is_collective ? own.times.collectives : own.times.kernels) += seconds;
    ++own.times.local;
  }

  at::CallbackHandle handle_;
};

}  // namespace cohort::benchmarks
