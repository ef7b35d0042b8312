// SPDX-License-Identifier: BSD-3-Clause
#include "torch/ddp/logger.h"

#include <cohort/env.h>
#include <cohort/error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace cohort {

std::string to_json(const DdpLoggingData& data) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, text] : data.strings) json[name] = text;
  for (const auto& [name, number] : data.integers) json[name] = number;
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string ddp_environment() {
  std::string text;
  for (const auto* const name :
       {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "COHORT_DEBUG",
        "TORCH_DISTRIBUTED_DEBUG", "GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG",
        "NCCL_BLOCKING_WAIT", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_NTHREADS", "NCCL_IB_TIMEOUT",
        "DDP_SET_LAST_BUCKET_CAP", "DDP_DISABLE_COMM_MEM", "OMP_NUM_THREADS"}) {
    const auto value = Env::read_one(name);
    text += fmt::format("env:{}={}\n", name, value.empty() ? "N/A" : value);
  }
  return text;
}

namespace ddp {

namespace {

constexpr std::int64_t always_sampled = 10;

std::string or_none(const std::string& text) {
  return text.empty() ? "N/A" : text;
}

std::string listed(const std::vector<std::vector<std::size_t>>& buckets) {
  std::vector<std::string> each;
  each.reserve(buckets.size());
  for (const auto& bucket : buckets) each.push_back(fmt::format("{}", fmt::join(bucket, " ")));
  return fmt::format("{}", fmt::join(each, ", "));
}

}  // namespace

void Logger::set(const std::string& name, std::string text) {
  const std::lock_guard lock(mutex_);
  data_.strings[name] = std::move(text);
}

void Logger::set(const std::string& name, std::int64_t number) {
  const std::lock_guard lock(mutex_);
  data_.integers[name] = number;
}

void Logger::set_sample_rate(int rate) {
  if (rate < 1) throw ValueError(fmt::format("the sample rate is {}; it must be at least 1", rate));
  const std::lock_guard lock(mutex_);
  sample_rate_ = rate;
}

bool Logger::is_sampled(std::int64_t iteration) const {
  const std::lock_guard lock(mutex_);
  return iteration <= always_sampled || iteration % sample_rate_ == 0;
}

void Logger::set_error(const std::string& what, std::uint64_t iteration) {
  const std::lock_guard lock(mutex_);
  data_.integers["has_error"] = 1;
  data_.integers["iteration"] = static_cast<std::int64_t>(iteration);
  data_.strings["error"] = what;
}

void Logger::describe(const std::string& module, const DdpOptions& options, const Selection& selection,
                      const Reducer& reducer, std::size_t bucket_cap) {
  const auto& group = *options.process_group;
  const auto& parameters = selection.parameters.tensors;
  std::size_t bytes = 0;
  std::set<at::DeviceIndex> devices;
  std::vector<std::string> types;
  for (const auto& each : parameters) {
    bytes += each.nbytes();
    devices.insert(each.device().index());
    std::string type = c10::toString(each.scalar_type());
    if (std::find(types.begin(), types.end(), type) == types.end()) types.push_back(std::move(type));
  }
  set("module_name", module);
  set("device_ids", options.device_ids.empty() ? "" : options.device_ids.front().str());
  set("bucket_sizes", fmt::format("{}", fmt::join(reducer.statistics().bucket_bytes, ", ")));
  set("dtypes", fmt::format("{}", fmt::join(types, ", ")));
  set("backend_name", group.name());
  set("comm_hook", std::string());
  set("error", std::string());
  read_environment(group.name());
  const auto number = [&](const char* name, auto value) { set(name, static_cast<std::int64_t>(value)); };
  number("world_size", group.size());
  number("rank", group.rank());
  number("iteration", 0);
  number("output_device", options.output_device ? options.output_device->index() : -1);
  number("broadcast_buffers", options.broadcast_buffers);
  number("bucket_cap_bytes", bucket_cap);
  number("find_unused_parameters", options.find_unused_parameters);
  number("gradient_as_bucket_view", options.gradient_as_bucket_view);
  number("static_graph", options.static_graph);
  number("has_sync_bn", selection.has_sync_batch_norm);
  number("is_multi_device_module", devices.size() > 1);
  number("num_parameter_tensors", parameters.size());
  number("total_parameter_size_bytes", bytes);
  number("join_uneven_inputs", 0);
  number("has_error", 0);
}

void Logger::read_environment(const std::string& backend) {
  const auto take = [&](const char* field, const char* variable) { set(field, or_none(Env::read_one(variable))); };
  take("master_addr", "MASTER_ADDR");
  take("master_port", "MASTER_PORT");
  take("torch_distributed_debug", "TORCH_DISTRIBUTED_DEBUG");
  take("cuda_visible_devices", "CUDA_VISIBLE_DEVICES");
  if (backend == "gloo") {
    take("gloo_socket_ifname", "GLOO_SOCKET_IFNAME");
    take("gloo_device_transport", "GLOO_DEVICE_TRANSPORT");
    set("gloo_num_threads", std::int64_t{1});  // the operations of a group run one after another
  }
  if (backend == "nccl") {
    take("nccl_socket_ifname", "NCCL_SOCKET_IFNAME");
    take("nccl_blocking_wait", "NCCL_BLOCKING_WAIT");
    take("nccl_async_error_handling", "NCCL_ASYNC_ERROR_HANDLING");
    take("nccl_debug", "NCCL_DEBUG");
    take("nccl_nthreads", "NCCL_NTHREADS");
    take("nccl_ib_timeout", "NCCL_IB_TIMEOUT");
  }
}

/// Updates the running mean, in integers as the data shows it.
void Logger::average(const std::string& name, std::int64_t value) {
  auto& count = samples_[name];
  auto& mean = data_.integers["avg_" + name];
  mean = (mean * count + value) / (count + 1);
  ++count;
  data_.integers[name] = value;
}

void Logger::sample(const Reducer& reducer) {
  const auto iteration = static_cast<std::int64_t>(reducer.iterations());
  if (!is_sampled(iteration)) return;
  const auto statistics = reducer.statistics();
  const auto& times = statistics.times;
  const std::lock_guard lock(mutex_);
  data_.integers["iteration"] = iteration;
  data_.integers["num_buckets_reduced"] = static_cast<std::int64_t>(statistics.buckets_reduced);
  data_.integers["unused_parameter_size"] = static_cast<std::int64_t>(statistics.unused_bytes);
  const auto between = [&](const char* name, auto begin, auto end) {
    if (!begin || !end || *end < *begin) return;
    average(name, std::chrono::duration_cast<std::chrono::nanoseconds>(*end - *begin).count());
  };
  between("forward_compute_time", times.forward_start, times.backward_start);
  between("backward_compute_time", times.backward_start, times.backward_end);
  between("backward_comm_time", times.comm_start, times.comm_end);
  between("backward_compute_comm_overlap_time", times.comm_start, times.backward_end);
  const auto at = [&](const char* name, auto when) {
    if (when) {
      data_.integers[name] = std::chrono::duration_cast<std::chrono::nanoseconds>(when->time_since_epoch()).count();
    }
  };
  at("forward_compute_time_start", times.forward_start);
  at("backward_compute_time_start", times.backward_start);
  at("backward_compute_time_end", times.backward_end);
  at("backward_comm_time_start", times.comm_start);
  at("backward_comm_time_end", times.comm_end);
}

DdpLoggingData Logger::data(const Reducer* reducer) const {
  const auto statistics = reducer == nullptr ? ReducerStatistics{} : reducer->statistics();
  const std::lock_guard lock(mutex_);
  auto data = data_;
  if (reducer == nullptr) return data;
  data.integers["has_rebuilt_buckets"] = statistics.has_rebuilt ? 1 : 0;
  data.integers["can_set_static_graph"] = statistics.graph_looks_static ? 1 : 0;
  if (statistics.has_rebuilt) {
    data.strings["rebuilt_bucket_sizes"] = fmt::format("{}", fmt::join(statistics.bucket_bytes, ", "));
    data.strings["rebuilt_per_bucket_param_indices"] = listed(statistics.bucket_parameters);
  }
  data.strings["prev_iteration_grad_ready_order_indices"] = fmt::format("{}", fmt::join(statistics.ready_order, ", "));
  return data;
}

}  // namespace ddp

}  // namespace cohort
