// SPDX-License-Identifier: BSD-3-Clause
//
// What DistributedDataParallel does around the module's forward, and for ranks that have no input left.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/error.h>
#include <cohort/torch/ddp.h>

#include <map>
#include <string>
#include <utility>

#include "torch/ddp/arguments.h"
#include "torch/ddp/replicas.h"
#include "torch/ddp/sink.h"
#include "torch/ddp/wrapper_impl.h"
#include "torch/dispatch/step_observer.h"
#include "torch/host_numbers.h"

namespace cohort::ddp {

// --- buffers

std::vector<at::Tensor> Wrapper::Impl::buffers() const {
  std::vector<at::Tensor> all;
  for (const auto& [name, tensor] : select_buffers(*module, ignored_names(options))) all.push_back(tensor);
  return all;
}

void Wrapper::Impl::broadcast_buffers() const {
  const auto all = buffers();
  if (!all.empty()) broadcast_tensors(group(), all, join != nullptr ? join->source() : 0);
}

void Wrapper::Impl::run_buffer_hook() {
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [name, tensor] : select_buffers(*module, ignored_names(options))) by_name.emplace(name, tensor);
  if (by_name.empty()) return;
  const at::NoGradGuard no_grad;
  for (auto& future : buffer_hook(by_name)) reducer->add_future(std::move(future));
}

void Wrapper::Impl::sync_buffers(BufferSync when) {
  if (!syncs_buffers_in_forward() || !at::GradMode::is_enabled() || !syncs) return;
  if (buffer_hook) {
    if (when == buffer_hook_when) run_buffer_hook();
  } else if (when == BufferSync::before_forward) {
    broadcast_buffers();
  }
}

void Wrapper::sync_buffers() {
  broadcast_tensors(impl_->group(), impl_->buffers(), 0);
}

// --- forward

namespace {

void refuse_to_capture_joins() {
  refuse_to_record(CaptureRefusal::unsupported_call, "DistributedDataParallel in a join()",
                   "the host asks in each iteration which ranks still have input, and a replay would not",
                   {"Give all ranks the same number of batches (DistributedSampler); their sizes may differ.",
                    "Or call the step without capture in the join."});
}

}  // namespace

void Wrapper::before_forward() {
  auto& impl = *impl_;
  const bool has_gradients = at::GradMode::is_enabled();
  if (has_gradients) impl.logged([&] { impl.adopt_optimizers(); });
  if (impl.delayed && has_gradients) impl.delayed->set_sync(impl.syncs);
  if (impl.reducer == nullptr) return;
  impl.logged([&] {
    if (has_gradients && impl.syncs) {
      impl.logger->sample(*impl.reducer);
      impl.reducer->prepare_for_forward();
    }
    if (has_gradients) {
      if (impl.join != nullptr) {
        refuse_to_capture_joins();
        impl.join->iteration_begins(impl.syncs);
      }
      impl.reducer->rebuild_buckets();
    }
    impl.sync_buffers(BufferSync::before_forward);
  });
}

Wrapper::ForwardScope::ForwardScope(const Wrapper& wrapper) : wrapper_(wrapper) {
  const auto& impl = *wrapper.impl_;
  if (impl.local_parameters) impl.local_parameters->distribute();
  if (impl.low_precision && impl.reducer) impl.low_precision->begin_forward();
}

Wrapper::ForwardScope::~ForwardScope() {
  const auto& impl = *wrapper_.impl_;
  if (impl.low_precision && impl.reducer) impl.low_precision->end_forward(at::GradMode::is_enabled());
  if (impl.local_parameters) impl.local_parameters->localize();
}

