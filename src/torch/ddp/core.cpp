// SPDX-License-Identifier: BSD-3-Clause
#include "torch/ddp/core.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/current_group.h>
#include <cohort/debug_level.h>
#include <cohort/env.h>
#include <cohort/error.h>
#include <cohort/log.h>
#include <cohort/torch/zero_optimizer.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_set>

#include "torch/ddp/replicas.h"
#include "torch/ddp/sink.h"

namespace cohort::ddp {

namespace {

constexpr double default_cap_mb = 25;
constexpr std::size_t default_first_cap = std::size_t{1} << 20U;

std::size_t bytes_of_mb(double mb) {
  return static_cast<std::size_t>(std::trunc(mb * 1048576.0));
}

std::set<std::string> ignored_names(const DdpOptions& options) {
  std::set<std::string> names(options.ignored.begin(), options.ignored.end());
  for (const auto& [name, tensor] : options.delay_all_reduce_named_params) names.insert(name);
  return names;
}

std::string joined_types(const std::vector<at::Tensor>& tensors) {
  std::vector<std::string> types;
  for (const auto& each : tensors) {
    std::string type = c10::toString(each.scalar_type());
    if (std::find(types.begin(), types.end(), type) == types.end()) types.push_back(std::move(type));
  }
  return fmt::format("{}", fmt::join(types, ", "));
}

}  // namespace

// --- construction

Core::Core(std::shared_ptr<::torch::nn::Module> module, DdpOptions options, std::optional<bool> sees_outputs)
    : module_(std::move(module)), options_(std::move(options)), sees_outputs_(sees_outputs) {
  check_arguments();
  if (!options_.delay_all_reduce_named_params.empty()) {
    std::vector<at::Tensor> parameters;
    for (const auto& [name, tensor] : options_.delay_all_reduce_named_params) parameters.push_back(tensor);
    delayed_ = std::make_unique<Delayed>(group(), std::move(parameters), options_.delay_until);
  }
  if (options_.init_sync) {
    check_replicas(*group(), selection_.parameters, selection_.names);
    broadcast_state(0);
  }
  if (!selection_.parameters.empty()) make_reducer();
  if (options_.mixed_precision) {
    auto parameters = selection_.parameters;
    parameters.insert(parameters.end(), selection_.frozen.begin(), selection_.frozen.end());
    low_precision_ = std::make_shared<LowPrecision>(*options_.mixed_precision, std::move(parameters));
    low_precision_->cast_buffers(buffers());
    if (reducer_) {
      reducer_->set_comm_hook(low_precision_->reduction(reducer_));
      // The end of any backward, one that does not synchronise included.
      reducer_->set_at_the_end([weak = std::weak_ptr(low_precision_)] {
        if (const auto low = weak.lock()) low->swap_out();
      });
    }
  }
}

/// In the order of the specification, so that the first thing that is wrong is what is told.
void Core::check_arguments() {
  if (module_ == nullptr) throw ValueError("DistributedDataParallel of no module");
  const bool has_delayed = !options_.delay_all_reduce_named_params.empty();
  if (has_delayed != options_.delay_until.defined()) {
    throw ValueError("delay_all_reduce_named_params and delay_until are given together or not at all");
  }
  if (has_delayed) check_delayed();
  if (options_.process_group == nullptr) options_.process_group = current_process_group();
  if (options_.process_group == nullptr) {
    throw ValueError(
        "DistributedDataParallel has no process group: pass one as .process_group, or set one for this thread with "
        "cohort::ProcessGroupGuard");
  }
  selection_ = select(*module_, ignored_names(options_));
  if (selection_.parameters.empty()) {
    if (!has_delayed) {
      throw Error("DistributedDataParallel is not needed: no parameter of the module requires a gradient");
    }
    log(LogLevel::info, "all parameters are reduced together after delay_until: there are no buckets");
  }
  if (options_.device_ids.size() > 1) {
    throw ValueError(
        fmt::format("device_ids names {} devices: none, or the one that the module is on", options_.device_ids.size()));
  }
  std::set<at::DeviceType> types;
  std::set<std::pair<at::DeviceType, at::DeviceIndex>> devices;
  for (const auto& each : selection_.parameters) {
    types.insert(each.device().type());
    devices.emplace(each.device().type(), each.device().index());
  }
  if (types.size() > 1) throw ValueError("the module's parameters are on devices of several types: one is allowed");
  const bool is_on_host = types.contains(at::kCPU);
  if ((!options_.device_ids.empty() || options_.output_device) && (is_on_host || devices.size() > 1)) {
    throw ValueError(fmt::format("device_ids and output_device are for modules on one accelerator; this one is on {}",
                                 is_on_host ? "the host" : "several"));
  }
  for (std::size_t i = 0; i < selection_.parameters.size(); ++i) {
    if (!selection_.parameters[i].is_meta()) continue;
    throw Error(
        fmt::format("parameter {} is on device meta and has no values yet: give it some (to_empty, or a module "
                    "made on the device it is for) before wrapping it",
                    selection_.names[i]));
  }
  if (!options_.device_ids.empty() && !options_.output_device) options_.output_device = options_.device_ids.front();
  if ((options_.find_unused_parameters || options_.static_graph) && sees_outputs_ == false) {
    throw ValueError(
        "forward's result is of a type whose tensors are not found, which find_unused_parameters and static_graph "
        "need: "
        "return tensors, tuples, vectors, maps or optionals of them, or give the type a visit_tensors (outputs.h)");
  }
  const auto has_bad_cap = [](double cap) { return !(cap > 0); };
  if ((options_.bucket_cap_mb && has_bad_cap(*options_.bucket_cap_mb)) ||
      std::any_of(options_.bucket_caps_mb.begin(), options_.bucket_caps_mb.end(), has_bad_cap)) {
    throw ValueError("a bucket holds more than 0 MiB");
  }
  if (options_.bucket_cap_mb && !options_.bucket_caps_mb.empty()) {
    throw ValueError("bucket_cap_mb and bucket_caps_mb: one of them");
  }
}

void Core::check_delayed() const {
  const auto& [first_name, first] = options_.delay_all_reduce_named_params.front();
  for (const auto& [name, tensor] : options_.delay_all_reduce_named_params) {
    if (!tensor.defined() || tensor.scalar_type() != first.scalar_type() || tensor.device() != first.device()) {
      throw ValueError(
          fmt::format("delay_all_reduce_named_params: {} and {} are not of one type on one device", first_name, name));
    }
  }
  if (!options_.delay_until.requires_grad() || !options_.delay_until.is_leaf()) {
    throw ValueError("delay_until is no parameter that gets a gradient");
  }
}

void Core::make_reducer() {
  const auto cap = bytes_of_mb(options_.bucket_cap_mb.value_or(default_cap_mb));
  const auto first_cap = options_.bucket_cap_mb ? cap : default_first_cap;
  std::vector<std::size_t> caps;
  for (const auto each : options_.bucket_caps_mb) caps.push_back(bytes_of_mb(each));
  std::vector<std::size_t> initial{unlimited};
  if (options_.find_unused_parameters && !options_.static_graph) {
    initial = !caps.empty()            ? caps
              : options_.bucket_cap_mb ? std::vector<std::size_t>{cap}
                                       : std::vector<std::size_t>{first_cap, cap};
  }
  if (options_.static_graph && options_.find_unused_parameters) {
    log(LogLevel::warn, "find_unused_parameters adds nothing to static_graph, which finds them in the first iteration");
    options_.find_unused_parameters = false;
  }
  reducer_ =
      Reducer::make({.group = group(),
                     .parameters = selection_.parameters,
                     .names = selection_.names,
                     .expects_sparse = selection_.expects_sparse,
                     .bucket_cap = cap,
                     .first_cap = first_cap,
                     .bucket_caps = caps,
                     .initial_limits = initial,
                     .small_bucket_is_last = Env::read_one("DDP_SET_LAST_BUCKET_CAP") == "1",
                     .find_unused_parameters = options_.find_unused_parameters,
                     .gradient_as_bucket_view = options_.gradient_as_bucket_view,
                     .batches_copies = options_.batched_grad_copy.value_or(selection_.parameters.front().is_cuda()),
                     .static_graph = options_.static_graph,
                     .skip_all_reduce_unused = options_.skip_all_reduce_unused_params,
                     .may_use_group_memory = Env::read_one("DDP_DISABLE_COMM_MEM") != "1"});

  reducer_->set_on_error([logger = logger_, weak = std::weak_ptr(reducer_)](const char* what) {
    const auto reducer = weak.lock();
    logger->set_error(what, reducer ? reducer->iterations() : 0);
  });

  std::size_t bytes = 0;
  std::set<at::DeviceIndex> devices;
  for (const auto& each : selection_.parameters) {
    bytes += each.nbytes();
    devices.insert(each.device().index());
  }
  auto& log_to = *logger_;
  log_to.set("module_name", module_->name());
  log_to.set("device_ids", options_.device_ids.empty() ? "" : fmt::format("{}", options_.device_ids.front().str()));
  log_to.set("bucket_sizes", fmt::format("{}", fmt::join(reducer_->bucket_sizes(), ", ")));
  log_to.set("dtypes", joined_types(selection_.parameters));
  log_to.set("backend_name", group()->name());
  log_to.set("comm_hook", std::string());
  log_to.set("error", std::string());
  log_to.read_environment(group()->name());
  const auto number = [&](const char* name, auto value) { log_to.set(name, static_cast<std::int64_t>(value)); };
  number("world_size", group()->size());
  number("rank", group()->rank());
  number("iteration", 0);
  number("output_device", options_.output_device ? options_.output_device->index() : -1);
  number("broadcast_buffers", options_.broadcast_buffers);
  number("bucket_cap_bytes", cap);
  number("find_unused_parameters", options_.find_unused_parameters);
  number("gradient_as_bucket_view", options_.gradient_as_bucket_view);
  number("static_graph", options_.static_graph);
  number("has_sync_bn", selection_.has_sync_batch_norm);
  number("is_multi_device_module", devices.size() > 1);
  number("num_parameter_tensors", selection_.parameters.size());
  number("total_parameter_size_bytes", bytes);
  number("join_uneven_inputs", 0);
  number("has_error", 0);
}

// --- forward

template <class Run>
void Core::logged(Run&& run) {
  try {
    run();
  } catch (const std::exception& e) {
    logger_->set_error(e.what(), reducer_ ? reducer_->iterations() : 0);
    throw;
  }
}

std::vector<at::Tensor> Core::buffers() const {
  std::vector<at::Tensor> all;
  for (const auto& [name, tensor] : select_buffers(*module_, ignored_names(options_))) all.push_back(tensor);
  return all;
}

bool Core::sends_buffers() const {
  return options_.forward_sync_buffers.value_or(options_.broadcast_buffers);
}

bool Core::will_sync_buffers() const {
  return sends_buffers() && at::GradMode::is_enabled() && syncs_;
}

void Core::sync_buffers(int source) {
  broadcast_tensors(*group(), buffers(), source);
}

void Core::run_buffer_hook() {
  std::map<std::string, at::Tensor> by_name;
  for (auto& [name, tensor] : select_buffers(*module_, ignored_names(options_))) by_name.emplace(name, tensor);
  if (by_name.empty()) return;
  const at::NoGradGuard no_grad;
  for (auto& future : buffer_hook_(by_name)) {
    if (reducer_) {
      reducer_->install_future(std::move(future));
    } else {
      future.value();
    }
  }
}

void Core::before_forward() {
  const bool has_gradients = at::GradMode::is_enabled();
  if (delayed_ && has_gradients) delayed_->set_sync(syncs_);
  if (reducer_ == nullptr) return;
  // The backward of an earlier forward is still to come: its graph is of the parameters as they are.
  is_beside_ = !has_gradients && low_precision_ && low_precision_->is_swapped_in();
  // The masters, where the last forward had no backward: buckets are made after them.
  if (low_precision_ && has_gradients) low_precision_->swap_out();
  logged([&] {
    if (has_gradients && syncs_) {
      logger_->sample(*reducer_);
      reducer_->prepare_for_forward();
    }
    if (join_ && has_gradients) join_->before_forward(syncs_);
    if (has_gradients) reducer_->rebuild_buckets();
    if (will_sync_buffers()) {
      if (!buffer_hook_) {
        const auto all = buffers();
        if (!all.empty()) broadcast_tensors(*group(), all, join_ ? join_->buffer_source() : 0);
      } else if (buffer_hook_when_ == BufferSync::before_forward) {
        run_buffer_hook();
      }
    }
  });
  if (low_precision_) low_precision_->swap_in();
}

void Core::after_forward(const std::vector<at::Tensor*>& outputs, bool sees_outputs) {
  if (delayed_) delayed_->attach_gradients();
  if (reducer_ == nullptr) return;
  logged([&] {
    const bool has_gradients = at::GradMode::is_enabled();
    if (buffer_hook_ && buffer_hook_when_ == BufferSync::after_forward && will_sync_buffers()) run_buffer_hook();
    if (!has_gradients) {
      // Nothing else: there may be an earlier forward whose backward is still to come.
      if (low_precision_ && !is_beside_) low_precision_->swap_out();
      return;
    }
    if (!syncs_) {
      reducer_->expect_nothing();
      return;
    }
    const bool needs_outputs = options_.find_unused_parameters || reducer_->is_learning();
    if (needs_outputs && !sees_outputs) {
      throw ValueError(
          "forward gave back something whose tensors are not found, which find_unused_parameters and static_graph "
          "need: "
          "return tensors, tuples, vectors, maps or optionals of them, or give the type a visit_tensors (outputs.h)");
    }
    std::vector<at::Tensor> tensors;
    if (options_.find_unused_parameters) {
      for (const auto* const each : outputs) tensors.push_back(*each);
    }
    reducer_->prepare_for_backward(tensors);
    if (needs_outputs) reducer_->set_has_sink(pass_through_sink(outputs, reducer_, clones_in_sink_));
  });
}

void Core::move_input(at::Tensor& tensor) const {
  if (tensor.defined() && !options_.device_ids.empty()) tensor = tensor.to(options_.device_ids.front(), true);
  if (low_precision_) low_precision_->cast_input(tensor);
}

at::TensorOptions Core::input_options() const {
  at::TensorOptions options;
  if (!options_.device_ids.empty()) options = options.device(options_.device_ids.front());
  if (options_.mixed_precision && options_.mixed_precision->param_dtype) {
    options = options.dtype(*options_.mixed_precision->param_dtype);
  }
  return options;
}

// --- what users set

void Core::register_comm_hook(CommHook hook) {
  if (!hook) throw TypeError("register_comm_hook: no hook");
  if (reducer_ == nullptr) throw Error("a communication hook needs buckets, and all parameters are delayed");
  if (low_precision_) throw Error("mixed_precision has a communication hook of its own: there is one for each model");
  if (has_fused_optimizer_)
    throw Error("a fused optimizer steps what is averaged: no other communication hook beside it");
  auto name = hook_name(hook);
  logged([&] { reducer_->set_comm_hook(std::move(hook)); });
  logger_->set("comm_hook", std::move(name));
}

void Core::register_fused_optimizer(FunctionalOptimizerPtr optimizer, const std::vector<at::Tensor>& parameters,
                                    bool clears_gradients) {
  if (optimizer == nullptr) throw ValueError("register_fused_optimizer: no optimizer");
  std::unordered_set<const void*> chosen;
  for (const auto& each : parameters) {
    const auto is_it = [&](const at::Tensor& managed) { return managed.is_same(each); };
    if (std::none_of(selection_.parameters.begin(), selection_.parameters.end(), is_it)) {
      throw ValueError("register_fused_optimizer: a parameter that this model does not reduce");
    }
    chosen.insert(each.unsafeGetTensorImpl());
  }
  claim_steps();
  logger_->set("comm_hook", fmt::format("fused {}", optimizer->name()));
  reducer_->set_after_bucket([optimizer, chosen, clears_gradients, all = selection_.parameters](const Bucket& bucket) {
    for (const auto index : bucket.parameters) {
      const auto& parameter = all[index];
      auto& gradient = parameter.mutable_grad();
      if (!gradient.defined() || (!chosen.empty() && !chosen.contains(parameter.unsafeGetTensorImpl()))) continue;
      optimizer->step(parameter, gradient);
      if (clears_gradients) gradient = at::Tensor();
    }
  });
}

void Core::claim_steps() {
  if (reducer_ == nullptr) throw Error("a fused optimizer needs buckets, and all parameters are delayed");
  if (reducer_->has_comm_hook()) throw Error("this model has a communication hook: no fused optimizer beside it");
  if (std::exchange(has_fused_optimizer_, true)) throw Error("this model has a fused optimizer already");
}

void Core::register_zero_step(std::shared_ptr<ZeroOptimizerBase> optimizer) {
  if (optimizer == nullptr) throw ValueError("register_zero_step: no optimizer");
  for (const auto& each : selection_.parameters) optimizer->owner_of(each);  // a ValueError for one it does not know
  claim_steps();
  has_zero_step_ = true;
  logger_->set("comm_hook", std::string("ZeRO step"));
  reducer_->set_after_bucket([optimizer = std::move(optimizer), all = selection_.parameters](const Bucket& bucket) {
    std::vector<at::Tensor> parameters;
    for (const auto index : bucket.parameters) parameters.push_back(all[index]);
    optimizer->step_parameters(parameters);
    optimizer->share_parameters(parameters);
  });
}

void Core::register_buffer_hook(BufferHook hook, BufferSync when) {
  if (!hook) throw TypeError("register_buffer_hook: no hook");
  buffer_hook_ = std::move(hook);
  buffer_hook_when_ = when;
}

void Core::set_sparse_metadata(const std::map<std::string, at::Tensor>& ids) {
  if (join_) throw ValueError("set_sparse_metadata: in a join ranks without input do not know the rows");
  std::map<std::size_t, at::Tensor> by_index;
  for (const auto& [name, rows] : ids) {
    const auto found = std::find(selection_.names.begin(), selection_.names.end(), name);
    const auto index = static_cast<std::size_t>(found - selection_.names.begin());
    if (found == selection_.names.end() || !selection_.expects_sparse[index]) {
      throw Error(fmt::format("set_sparse_metadata: {} is no parameter with sparse gradients", name));
    }
    if (rows.dim() != 1 || rows.scalar_type() != at::kLong) {
      throw Error(fmt::format("set_sparse_metadata: the ids of {} are not one row of 64-bit integers", name));
    }
    by_index.emplace(index, rows);
  }
  if (reducer_) reducer_->set_sparse_ids(std::move(by_index));
}

void Core::set_static_graph() {
  if (reducer_ == nullptr) return;
  if (options_.static_graph) {
    log(LogLevel::warn, "static_graph was set before");
    return;
  }
  if (options_.find_unused_parameters) {
    log(LogLevel::warn, "find_unused_parameters adds nothing to static_graph, which finds them in the first iteration");
  }
  if (sees_outputs_ == false) {
    throw ValueError("static_graph needs to find the tensors in forward's result: see outputs.h");
  }
  logged([&] { reducer_->set_static_graph(); });
  options_.static_graph = true;
  logger_->set("static_graph", std::int64_t{1});
}

void Core::check_finalized() {
  if (reducer_) logged([&] { reducer_->check_finalized(); });
}

void Core::remove_autograd_hooks() {
  if (reducer_) reducer_->detach();
}

void Core::update_process_group(ProcessGroupPtr to) {
  if (low_precision_) low_precision_->swap_out();  // buckets are of the masters' type
  if (to != nullptr) {
    options_.process_group = to;
    logger_->set("world_size", std::int64_t{to->size()});
    logger_->set("rank", std::int64_t{to->rank()});
  }
  if (delayed_ && to != nullptr) delayed_->set_group(to);
  if (reducer_) reducer_->reset(std::move(to));
}

DdpLoggingData Core::logging_data() const {
  return logger_->data(reducer_.get());
}

void Core::record_timeline() {
  if (reducer_) reducer_->record_timeline();
}

std::string Core::timeline_json() const {
  return reducer_ ? reducer_->timeline_json() : "{}";
}

// --- uneven inputs

void Core::check_joinable() const {
  if (options_.skip_all_reduce_unused_params) {
    throw ValueError("join: a rank without input cannot know which buckets skip_all_reduce_unused_params leaves out");
  }
  if (delayed_) {
    throw ValueError("join: parameters of delay_all_reduce_named_params are not followed by ranks without input");
  }
  if (has_zero_step_) {
    throw ValueError("join: a rank without input does not step, and register_zero_step has all ranks step together");
  }
}

void Core::set_join(std::optional<JoinCalls> calls) {
  join_ = std::move(calls);
  if (join_) logger_->set("join_uneven_inputs", std::int64_t{1});
  if (reducer_) reducer_->set_divisor(join_ ? join_->divisor : nullptr);
}

void Core::shadow_iteration(bool syncs) {
  if (reducer_ == nullptr) return;
  reducer_->shadow_rebuild();
  if (!syncs) return;
  if (sends_buffers() && !buffer_hook_) {
    const auto all = buffers();
    if (!all.empty()) broadcast_tensors(*group(), all, join_->buffer_source());
  }
  reducer_->shadow_backward();
}

void Core::broadcast_state(int source) {
  std::vector<at::Tensor> all = selection_.parameters;
  all.insert(all.end(), selection_.frozen.begin(), selection_.frozen.end());
  if (delayed_) {
    for (const auto& each : delayed_->parameters()) all.push_back(each);
  }
  if (options_.broadcast_buffers) {
    for (const auto& each : buffers()) all.push_back(each);
  }
  broadcast_tensors(*group(), all, source);
}

}  // namespace cohort::ddp
