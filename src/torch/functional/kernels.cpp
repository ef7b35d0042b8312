// SPDX-License-Identifier: BSD-3-Clause
#include "torch/functional/kernels.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <cohort/error.h>
#include <cohort/issue_observer.h>
#include <cohort/torch/tensor.h>
#include <torch/library.h>

#include <fmt/format.h>

#include <string>
#include <vector>

#include "torch/functional/issuing_group.h"
#include "torch/functional/operators.h"
#include "torch/functional/reduction_name.h"
#include "torch/functional/shapes.h"
#include "torch/functional/work_registry.h"

namespace cohort::functional::kernels {

namespace {

using Tensors = std::vector<at::Tensor>;

// An operator without a kernel for autograd arrives with autograd still on; nothing in here is differentiated.
using BelowAutograd = at::AutoDispatchBelowADInplaceOrView;

Issuer issuer_of_size(OperatorString group, std::int64_t size, std::string_view op) {
  auto issuer = issuer_named(as_view(group));
  if (issuer.group.size() != size) {
    throw ValueError(fmt::format("{}: group_size is {}, and the group has {} ranks", op, size, issuer.group.size()),
                     {.group = issuer.group.id(), .op = std::string(op)});
  }
  return issuer;
}

/// Issues one collective that writes `outputs`, by `issue(async_op)`.
template <class Issue>
void perform(const Issuer& issuer, at::TensorList outputs, const Issue& issue) {
  if (issuer.is_blocking) {
    issue(false);
    return;
  }
  const IssueObserver unobserved({});  // an InflightCollectivesScope would register it once more
  const Work work = issue(true);
  for (const auto& output : outputs) WorkRegistry::instance().add(output, work);
}

BufferList buffers_of(at::TensorList tensors) {
  std::vector<Buffer> buffers;
  buffers.reserve(tensors.size());
  for (const auto& tensor : tensors) buffers.push_back(buffer_of(tensor));
  return buffers;
}

ConstBufferList const_buffers_of(at::TensorList tensors) {
  std::vector<ConstBuffer> buffers;
  buffers.reserve(tensors.size());
  for (const auto& tensor : tensors) buffers.push_back(const_buffer_of(tensor));
  return buffers;
}

/// The stream of a list's device; its tensors are on one device.
void* stream_of(at::TensorList tensors) {
  return tensors.empty() ? nullptr : current_stream(tensors.front());
}

Tensors clones_of(at::TensorList inputs) {
  Tensors clones;
  clones.reserve(inputs.size());
  for (const auto& input : inputs) clones.push_back(input.clone());
  return clones;
}

void reduce_in_place(const at::Tensor& tensor, OperatorString reduce_op, OperatorString group) {
  const auto op = reduction_named(as_view(reduce_op));
  const auto issuer = issuer_named(as_view(group));
  perform(issuer, tensor, [&](bool async_op) {
    return issuer.group.all_reduce(buffer_of(tensor),
                                   {.op = op, .async_op = async_op, .stream = current_stream(tensor)});
  });
}

void reduce_all_in_place(at::TensorList tensors, OperatorString reduce_op, OperatorString group) {
  const auto op = reduction_named(as_view(reduce_op));
  const auto issuer = issuer_named(as_view(group));
  perform(issuer, tensors, [&](bool async_op) {
    return issuer.group.all_reduce_coalesced(buffers_of(tensors),
                                             {.op = op, .async_op = async_op, .stream = stream_of(tensors)});
  });
}

void broadcast_in_place(const at::Tensor& tensor, std::int64_t root, OperatorString group) {
  const auto issuer = issuer_named(as_view(group));
  perform(issuer, tensor, [&](bool async_op) {
    return issuer.group.broadcast(
        buffer_of(tensor), {.root = static_cast<int>(root), .async_op = async_op, .stream = current_stream(tensor)});
  });
}

void gather_into(const at::Tensor& out, const at::Tensor& input, const Issuer& issuer) {
  perform(issuer, out, [&](bool async_op) {
    return issuer.group.all_gather(buffer_of(out), const_buffer_of(input),
                                   {.async_op = async_op, .stream = current_stream(out)});
  });
}

at::Tensor all_reduce(const at::Tensor& input, OperatorString reduce_op, OperatorString group) {
  const BelowAutograd guard;
  auto output = input.clone();
  reduce_in_place(output, reduce_op, group);
  return output;
}

at::Tensor all_reduce_(const at::Tensor& input, OperatorString reduce_op, OperatorString group) {
  reduce_in_place(input, reduce_op, group);
  return input;
}

Tensors all_reduce_coalesced(at::TensorList inputs, OperatorString reduce_op, OperatorString group) {
  const BelowAutograd guard;
  auto outputs = clones_of(inputs);
  reduce_all_in_place(outputs, reduce_op, group);
  return outputs;
}

Tensors all_reduce_coalesced_(at::TensorList inputs, OperatorString reduce_op, OperatorString group) {
  reduce_all_in_place(inputs, reduce_op, group);
  return inputs.vec();
}

at::Tensor all_gather_into_tensor(const at::Tensor& input, std::int64_t group_size, OperatorString group) {
  const BelowAutograd guard;
  check_contiguous(input, "all_gather_into_tensor");
  const auto issuer = issuer_of_size(group, group_size, "all_gather_into_tensor");
  auto output = at::empty(gathered_sizes(input, group_size), input.options());
  gather_into(output, input, issuer);
  return output;
}

at::Tensor all_gather_into_tensor_out(const at::Tensor& input, std::int64_t group_size, OperatorString group,
                                      const at::Tensor& out) {
  const BelowAutograd guard;
  check_contiguous(input, "all_gather_into_tensor_out");
  check_gather_output(out, input, group_size);
  gather_into(out, input, issuer_of_size(group, group_size, "all_gather_into_tensor_out"));
  return out;
}

Tensors all_gather_into_tensor_coalesced(at::TensorList inputs, std::int64_t group_size, OperatorString group) {
  const BelowAutograd guard;
  const auto issuer = issuer_of_size(group, group_size, "all_gather_into_tensor_coalesced");
  Tensors outputs;
  for (const auto& input : inputs) {
    check_contiguous(input, "all_gather_into_tensor_coalesced");
    outputs.push_back(at::empty(gathered_sizes(input, group_size), input.options()));
  }
  perform(issuer, outputs, [&](bool async_op) {
    return issuer.group.all_gather_coalesced(buffers_of(outputs), const_buffers_of(inputs),
                                             {.async_op = async_op, .stream = stream_of(inputs)});
  });
  return outputs;
}

at::Tensor reduce_scatter_tensor(const at::Tensor& input, OperatorString reduce_op, std::int64_t group_size,
                                 OperatorString group) {
  const BelowAutograd guard;
  const auto op = reduction_named(as_view(reduce_op));
  const auto issuer = issuer_of_size(group, group_size, "reduce_scatter_tensor");
  auto output = at::empty(scattered_sizes(input, 0, group_size, "reduce_scatter_tensor"), input.options());
  const auto source = input.contiguous();
  perform(issuer, output, [&](bool async_op) {
    return issuer.group.reduce_scatter(buffer_of(output), const_buffer_of(source),
                                       {.op = op, .async_op = async_op, .stream = current_stream(source)});
  });
  return output;
}

Tensors reduce_scatter_tensor_coalesced(at::TensorList inputs, OperatorString reduce_op, std::int64_t group_size,
                                        OperatorString group) {
  const BelowAutograd guard;
  const auto op = reduction_named(as_view(reduce_op));
  const auto issuer = issuer_of_size(group, group_size, "reduce_scatter_tensor_coalesced");
  Tensors outputs;
  Tensors sources;
  for (const auto& input : inputs) {
    outputs.push_back(
        at::empty(scattered_sizes(input, 0, group_size, "reduce_scatter_tensor_coalesced"), input.options()));
    sources.push_back(input.contiguous());
  }
  perform(issuer, outputs, [&](bool async_op) {
    return issuer.group.reduce_scatter_coalesced(buffers_of(outputs), const_buffers_of(sources),
                                                 {.op = op, .async_op = async_op, .stream = stream_of(sources)});
  });
  return outputs;
}

at::Tensor all_to_all_single(const at::Tensor& input, at::IntArrayRef output_splits, at::IntArrayRef input_splits,
                             OperatorString group) {
  const BelowAutograd guard;
  const auto issuer = issuer_named(as_view(group));
  auto output = at::empty(exchanged_sizes(input, output_splits, input_splits), input.options());
  const auto source = input.contiguous();
  perform(issuer, output, [&](bool async_op) {
    return issuer.group.all_to_all(buffer_of(output), const_buffer_of(source),
                                   {.output_splits = output_splits.vec(),
                                    .input_splits = input_splits.vec(),
                                    .async_op = async_op,
                                    .stream = current_stream(source)});
  });
  return output;
}

at::Tensor broadcast(const at::Tensor& input, std::int64_t root, OperatorString group) {
  const BelowAutograd guard;
  // A copy on every rank, although only the root's is read: on a fake group nothing else defines the result.
  auto output = input.clone();
  broadcast_in_place(output, root, group);
  return output;
}

at::Tensor broadcast_(const at::Tensor& input, std::int64_t root, OperatorString group) {
  broadcast_in_place(input, root, group);
  return input;
}

at::Tensor shard_dim_alltoall(const at::Tensor& input, std::int64_t gather_dim, std::int64_t shard_dim,
                              std::int64_t group_size, OperatorString group) {
  const BelowAutograd guard;
  constexpr std::string_view name = "shard_dim_alltoall";
  const auto gathered = wrap_dim(input, gather_dim, name);
  const auto sharded = wrap_dim(input, shard_dim, name);
  const auto sizes = resharded_sizes(input, gathered, sharded, group_size);
  const auto issuer = issuer_of_size(group, group_size, name);
  // One block for each rank, in front; and on arrival the blocks side by side in the dimension to gather.
  const auto blocks = at::stack(input.chunk(group_size, sharded));
  const auto received = at::empty_like(blocks);
  issuer.group.all_to_all(buffer_of(received), const_buffer_of(blocks), {.stream = current_stream(blocks)});
  return received.movedim(0, gathered).reshape(sizes);
}

at::Tensor wait_tensor(const at::Tensor& tensor) {
  WorkRegistry::instance().wait(tensor);
  return tensor;
}

}  // namespace
}  // namespace cohort::functional::kernels

