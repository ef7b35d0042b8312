// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/torch/functional.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/error.h>

#include <fmt/format.h>

#include <utility>

#include "torch/functional/async_tensor.h"
#include "torch/functional/autograd.h"
#include "torch/functional/issuing_group.h"
#include "torch/functional/operators.h"
#include "torch/functional/reduction_name.h"
#include "torch/functional/shapes.h"

namespace cohort::functional {

namespace {

Tensors all_async(const Tensors& results, ResultMemory memory) {
  Tensors tensors;
  tensors.reserve(results.size());
  for (const auto& result : results) tensors.push_back(as_async(result, memory));
  return tensors;
}

/// The results of an operator that makes new tensors, by `issue(id)`.
template <class Issue>
Tensors new_results(const char* name, const Tensors& inputs, const GroupArgument& group, const Issue& issue) {
  return differentiable::refusing_backward(name, inputs, [&] {
    const IssuingGroup scope(group.group());
    return all_async(issue(group.group()->id()), ResultMemory::fresh);
  });
}

template <class Issue>
at::Tensor new_result(const char* name, const at::Tensor& input, const GroupArgument& group, const Issue& issue) {
  return new_results(name, {input}, group, [&](const std::string& id) { return Tensors{issue(id)}; }).front();
}

/// Refuses what autograd would have to know about: it does not see this write.
void check_written(const char* name, const at::Tensor& tensor) {
  if (!at::GradMode::is_enabled() || !tensor.requires_grad()) return;
  throw Error(
      fmt::format("{}: a tensor that requires a gradient cannot be written in place; use the function without "
                  "\"_\", or switch gradients off with torch::NoGradGuard",
                  name));
}

/// Concatenates the parts that lie one after another in dimension 0 in another one; and back.
at::Tensor from_rows(const at::Tensor& rows, std::int64_t parts, std::int64_t dim) {
  return at::cat(rows.chunk(parts, 0), dim);
}
at::Tensor to_rows(const at::Tensor& tensor, std::int64_t parts, std::int64_t dim) {
  return at::cat(tensor.chunk(parts, dim), 0);
}

/// The input of a reduce-scatter along dimension 0. chunk() gives fewer parts if they are not equal, so that is
/// checked.
at::Tensor scatter_input(const at::Tensor& tensor, std::int64_t dim, std::int64_t ranks) {
  const auto wrapped = wrap_dim(tensor, dim, "reduce_scatter_tensor");
  scattered_sizes(tensor, wrapped, ranks, "reduce_scatter_tensor");
  return wrapped == 0 || ranks == 1 ? tensor : to_rows(tensor, ranks, wrapped);
}

/// The rows that this rank sends to each rank, and those that it receives from each.
struct Routes {
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> received;
};

Routes routes_of(const std::vector<std::int64_t>& src_dst, std::int64_t rows, const ProcessGroup& group) {
  const auto ranks = static_cast<std::size_t>(group.size());
  if (src_dst.size() != ranks) {
    throw ValueError(fmt::format("permute_tensor: {} destinations for {} ranks", src_dst.size(), ranks));
  }
  Routes routes{std::vector<std::int64_t>(ranks, 0), std::vector<std::int64_t>(ranks, 0)};
  for (std::size_t src = 0; src < ranks; ++src) {
    const auto dst = src_dst[src];
    if (dst < 0 || dst >= group.size()) {
      throw ValueError(fmt::format("permute_tensor: {} is not a rank of this group: 0 to {}", dst, group.size() - 1));
    }
    if (src == static_cast<std::size_t>(group.rank())) routes.sent[static_cast<std::size_t>(dst)] = rows;
    if (dst == group.rank()) routes.received[src] = rows;
  }
  return routes;
}

}  // namespace

at::Tensor all_reduce(const at::Tensor& tensor, std::string_view reduce_op, const GroupArgument& group) {
  return new_result("all_reduce", tensor, group,
                    [&](const std::string& id) { return ops::all_reduce(tensor, reduce_op, id); });
}

Tensors all_reduce_coalesced(const Tensors& tensors, std::string_view reduce_op, const GroupArgument& group) {
  if (tensors.empty()) return {};
  return new_results("all_reduce_coalesced", tensors, group,
                     [&](const std::string& id) { return ops::all_reduce_coalesced(tensors, reduce_op, id); });
}

at::Tensor all_gather_tensor(const at::Tensor& tensor, std::int64_t dim, const GroupArgument& group) {
  const auto wrapped = wrap_dim(tensor, dim, "all_gather_tensor");
  check_contiguous(tensor, "all_gather_tensor");
  const auto ranks = group.group()->size();
  const auto rows = new_result("all_gather_tensor", tensor, group,
                               [&](const std::string& id) { return ops::all_gather_into_tensor(tensor, ranks, id); });
  return wrapped == 0 || ranks == 1 ? rows : from_rows(rows, ranks, wrapped);
}

Tensors all_gather_into_tensor_coalesced(const Tensors& tensors, const GroupArgument& group) {
  if (tensors.empty()) return {};
  return new_results("all_gather_into_tensor_coalesced", tensors, group, [&](const std::string& id) {
    return ops::all_gather_into_tensor_coalesced(tensors, group.group()->size(), id);
  });
}

at::Tensor reduce_scatter_tensor(const at::Tensor& tensor, std::string_view reduce_op, std::int64_t dim,
                                 const GroupArgument& group) {
  const auto ranks = group.group()->size();
  const auto input = scatter_input(tensor, dim, ranks);
  return new_result("reduce_scatter_tensor", input, group,
                    [&](const std::string& id) { return ops::reduce_scatter_tensor(input, reduce_op, ranks, id); });
}

Tensors reduce_scatter_tensor_coalesced(const Tensors& tensors, std::string_view reduce_op,
                                        const std::vector<std::int64_t>& dims, const GroupArgument& group) {
  if (dims.size() != tensors.size()) {
    throw AssertionError(
        fmt::format("reduce_scatter_tensor_coalesced: {} dimensions for {} tensors", dims.size(), tensors.size()));
  }
  if (tensors.empty()) return {};
  const auto ranks = group.group()->size();
  Tensors inputs;
  for (std::size_t i = 0; i < tensors.size(); ++i) inputs.push_back(scatter_input(tensors[i], dims[i], ranks));
  return new_results("reduce_scatter_tensor_coalesced", inputs, group, [&](const std::string& id) {
    return ops::reduce_scatter_tensor_coalesced(inputs, reduce_op, ranks, id);
  });
}

at::Tensor all_to_all_single(const at::Tensor& tensor, const std::vector<std::int64_t>& output_splits,
                             const std::vector<std::int64_t>& input_splits, const GroupArgument& group) {
  return new_result("all_to_all_single", tensor, group, [&](const std::string& id) {
    return ops::all_to_all_single(tensor, output_splits, input_splits, id);
  });
}

at::Tensor broadcast(const at::Tensor& tensor, std::int64_t src, const GroupArgument& group) {
  return new_result("broadcast", tensor, group, [&](const std::string& id) { return ops::broadcast(tensor, src, id); });
}

at::Tensor permute_tensor(const at::Tensor& tensor, const std::vector<std::int64_t>& src_dst,
                          const GroupArgument& group) {
  const bool is_scalar = tensor.dim() == 0;
  const auto input = is_scalar ? tensor.unsqueeze(0) : tensor;
  const auto routes = routes_of(src_dst, input.size(0), *group.group());
  auto received = new_result("permute_tensor", input, group, [&](const std::string& id) {
    return ops::all_to_all_single(input, routes.received, routes.sent, id);
  });
  return is_scalar && received.size(0) == 1 ? received.select(0, 0) : received;
}

at::Tensor shard_dim_alltoall(const at::Tensor& tensor, std::int64_t gather_dim, std::int64_t shard_dim,
                              const GroupArgument& group) {
  return new_result("shard_dim_alltoall", tensor, group, [&](const std::string& id) {
    return ops::shard_dim_alltoall(tensor, gather_dim, shard_dim, group.group()->size(), id);
  });
}

at::Tensor wait_tensor(const at::Tensor& tensor) {
  const auto* const in_flight = find_async(tensor);
  if (in_flight == nullptr) return ops::wait_tensor(tensor);
  return tensor.requires_grad() ? differentiable::wait(tensor) : in_flight->wait();
}

at::Tensor all_gather_tensor_autograd(const at::Tensor& tensor, std::int64_t dim, const GroupArgument& group) {
  const auto wrapped = wrap_dim(tensor, dim, "all_gather_tensor_autograd");
  check_contiguous(tensor, "all_gather_tensor_autograd");
  const auto rows = differentiable::all_gather(tensor, group.group());
  const auto ranks = group.group()->size();
  return wrapped == 0 || ranks == 1 ? rows : from_rows(rows, ranks, wrapped);
}

at::Tensor reduce_scatter_tensor_autograd(const at::Tensor& tensor, std::string_view reduce_op, std::int64_t dim,
                                          const GroupArgument& group) {
  if (reduction_named(reduce_op) != ReduceOp::sum()) {
    throw Error(fmt::format("reduce_scatter_tensor_autograd: {} has no gradient here, only sum has", reduce_op));
  }
  return differentiable::reduce_scatter(scatter_input(tensor, dim, group.group()->size()), group.group());
}

at::Tensor all_to_all_single_autograd(const at::Tensor& tensor, const std::vector<std::int64_t>& output_splits,
                                      const std::vector<std::int64_t>& input_splits, const GroupArgument& group) {
  return differentiable::all_to_all(tensor, output_splits, input_splits, group.group());
}

at::Tensor all_reduce_(const at::Tensor& tensor, std::string_view reduce_op, const GroupArgument& group) {
  check_written("all_reduce_", tensor);
  const IssuingGroup scope(group.group());
  return as_async(ops::all_reduce_(tensor, reduce_op, group.group()->id()), ResultMemory::of_user);
}

Tensors all_reduce_coalesced_(const Tensors& tensors, std::string_view reduce_op, const GroupArgument& group) {
  if (tensors.empty()) return {};
  for (const auto& tensor : tensors) check_written("all_reduce_coalesced_", tensor);
  const IssuingGroup scope(group.group());
  return all_async(ops::all_reduce_coalesced_(tensors, reduce_op, group.group()->id()), ResultMemory::of_user);
}

at::Tensor broadcast_(const at::Tensor& tensor, std::int64_t src, const GroupArgument& group) {
  check_written("broadcast_", tensor);
  const IssuingGroup scope(group.group());
  return as_async(ops::broadcast_(tensor, src, group.group()->id()), ResultMemory::of_user);
}

at::Tensor all_gather_into_tensor_out(const at::Tensor& tensor, const GroupArgument& group, const at::Tensor& out) {
  check_written("all_gather_into_tensor_out", out);
  const IssuingGroup scope(group.group());
  return as_async(ops::all_gather_into_tensor_out(tensor, group.group()->size(), group.group()->id(), out),
                  ResultMemory::of_user);
}

}  // namespace cohort::functional
