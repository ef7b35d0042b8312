// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/torch/ddp.h>

#include "torch/ddp/core.h"

namespace cohort::ddp {

NoSync::NoSync(std::shared_ptr<Core> core) : core_(std::move(core)), before_(core_->set_sync(false)) {}

NoSync::~NoSync() {
  if (core_ != nullptr) core_->set_sync(before_);
}

Wrapper::Wrapper(std::shared_ptr<::torch::nn::Module> module, DdpOptions options, std::optional<bool> sees_outputs)
    : ::torch::nn::Module("DistributedDataParallel"),
      core_(std::make_shared<Core>(std::move(module), std::move(options), sees_outputs)) {}

void Wrapper::register_comm_hook(CommHook hook, std::string name) {
  core_->register_comm_hook(std::move(hook), std::move(name));
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
void Wrapper::set_sink_clone(bool clones) {
  core_->set_sink_clone(clones);
}
const ProcessGroupPtr& Wrapper::process_group() const {
  return core_->group();
}
DdpLoggingData Wrapper::logging_data() const {
  return core_->logging_data();
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

void Wrapper::before_forward() {
  core_->before_forward();
}
bool Wrapper::moves_inputs() const {
  return core_->moves_inputs();
}
void Wrapper::move_input(at::Tensor& tensor) const {
  core_->move_input(tensor);
}
void Wrapper::after_forward(const std::vector<at::Tensor*>& outputs, bool sees_outputs) {
  core_->after_forward(outputs, sees_outputs);
}

}  // namespace cohort::ddp
