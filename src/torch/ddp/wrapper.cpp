// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <cohort/env.h>
#include <cohort/error.h>
#include <cohort/log.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/zero_optimizer.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "torch/ddp/arguments.h"
#include "torch/ddp/replicas.h"
#include "torch/ddp/wrapper_impl.h"
#include "torch/optim/in_backward.h"

namespace cohort::ddp {

namespace {

constexpr double default_cap_mb = 25;
constexpr std::size_t default_first_cap = std::size_t{1} << 20U;

std::size_t bytes_of_mb(double mb) {
  return static_cast<std::size_t>(std::trunc(mb * 1048576.0));
}

bool any_stepped(const std::vector<at::Tensor>& parameters) {
  return std::any_of(parameters.begin(), parameters.end(), in_backward::is_stepped);
}

void warn_search_is_redundant() {
  log(LogLevel::warn, "find_unused_parameters adds nothing to static_graph, which finds them in the first iteration");
}

}  // namespace

// --- construction

Wrapper::Wrapper(std::shared_ptr<::torch::nn::Module> module, DdpOptions options, std::optional<bool> sees_outputs)
    : ::torch::nn::Module("DistributedDataParallel"),
      impl_(std::make_shared<Impl>(std::move(module), std::move(options), sees_outputs)) {}

Wrapper::Impl::Impl(std::shared_ptr<::torch::nn::Module> its_module, DdpOptions its_options,
                    std::optional<bool> its_sees_outputs)
    : module(std::move(its_module)),
      options(std::move(its_options)),
      sees_outputs(its_sees_outputs),
      local_parameters(module != nullptr ? LocalParameters::make(*module, options) : nullptr),
      selection(check_arguments(module.get(), options, sees_outputs)) {
  if (!options.delay_all_reduce_named_params.empty()) {
    std::vector<at::Tensor> parameters;
    for (const auto& [name, tensor] : options.delay_all_reduce_named_params) parameters.push_back(tensor);
    delayed = std::make_unique<DelayedReduction>(options.process_group, std::move(parameters), options.delay_until);
  }
  if (options.init_sync) {
    check_replicas(group(), selection.parameters.tensors, selection.parameters.names);
    broadcast_state(0);
  }
  if (options.mixed_precision) {
    low_precision = std::make_shared<LowPrecision>(*options.mixed_precision, selection.all());
  }
  if (selection.parameters.size() > 0) make_reducer();
  if (low_precision) {
    low_precision->cast_buffers(buffers());
    if (reducer) reducer->set_comm_hook(low_precision->reduction(reducer));
  }
}

void Wrapper::Impl::make_reducer() {
  if (options.static_graph && std::exchange(options.find_unused_parameters, false)) warn_search_is_redundant();
  const auto cap = bytes_of_mb(options.bucket_cap_mb.value_or(default_cap_mb));
  std::vector<std::size_t> limits;
  for (const auto each : options.bucket_caps_mb) limits.push_back(bytes_of_mb(each));
  if (limits.empty()) limits = {options.bucket_cap_mb ? cap : default_first_cap, cap};
  ReducerOptions with{
      .process_group = options.process_group,
      .parameters = selection.parameters,
      .buckets = {.initial_limits = options.find_unused_parameters ? limits : std::vector{unlimited},
                  .rebuilt_limits = limits,
                  .small_bucket_is_last = Env::read_one("DDP_SET_LAST_BUCKET_CAP") == "1",
                  .gradient_as_bucket_view = options.gradient_as_bucket_view,
                  .batches_copies = options.batched_grad_copy.value_or(selection.parameters.tensors.front().is_cuda()),
                  .may_use_group_memory = Env::read_one("DDP_DISABLE_COMM_MEM") != "1"},
      .usage = options.static_graph             ? UsageMode::static_graph
               : options.find_unused_parameters ? UsageMode::searched
                                                : UsageMode::all_used,
      .skip_all_reduce_unused = options.skip_all_reduce_unused_params,
      .on_error = [log_to = logger](const char* what, std::uint64_t iteration) { log_to->set_error(what, iteration); }};
  reducer = Reducer::make(std::move(with));
  logger->describe(module->name(), options, selection, *reducer, limits.back());
}

void Wrapper::Impl::broadcast_state(int source) const {
  auto all = selection.all();
  if (delayed) {
    for (const auto& each : delayed->parameters()) all.push_back(each);
  }
  if (options.broadcast_buffers) {
    for (const auto& each : buffers()) all.push_back(each);
  }
  broadcast_tensors(group(), all, source);
}

// --- hooks and optimizers

void Wrapper::register_comm_hook(CommHook hook) {
  if (!hook) throw TypeError("register_comm_hook: no hook");
  if (impl_->reducer == nullptr) throw Error("a communication hook needs buckets, but all parameters are delayed");
  if (impl_->low_precision) {
    throw Error("mixed_precision has a communication hook of its own, and a model can have only one");
  }
  if (impl_->zero_step != nullptr) {
    throw Error("a ZeRO step takes averaged gradients: no communication hook can be registered beside it");
  }
  if (impl_->join != nullptr) Impl::refuse_hook_in(*impl_->join);
  auto name = hook_name(hook);
  impl_->logged([&] { impl_->reducer->set_comm_hook(std::move(hook)); });
  impl_->logger->set("comm_hook", std::move(name));
}

void Wrapper::register_zero_step(std::shared_ptr<ZeroOptimizerBase> optimizer) {
  if (optimizer == nullptr) throw ValueError("register_zero_step: no optimizer");
  const auto& managed = impl_->selection.parameters.tensors;
  for (const auto& each : managed) optimizer->owner_of(each);  // a ValueError for a parameter it does not have
  if (impl_->reducer == nullptr) throw Error("a ZeRO step needs buckets, but all parameters are delayed");
  if (impl_->reducer->has_comm_hook()) {
    throw Error("this model has a communication hook: no ZeRO step can be registered beside it");
  }
  if (impl_->zero_step != nullptr) throw Error("this model has a ZeRO step already");
  optimizer->share_over_own_group();
  impl_->zero_step = optimizer;
  impl_->logger->set("comm_hook", std::string("ZeRO step"));
  impl_->reducer->set_after_bucket(
      [optimizer = std::move(optimizer), all = managed](const Bucket& bucket) {
        std::vector<at::Tensor> some;
        for (const auto index : bucket.parameters) some.push_back(all[index]);
        optimizer->step_parameters(some);
        optimizer->share_parameters(some);
      },
      Reducer::When::at_end);  // all ranks send in the same order then, over both groups
}

void Wrapper::Impl::step_as_reduced(bool steps) {
  if (!reducer->has_comm_hook()) logger->set("comm_hook", std::string(steps ? "optimizer in backward" : ""));
  if (!steps) return reducer->set_after_bucket(nullptr, Reducer::When::at_end);
  reducer->set_after_bucket(
      [all = selection.parameters.tensors](const Bucket& bucket) {
        std::vector<at::Tensor> some;
        for (const auto index : bucket.parameters) some.push_back(all[index]);
        in_backward::step(some);
      },
      Reducer::When::as_reduced);
}

void Wrapper::Impl::adopt_optimizers() {
  const auto changes = in_backward::changes();
  if (adopted_changes != changes) {
    if (delayed && any_stepped(delayed->parameters())) {
      throw Error("OptimizerInBackward: delay_all_reduce_named_params are averaged too late to be stepped in backward");
    }
    const bool before = std::exchange(steps_in_backward, any_stepped(selection.parameters.tensors));
    if (zero_step == nullptr && steps_in_backward != before) step_as_reduced(steps_in_backward);
    adopted_changes = changes;
  }
  if (!steps_in_backward) return;
  if (zero_step != nullptr) throw Error("OptimizerInBackward: this model has a ZeRO step, which steps all parameters");
  if (reducer->has_comm_hook()) {
    throw Error(
        "OptimizerInBackward steps averaged gradients of full precision: this model has a communication hook, or "
        "mixed_precision");
  }
}

void Wrapper::register_buffer_hook(BufferHook hook, BufferSync when) {
  if (!hook) throw TypeError("register_buffer_hook: no hook");
  impl_->buffer_hook = std::move(hook);
  impl_->buffer_hook_when = when;
  ++impl_->buffer_hooks;
}

// --- settings

NoSync Wrapper::no_sync() const {
  return NoSync({impl_, &impl_->syncs});
}

void Wrapper::set_static_graph() {
  auto& options = impl_->options;
  if (impl_->reducer == nullptr) return;
  if (options.static_graph) {
    log(LogLevel::warn, "static_graph was set before");
    return;
  }
  if (impl_->sees_outputs == false) refuse_hidden_outputs();
  impl_->logged([&] { impl_->reducer->set_static_graph(); });
  options.static_graph = true;
  if (std::exchange(options.find_unused_parameters, false)) warn_search_is_redundant();
  impl_->logger->set("static_graph", std::int64_t{1});
}

void Wrapper::set_sparse_metadata(const std::map<std::string, at::Tensor>& ids) {
  if (impl_->join != nullptr) {
    throw ValueError("set_sparse_metadata: in a join the ranks without input do not know the rows");
  }
  const auto& parameters = impl_->selection.parameters;
  std::map<std::size_t, at::Tensor> by_index;
  for (const auto& [name, rows] : ids) {
    const auto found = std::find(parameters.names.begin(), parameters.names.end(), name);
    const auto index = static_cast<std::size_t>(found - parameters.names.begin());
    if (found == parameters.names.end() || !parameters.expects_sparse[index]) {
      throw Error(fmt::format("set_sparse_metadata: {} is no parameter with sparse gradients", name));
    }
    if (rows.dim() != 1 || rows.scalar_type() != at::kLong) {
      throw Error(fmt::format("set_sparse_metadata: the ids of {} are not one row of 64-bit integers", name));
    }
    by_index.emplace(index, rows);
  }
  if (impl_->reducer) impl_->reducer->set_sparse_ids(std::move(by_index));
}

void Wrapper::set_sink_clone(bool clones) {
  impl_->clones_outputs = clones;
}

void Wrapper::check_reducer_finalized() const {
  if (impl_->reducer) impl_->logged([&] { impl_->reducer->check_finalized(); });
}

void Wrapper::remove_autograd_hooks() {
  if (impl_->reducer) impl_->reducer->detach();
}

const ProcessGroupPtr& Wrapper::process_group() const {
  return impl_->options.process_group;
}

void Wrapper::update_process_group(ProcessGroupPtr process_group) {
  if (impl_->low_precision) impl_->low_precision->end_backward();  // buckets have the dtype of the masters
  if (process_group != nullptr) {
    impl_->options.process_group = process_group;
    impl_->logger->set("world_size", std::int64_t{process_group->size()});
    impl_->logger->set("rank", std::int64_t{process_group->rank()});
    if (impl_->delayed) impl_->delayed->set_process_group(process_group);
  }
  if (impl_->reducer) impl_->reducer->reset(std::move(process_group));
}

std::vector<at::Tensor> Wrapper::parameters(bool recurse) const {
  auto all = Module::parameters(recurse);
  std::unordered_set<const void*> seen;
  std::erase_if(all, [&](const at::Tensor& each) { return !seen.insert(each.unsafeGetTensorImpl()).second; });
  return all;
}

std::vector<std::pair<std::string, at::Tensor>> Wrapper::managed_parameters() const {
  std::vector<std::pair<std::string, at::Tensor>> all;
  const auto& parameters = impl_->selection.parameters;
  for (std::size_t i = 0; i < parameters.size(); ++i) all.emplace_back(parameters.names[i], parameters.tensors[i]);
  return all;
}

// --- observing

DdpLoggingData Wrapper::logging_data() const {
  return impl_->logger->data(impl_->reducer.get());
}

void Wrapper::set_logging_sample_rate(int rate) {
  impl_->logger->set_sample_rate(rate);
}

void Wrapper::record_timeline() {
  if (impl_->reducer) impl_->reducer->record_timeline();
}

std::string Wrapper::timeline_json() const {
  return impl_->reducer ? impl_->reducer->timeline_json() : "{}";
}

}  // namespace cohort::ddp