void Wrapper::after_forward(const std::vector<at::Tensor*>& outputs, bool sees_outputs) {
  auto& impl = *impl_;
  if (impl.delayed) impl.delayed->attach_gradients();
  if (impl.reducer == nullptr) return;
  impl.logged([&] {
    impl.sync_buffers(BufferSync::after_forward);
    // The backward of an earlier forward may still be to come.
    if (!at::GradMode::is_enabled()) return;
    // Backward begins at the outputs.
    const bool casts_parameters = impl.low_precision != nullptr && impl.low_precision->casts_parameters();
    if (casts_parameters && (!sees_outputs || outputs.empty())) refuse_hidden_outputs();
    if (!impl.syncs) {
      impl.reducer->skip_backward();
      if (casts_parameters) impl.low_precision->watch_backwards_of(outputs);
      return;
    }
    const bool needs_outputs = impl.options.find_unused_parameters || impl.reducer->is_learning();
    if (needs_outputs && !sees_outputs) refuse_hidden_outputs();
    std::vector<at::Tensor> searched;
    if (impl.options.find_unused_parameters) {
      for (const auto* const each : outputs) searched.push_back(*each);
    }
    const bool has_sink = needs_outputs && pass_through_sink(outputs, impl.reducer, impl.clones_outputs);
    impl.reducer->prepare_for_backward(searched, has_sink);
    watch_backwards_of(outputs, impl.reducer);
    if (casts_parameters) impl.low_precision->watch_backwards_of(outputs);
  });
}

bool Wrapper::moves_inputs() const {
  return !impl_->options.device_ids.empty() || impl_->low_precision != nullptr;
}

void Wrapper::move_input(at::Tensor& tensor) const {
  const auto& devices = impl_->options.device_ids;
  if (tensor.defined() && !devices.empty()) tensor = tensor.to(devices.front(), /*non_blocking=*/true);
  if (impl_->low_precision) impl_->low_precision->cast_input(tensor);
}

at::TensorOptions Wrapper::input_options() const {
  const auto& from = impl_->options;
  at::TensorOptions options;
  if (!from.device_ids.empty()) options = options.device(from.device_ids.front());
  if (from.mixed_precision && from.mixed_precision->param_dtype) {
    options = options.dtype(*from.mixed_precision->param_dtype);
  }
  return options;
}

// --- uneven inputs

void Wrapper::begin_join(JoinScope& scope) {
  if (impl_->options.skip_all_reduce_unused_params) {
    throw ValueError("join: a rank without input cannot know which buckets skip_all_reduce_unused_params leaves out");
  }
  if (impl_->delayed) {
    throw ValueError("join: a rank without input cannot follow the reduction of delay_all_reduce_named_params");
  }
  if (impl_->zero_step) {
    throw ValueError("join: a rank without input does not step, but register_zero_step has all ranks step together");
  }
  // The hook of mixed_precision is our own, and asks for the divisor.
  if (impl_->reducer && impl_->reducer->has_comm_hook() && !impl_->low_precision) Impl::refuse_hook_in(scope);
  impl_->join = &scope;
  impl_->logger->set("join_uneven_inputs", std::int64_t{1});
  if (impl_->reducer && !scope.options().divide_by_initial_size) {
    impl_->reducer->set_divisor([&scope] { return static_cast<double>(scope.alive()); });
  }
}

void Wrapper::Impl::refuse_hook_in(const JoinScope& scope) {
  if (scope.options().divide_by_initial_size) return;
  throw ValueError(
      "join: divide_by_initial_size = false cannot be combined with a communication hook, which divides by the number "
      "of all ranks itself");
}

void Wrapper::end_join() noexcept {
  impl_->join = nullptr;
  if (impl_->reducer) impl_->reducer->set_divisor(nullptr);
}

void Wrapper::shadow_iteration(bool syncs) {
  if (impl_->reducer == nullptr) return;
  impl_->reducer->shadow_rebuild();
  if (!syncs) return;
  if (impl_->syncs_buffers_in_forward()) {
    if (impl_->buffer_hook) {
      impl_->run_buffer_hook();
    } else {
      impl_->broadcast_buffers();
    }
  }
  impl_->reducer->shadow_backward();
}

void Wrapper::after_join(bool was_last) {
  // If several ranks ended last, the highest of them counts.
  const auto source = largest_of(impl_->group(), was_last ? impl_->group().rank() : -1);
  impl_->broadcast_state(source);
}

}  // namespace cohort::ddp