void cohort::functional::add_kernels(torch::Library& library) {
  library.impl("all_reduce", TORCH_FN(kernels::all_reduce));
  library.impl("all_reduce_", TORCH_FN(kernels::all_reduce_));
  library.impl("all_reduce_coalesced", TORCH_FN(kernels::all_reduce_coalesced));
  library.impl("all_reduce_coalesced_", TORCH_FN(kernels::all_reduce_coalesced_));
  library.impl("all_gather_into_tensor", TORCH_FN(kernels::all_gather_into_tensor));
  library.impl("all_gather_into_tensor_out", TORCH_FN(kernels::all_gather_into_tensor_out));
  library.impl("all_gather_into_tensor_coalesced", TORCH_FN(kernels::all_gather_into_tensor_coalesced));
  library.impl("reduce_scatter_tensor", TORCH_FN(kernels::reduce_scatter_tensor));
  library.impl("reduce_scatter_tensor_coalesced", TORCH_FN(kernels::reduce_scatter_tensor_coalesced));
  library.impl("all_to_all_single", TORCH_FN(kernels::all_to_all_single));
  library.impl("broadcast", TORCH_FN(kernels::broadcast));
  library.impl("broadcast_", TORCH_FN(kernels::broadcast_));
  library.impl("shard_dim_alltoall", TORCH_FN(kernels::shard_dim_alltoall));
  library.impl("wait_tensor", TORCH_FN(kernels::wait_tensor));
}
