// SPDX-License-Identifier: BSD-3-Clause
//
// Records what a thread computes: every operator below autograd and what the host is asked to do, as a StepObserver
// (torch/dispatch/step_observer.h), and every operation on a group, through an IssueObserver. Everything runs as it
// would without the recorder.
//
//   Recorder recorder(arguments, parameters);
//   {
//     const RecordingScope scope(recorder);
//     results = callable();
//   }
//   Program program = recorder.finish(results);
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <cohort/issue_observer.h>
#include <cohort/torch/capture_error.h>
#include <cohort/torch/capture_host.h>
#include <cohort/torch/capture_watch.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "torch/capture/program.h"
#include "torch/capture/tensor_table.h"
#include "torch/capture/unwatched_leaves.h"
#include "torch/dispatch/step_observer.h"

namespace cohort::recording {

class Recorder final : public StepObserver {
 public:
  enum class OnRefusal : std::uint8_t {
    throws,  ///< the CaptureError comes out of the call that cannot be captured, which then does not happen
    stops,   ///< nothing more is recorded, and refusal() says why
  };
  struct Options {
    OnRefusal on_refusal;
    bool source_lines;
  };
  /// The tensors of the call, and the parameters whose gradients belong to the step.
  Recorder(std::span<const at::Tensor> arguments, std::vector<WatchedTensor> parameters, Options options);

  /// The recorder of this thread's work, or null. Nothing else observes steps.
  static Recorder* active() noexcept { return static_cast<Recorder*>(StepObserver::active()); }

  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) override;
  void observe(const Issue& issue);
  void observe_wait(const Work& work);
  void add_host_action(const std::function<void()>& function) override;
  /// Calls the function, as one instruction.
  std::vector<at::Tensor> run_opaque(OpaqueCall call, const std::vector<at::Tensor>& inputs);
  void begin_call(const char* name, std::vector<CallConstant> constants, const at::Tensor& tensor) override;
  void end_call() override;
  void refuse(const CaptureError& why) override;

  /// Why the recording stopped.
  const std::optional<CaptureError>& refusal() const noexcept { return refusal_; }

  /// The step has returned these tensors.
  Program finish(std::span<const at::Tensor> results);

 private:
  /// Calls the function, which records something, unless the recording has stopped.
  template <class Function>
  void record(const Function& function) {
    const std::lock_guard lock(mutex_);
    if (refusal_) return;
    try {
      function();
    } catch (const CaptureError& refusal) {
      refusal_ = refusal;  // also if it is thrown: the step might catch it
      if (options_.on_refusal == OnRefusal::throws) throw;
    }
  }
  void add(Instruction instruction);
  ValueId value_of(const at::Tensor& tensor, std::string_view used_by);
  ValueId add_value(const at::Tensor& tensor, GraphValue::Origin origin, std::string name = {});
  ValueId add_constant(const at::Tensor& tensor);
  ValueId add_alias(const at::Tensor& tensor, const TensorTable::Place& base);
  Instruction describe(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const torch::jit::Stack& stack);
  void bind_host_numbers(Instruction& instruction, const torch::jit::Stack& stack);
  void name_group(Instruction& instruction, const torch::jit::Stack& stack);
  static std::vector<at::Tensor> written_tensors(const Instruction& instruction, const torch::jit::Stack& stack);
  void add_results(Instruction& instruction, const torch::jit::Stack& stack);
  Collective collective_of(const Operation& op, const Issue& issue, Instruction& instruction);
  ValueId no_memory();
  Piece piece_of(const std::byte* begin, std::size_t bytes, const Operation& op, const Issue& issue);
  void add_group(const ProcessGroupPtr& group);
  LeftTensor left_tensor(const at::Tensor& tensor);

  std::mutex mutex_;
  std::size_t regions_ = 0;
  std::size_t region_depth_ = 0;
  Program program_;
  TensorTable table_;
  std::vector<WatchedTensor> parameters_;
  UnwatchedLeaves leaves_;
  struct Flight {
    Work work;
    std::size_t instruction;
  };
  std::vector<Flight> in_flight_;
  std::optional<ValueId> no_memory_;
  Options options_;
  std::optional<CaptureError> refusal_;
};

/// While it exists, the work of this thread is recorded.
class RecordingScope {
 public:
  explicit RecordingScope(Recorder& recorder);

 private:
  ObservedScope operators_;
  IssueObserver operations_;
};

/// The plain tensor behind one that may be distributed or in flight.
at::Tensor plain_part(const at::Tensor& tensor);

}  // namespace cohort::recording
