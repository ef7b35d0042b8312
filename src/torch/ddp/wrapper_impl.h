// SPDX-License-Identifier: BSD-3-Clause
//
// The state of a DistributedDataParallel. Wrapper's functions work on it, in wrapper.cpp (construction, settings) and
// in wrapper_forward.cpp (around the module's forward).
#pragma once

#include <cohort/torch/ddp.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "torch/ddp/delayed_reduction.h"
#include "torch/ddp/local_parameters.h"
#include "torch/ddp/logger.h"
#include "torch/ddp/mixed_precision.h"
#include "torch/ddp/reducer.h"
#include "torch/ddp/selection.h"

namespace cohort::ddp {

struct Wrapper::Impl {
  Impl(std::shared_ptr<::torch::nn::Module> its_module, DdpOptions its_options, std::optional<bool> its_sees_outputs);

  ProcessGroup& group() const { return *options.process_group; }
  /// The module's buffers as they are now, without the ignored ones.
  std::vector<at::Tensor> buffers() const;
  /// Whether forwards synchronise buffers, and not construction alone.
  bool syncs_buffers_in_forward() const { return options.forward_sync_buffers.value_or(options.broadcast_buffers); }
  void sync_buffers(BufferSync when);
  void broadcast_buffers() const;
  /// Gives all ranks the source's parameters and buffers.
  void broadcast_state(int source) const;
  /// If the join has a communication hook divide by something that it does not know: a ValueError.
  static void refuse_hook_in(const JoinScope& scope);
  /// Before each forward: steps what an OptimizerInBackward steps by now. An Error if that is not possible.
  void adopt_optimizers();
  /// Whether the reducer steps what an OptimizerInBackward steps.
  void step_as_reduced(bool steps);
  /// Runs `run`; an error is recorded in the logging data before it goes on.
  template <class Run>
  void logged(Run&& run) {
    try {
      run();
    } catch (const std::exception& e) {
      logger->set_error(e.what(), reducer ? reducer->iterations() : 0);
      throw;
    }
  }

  const std::shared_ptr<::torch::nn::Module> module;
  DdpOptions options;
  const std::optional<bool> sees_outputs;
  const std::unique_ptr<LocalParameters> local_parameters;  ///< null if no parameter is distributed
  Selection selection;
  const std::shared_ptr<Logger> logger = std::make_shared<Logger>();
  std::unique_ptr<DelayedReduction> delayed;    ///< null without delayed parameters
  std::shared_ptr<LowPrecision> low_precision;  ///< null without mixed_precision
  std::shared_ptr<Reducer> reducer;             ///< null if all parameters are delayed
  bool syncs = true;
  bool clones_outputs = true;
  std::shared_ptr<ZeroOptimizerBase> zero_step;  ///< null without register_zero_step
  std::uint64_t adopted_changes = 0;             ///< in_backward::changes() when the steps were set
  bool steps_in_backward = false;                ///< some parameter has an OptimizerInBackward
  BufferHook buffer_hook;
  BufferSync buffer_hook_when = BufferSync::after_forward;
  std::size_t buffer_hooks = 0;  ///< that were registered so far
  JoinScope* join = nullptr;     ///< while inputs may be uneven
  void run_buffer_hook();

 private:
  void make_reducer();
};

/// For other parts of the library.
struct WrapperAccess {
  static const Wrapper::Impl& impl(const Wrapper& wrapper) { return *wrapper.impl_; }
};

}  // namespace cohort::ddp
