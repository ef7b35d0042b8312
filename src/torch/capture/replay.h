// SPDX-License-Identifier: BSD-3-Clause
//
// Runs a recorded step again: each instruction calls its kernel directly, below autograd and everything that wraps
// operators. A value is let go after its last use, so that a replay needs no more memory than the step did.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "torch/capture/program.h"
#include "torch/capture/replay_clock.h"

namespace cohort::recording {

class Replayer {
 public:
  explicit Replayer(std::shared_ptr<const Program> program);

  /// `gradients` are those of the watched parameters, at the beginning. Returns the step's results, without autograd
  /// history; left_gradients() are then what the step has left as gradients. If a collective fails, throws its error,
  /// as the step would; tensors are then as far as the step had come.
  /// A clock is told the end of each instruction.
  std::vector<at::Tensor> run(std::span<const at::Tensor> arguments, std::span<const at::Tensor> gradients,
                              ReplayClock* clock = nullptr);
  /// In the order of Program::final_gradients.
  std::vector<at::Tensor> take_left_gradients();

  /// One replay in parts, for those who do something else between them. When it ends, all values of the replay are let
  /// go.
  class Use {
   public:
    Use(Replayer& replayer, std::span<const at::Tensor> arguments, std::span<const at::Tensor> gradients);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

    /// The instructions from `first` to before `last`.
    void perform(std::size_t first, std::size_t last, ReplayClock* clock = nullptr) const;
    /// By their ids, as far as they exist now.
    std::vector<at::Tensor>& values() const noexcept;
    /// At the end: what run() returns.
    std::vector<at::Tensor> leave() const;

   private:
    Replayer& replayer_;
  };

 private:
  void plan();
  void perform(const Instruction& instruction);
  void perform(const OperatorCall& call, const Instruction& instruction);
  void perform(const CollectiveCall& call, const Instruction& instruction);
  void perform(const CollectiveWait& wait, const Instruction& instruction);
  static void perform(const HostCall& call, const Instruction& instruction);
  void perform(const OpaqueCall& call, const Instruction& instruction);
  static void perform(const DistributedCall& /*call*/, const Instruction& /*instruction*/) {}
  static void perform(std::monostate /*nothing*/, const Instruction& /*instruction*/) {}
  at::Tensor left(const LeftTensor& tensor) const;

  std::shared_ptr<const Program> program_;
  std::vector<at::Tensor> values_;
  std::vector<std::vector<ValueId>> released_;  // after each instruction
  std::vector<Work> flights_;                   // of Program::flights
  std::vector<c10::IValue> stack_;
  std::vector<at::Tensor> left_gradients_;
};

/// For each watched parameter, whether the step replaces its gradient without using it. The old one then goes before a
/// replay, as it went early in the step (zero_grad): otherwise both would exist at once.
std::vector<bool> replaced_gradients(const Program& program);

}  // namespace cohort::recording
