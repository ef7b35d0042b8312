// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/torch/ddp.h>

#include "torch/ddp/core.h"
#include "torch/host_numbers.h"

namespace cohort::ddp {

NoSync::NoSync(std::shared_ptr<Core> core) : core_(std::move(core)), before_(core_->set_sync(false)) {}

NoSync::~NoSync() {
  if (core_ != nullptr) core_->set_sync(before_);
}

Wrapper::Wrapper(std::shared_ptr<::torch::nn::Module> module, DdpOptions options, std::optional<bool> sees_outputs)
    : ::torch::nn::Module("DistributedDataParallel"),
      core_(std::make_shared<Core>(std::move(module), std::move(options), sees_outputs)) {}

void Wrapper::register_comm_hook(CommHook hook) {
  core_->register_comm_hook(std::move(hook));
}
void Wrapper::register_fused_optimizer(FunctionalOptimizerPtr optimizer, std::vector<at::Tensor> parameters,
                                       bool clears_gradients) {
  core_->register_fused_optimizer(std::move(optimizer), parameters, clears_gradients);
}
void Wrapper::register_zero_step(std::shared_ptr<ZeroOptimizerBase> optimizer) {
  core_->register_zero_step(std::move(optimizer));
}
void Wrapper::register_buffer_hook(BufferHook hook, BufferSync when) {
  core_->register_buffer_hook(std::move(hook), when);
}
void Wrapper::set_static_graph() {
  core_->set_static_graph();
}
void Wrapper::sync_buffers() {
  core_->sync_buffers(0);
}
void Wrapper::check_reducer_finalized() const {
  core_->check_finalized();
}
void Wrapper::remove_autograd_hooks() {
  core_->remove_autograd_hooks();
}
void Wrapper::update_process_group(ProcessGroupPtr group) {
  core_->update_process_group(std::move(group));
}
void Wrapper::set_sparse_metadata(const std::map<std::string, at::Tensor>& ids) {
  core_->set_sparse_metadata(ids);
}
void Wrapper::set_sink_clone(bool clones) {
  core_->set_sink_clone(clones);
}
const ProcessGroupPtr& Wrapper::process_group() const {
  return core_->group();
}
DdpLoggingData Wrapper::logging_data() const {
  return core_->logging_data();
}
void Wrapper::record_timeline() {
  core_->record_timeline();
}
std::string Wrapper::timeline_json() const {
  return core_->timeline_json();
}
void Wrapper::set_logging_sample_rate(int rate) {
  core_->logger().set_sample_rate(rate);
}
std::vector<std::pair<std::string, at::Tensor>> Wrapper::managed_parameters() const {
  std::vector<std::pair<std::string, at::Tensor>> all;
  const auto& selection = core_->selection();
  for (std::size_t i = 0; i < selection.names.size(); ++i) {
    all.emplace_back(selection.names[i], selection.parameters[i]);
  }
  return all;
}

void Wrapper::begin_join(JoinScope& scope) {
  core_->check_joinable();
  Core::JoinCalls calls{.before_forward = [&scope](bool syncs) { scope.iteration_begins(syncs); },
                        .buffer_source = [&scope] { return scope.source(); }};
  if (!scope.options().divide_by_initial_world_size) {
    calls.divisor = [&scope] { return static_cast<double>(scope.alive()); };
  }
  core_->set_join(std::move(calls));
}
void Wrapper::end_join() noexcept {
  core_->set_join(std::nullopt);
}
void Wrapper::shadow_iteration(bool syncs) {
  core_->shadow_iteration(syncs);
}
void Wrapper::after_join(bool was_last) {
  // Of several that ended last the highest rank's.
  core_->broadcast_state(largest_of(*process_group(), was_last ? process_group()->rank() : -1));
}

void Wrapper::before_forward() {
  core_->before_forward();
}
bool Wrapper::moves_inputs() const {
  return core_->moves_inputs();
}
void Wrapper::move_input(at::Tensor& tensor) const {
  core_->move_input(tensor);
}
at::TensorOptions Wrapper::input_options() const {
  return core_->input_options();
}
void Wrapper::after_forward(const std::vector<at::Tensor*>& outputs, bool sees_outputs) {
  core_->after_forward(outputs, sees_outputs);
}

}  // namespace cohort::ddp
