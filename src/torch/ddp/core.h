// SPDX-License-Identifier: BSD-3-Clause
//
// What a DistributedDataParallel does around the module's forward; everything but the module's type.
#pragma once

#include <cohort/torch/ddp.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "torch/ddp/delayed.h"
#include "torch/ddp/logger.h"
#include "torch/ddp/mixed_precision.h"
#include "torch/ddp/reducer.h"
#include "torch/ddp/selection.h"

namespace cohort::ddp {

class Core : public std::enable_shared_from_this<Core> {
 public:
  Core(std::shared_ptr<::torch::nn::Module> module, DdpOptions options, std::optional<bool> sees_outputs);
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  void before_forward();
  void after_forward(const std::vector<at::Tensor*>& outputs, bool sees_outputs);
  bool moves_inputs() const { return !options_.device_ids.empty() || low_precision_ != nullptr; }
  void move_input(at::Tensor& tensor) const;
  at::TensorOptions input_options() const;

  void register_comm_hook(CommHook hook);
  void register_fused_optimizer(FunctionalOptimizerPtr optimizer, const std::vector<at::Tensor>& parameters,
                                bool clears_gradients);
  void register_zero_step(std::shared_ptr<ZeroOptimizerBase> optimizer);
  void register_buffer_hook(BufferHook hook, BufferSync when);
  void set_static_graph();
  void sync_buffers(int source);
  void check_finalized();
  void remove_autograd_hooks();
  void update_process_group(ProcessGroupPtr group);
  void set_sparse_metadata(const std::map<std::string, at::Tensor>& ids);
  void set_sink_clone(bool clones) { clones_in_sink_ = clones; }
  bool set_sync(bool syncs) { return std::exchange(syncs_, syncs); }
  bool syncs() const { return syncs_; }

  const ProcessGroupPtr& group() const { return options_.process_group; }
  DdpLoggingData logging_data() const;
  Logger& logger() { return *logger_; }
  void record_timeline();
  std::string timeline_json() const;
  const Selection& selection() const { return selection_; }
  const std::shared_ptr<Reducer>& reducer() const { return reducer_; }

  /// Uneven inputs: called while ranks may run out of input (join.h).
  struct JoinCalls {
    std::function<void(bool syncs)> before_forward{};  ///< tells the others that this rank is still there
    std::function<double()> divisor{};                 ///< null: the number of ranks
    std::function<int()> buffer_source{};
  };
  void set_join(std::optional<JoinCalls> calls);
  /// A ValueError where ranks without input could not follow.
  void check_joinable() const;
  bool will_sync_buffers() const;
  /// For ranks that have ended: what the others' forward and backward do together.
  void shadow_iteration(bool syncs);
  /// Parameters and buffers of one rank for all.
  void broadcast_state(int source);

 private:
  void check_arguments();
  void check_delayed() const;
  /// For whoever steps when a bucket is there: once, and nothing else beside it.
  void claim_steps();
  void make_reducer();
  std::vector<at::Tensor> buffers() const;
  /// Whether forwards do, beside construction.
  bool sends_buffers() const;
  void run_buffer_hook();
  void sink(const std::vector<at::Tensor*>& outputs);
  /// Records an error of the reducer's before it goes on.
  template <class Run>
  void logged(Run&& run);

  const std::shared_ptr<::torch::nn::Module> module_;
  DdpOptions options_;
  std::optional<bool> sees_outputs_;
  Selection selection_;
  std::shared_ptr<Reducer> reducer_;  ///< null where all parameters are delayed
  std::unique_ptr<Delayed> delayed_;
  std::shared_ptr<LowPrecision> low_precision_;  ///< where it was asked for
  const std::shared_ptr<Logger> logger_ = std::make_shared<Logger>();
  bool syncs_ = true;
  bool clones_in_sink_ = true;
  bool has_fused_optimizer_ = false;
  bool has_zero_step_ = false;
  bool is_beside_ = false;  ///< this forward runs between another and its backward
  BufferHook buffer_hook_;
  BufferSync buffer_hook_when_ = BufferSync::after_forward;
  std::optional<JoinCalls> join_;
};

}  // namespace cohort::ddp
