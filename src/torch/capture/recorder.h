// SPDX-License-Identifier: BSD-3-Clause
//
// Records what a thread computes: every operator below autograd, through the fallback of the library's dispatch key
// (torch/dispatch/fallback.h), every operation on a group, through an IssueObserver, and what the host is asked to do
// (capture_host.h). Everything runs as it would without the recorder.
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
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <cohort/issue_observer.h>
#include <cohort/torch/capture_error.h>
#include <cohort/torch/capture_host.h>
#include <cohort/torch/capture_watch.h>

#include <functional>
#include <initializer_list>
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

namespace cohort::recording {

class Recorder {
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

  /// The recorder of this thread's work, or null. For CUDA tensors backward runs on threads of the autograd engine, which
  /// carry it along.
  static Recorder* active() noexcept;

  /// Runs the operator with these keys and records it.
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  void observe(const Issue& issue);
  void observe_wait(const Work& work);
  void add_host_action(const std::function<void()>& function);
  /// Calls the function, as one instruction.
  std::vector<at::Tensor> run_opaque(OpaqueCall call, const std::vector<at::Tensor>& inputs);
  /// What is recorded until the end belongs to this call on the tensor, unless it is part of another one.
  void begin_distributed_call(DistributedCall call, const at::Tensor& tensor);
  void end_distributed_call();
  /// What runs now cannot be captured.
  void refuse(const CaptureError& why);

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
  c10::DebugInfoGuard recorder_;
  c10::impl::IncludeDispatchKeyGuard key_;
  IssueObserver observer_;
};

/// For what the library does in a way that a replay could not repeat: if this thread's work is recorded, the recording is
/// refused with these words. Costs nothing else.
void refuse_to_record(CaptureRefusal reason, std::string_view context, std::string_view explanation,
                      std::initializer_list<std::string_view> hints);

/// The plain tensor behind one that may be distributed or in flight.
at::Tensor plain_part(const at::Tensor& tensor);

}  // namespace cohort::recording
