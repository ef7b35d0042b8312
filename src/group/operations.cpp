// SPDX-License-Identifier: BSD-3-Clause
//
// Checks arguments and turns every form of an operation into the one that backends know.
#include <cohort/error.h>
#include <cohort/operations.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "group/operation.h"

namespace cohort {

using detail::Issue;
using detail::Operation;

namespace {

ErrorContext in(OpType op) {
  return {.op = std::string(to_string(op))};
}

void check_memory(OpType op, const ConstBuffer& buffer) {
  if (!buffer.is_contiguous()) {
    throw ValueError(fmt::format("{}: the buffer of sizes {} has strides {}: make it contiguous first", to_string(op),
                                 to_string(buffer.sizes()), to_string(buffer.strides())),
                     in(op));
  }
  if (buffer.data() == nullptr && buffer.count() > 0) {
    throw ValueError(fmt::format("{}: the buffer's address is null", to_string(op)), in(op));
  }
}

template <class List>
void check_list(OpType op, const List& buffers) {
  if (buffers.empty()) throw ValueError(fmt::format("{}: the list of buffers is empty", to_string(op)), in(op));
  for (const auto& buffer : buffers) {
    check_memory(op, buffer);
    if (buffer.device().type != buffers[0].device().type) {
      throw ValueError(fmt::format("{}: buffers on different devices", to_string(op)), in(op));
    }
  }
}

void check_same_dtype(OpType op, const ConstBuffer& a, const ConstBuffer& b) {
  if (a.dtype() != b.dtype()) {
    throw TypeError(
        fmt::format("{}: buffers of types {} and {}", to_string(op), to_string(a.dtype()), to_string(b.dtype())),
        in(op));
  }
}

template <class List>
void check_same_dtypes(OpType op, const List& buffers, const ConstBuffer& like) {
  for (const auto& buffer : buffers) check_same_dtype(op, buffer, like);
}

void check_count(OpType op, std::int64_t got, std::int64_t wanted, std::string_view what) {
  if (got != wanted) {
    throw ValueError(fmt::format("{}: {} has {} elements, not {}", to_string(op), what, got, wanted), in(op));
  }
}

void check_length(OpType op, std::size_t got, int wanted, std::string_view what) {
  if (got != static_cast<std::size_t>(wanted)) {
    throw ValueError(fmt::format("{}: {} of {} buffers, not of {}", to_string(op), what, got, wanted), in(op));
  }
}

void check_rank(OpType op, int rank, int size, std::string_view what) {
  if (rank < 0 || rank >= size) {
    throw ValueError(fmt::format("{}: {} {} is not a rank of this group: 0 to {}", to_string(op), what, rank, size - 1),
                     in(op));
  }
}

Bytes bytes_of(const Buffer& buffer) {
  return {static_cast<std::byte*>(buffer.data()), buffer.bytes()};
}
ConstBytes bytes_of(const ConstBuffer& buffer) {
  return {static_cast<const std::byte*>(buffer.data()), buffer.bytes()};
}

/// n equal parts.
template <class List, class Whole>
void divide(List& parts, Whole whole, int n) {
  const auto each = whole.size() / static_cast<std::size_t>(n);
  for (int i = 0; i < n; ++i) parts.push_back(whole.subspan(static_cast<std::size_t>(i) * each, each));
}

template <class Options>
Issue issue(const Device& device, const Options& options) {
  return {.device = device.type, .async_op = options.async_op, .timeout = options.timeout, .stream = options.stream};
}

std::span<const Buffer> view(const BufferList& list) {
  return {list.size() == 0 ? nullptr : &list[0], list.size()};
}
std::span<const ConstBuffer> view(const ConstBufferList& list) {
  return {list.size() == 0 ? nullptr : &list[0], list.size()};
}

Operation all_reduce_of(const Buffer& buffer, const ReduceOp& op) {
  Operation operation{.type = OpType::all_reduce, .dtype = buffer.dtype(), .reduce = op};
  operation.outs.push_back(bytes_of(buffer));
  operation.outputs = {&buffer, 1};
  return operation;
}

}  // namespace

Work Operations::all_reduce(const Buffer& buffer, const AllReduceOptions& options) {
  check_memory(OpType::all_reduce, buffer);
  check_reducible(buffer.dtype(), options.op);
  auto operation = all_reduce_of(buffer, options.op);
  return submit(operation, issue(buffer.device(), options));
}

Work Operations::all_reduce(const BufferList& buffers, const AllReduceOptions& options) {
  constexpr auto op = OpType::all_reduce;
  check_list(op, buffers);
  check_reducible(buffers[0].dtype(), options.op);
  for (const auto& buffer : buffers) {
    check_same_dtype(op, buffer, buffers[0]);
    check_count(op, buffer.count(), buffers[0].count(), "a buffer of the list");
  }
  const auto kind = options.op.kind();
  if (buffers.size() > 1 && (kind == ReduceOp::Kind::avg || kind == ReduceOp::Kind::premul_sum)) {
    throw ValueError(fmt::format("{}: {} over a list of buffers is not defined; reduce them one by one", to_string(op),
                                 to_string(options.op)),
                     in(op));
  }
  if (buffers.size() > 1 && buffers[0].device().type != DeviceType::cpu) {
    throw NotSupportedError(fmt::format("{}: lists of buffers in host memory only", to_string(op)), in(op));
  }
  Operation operation{.type = op, .dtype = buffers[0].dtype(), .reduce = options.op};
  for (const auto& buffer : buffers) operation.outs.push_back(bytes_of(buffer));
  operation.outputs = view(buffers);
  return submit(operation, issue(buffers[0].device(), options));
}

Work Operations::all_reduce_coalesced(const BufferList& buffers, const AllReduceOptions& options) {
  constexpr auto op = OpType::all_reduce_coalesced;
  check_list(op, buffers);
  check_reducible(buffers[0].dtype(), options.op);
  check_same_dtypes(op, buffers, buffers[0]);
  Operation operation{.type = op, .dtype = buffers[0].dtype(), .reduce = options.op};
  for (const auto& buffer : buffers) operation.members.push_back(all_reduce_of(buffer, options.op));
  operation.outputs = view(buffers);
  return submit(operation, issue(buffers[0].device(), options));
}

Work Operations::reduce(const Buffer& buffer, const ReduceOptions& options) {
  constexpr auto op = OpType::reduce;
  check_rank(op, options.root, size_, "root");
  check_memory(op, buffer);
  check_reducible(buffer.dtype(), options.op);
  Operation operation{.type = op, .dtype = buffer.dtype(), .reduce = options.op, .root_or_peer = options.root};
  operation.outs.push_back(bytes_of(buffer));
  operation.outputs = {&buffer, 1};
  return submit(operation, issue(buffer.device(), options));
}

Work Operations::broadcast(const Buffer& buffer, const BroadcastOptions& options) {
  constexpr auto op = OpType::broadcast;
  check_rank(op, options.root, size_, "root");
  check_memory(op, buffer);
  Operation operation{.type = op, .dtype = buffer.dtype(), .root_or_peer = options.root};
  operation.outs.push_back(bytes_of(buffer));
  operation.outputs = {&buffer, 1};
  return submit(operation, issue(buffer.device(), options));
}

namespace {

Operation all_gather_of(OpType op, const Buffer& output, const ConstBuffer& input, int size) {
  check_memory(op, output);
  check_memory(op, input);
  check_same_dtype(op, output, input);
  check_count(op, output.count(), input.count() * size, "the output");
  Operation operation{.type = OpType::all_gather_single, .dtype = input.dtype()};
  operation.ins.push_back(bytes_of(input));
  divide(operation.outs, bytes_of(output), size);
  operation.inputs = {&input, 1};
  operation.outputs = {&output, 1};
  return operation;
}

Operation reduce_scatter_of(OpType op, const Buffer& output, const ConstBuffer& input, const ReduceOp& reduce,
                            int size) {
  check_memory(op, output);
  check_memory(op, input);
  check_same_dtype(op, output, input);
  check_reducible(output.dtype(), reduce);
  check_count(op, input.count(), output.count() * size, "the input");
  Operation operation{.type = OpType::reduce_scatter_single, .dtype = output.dtype(), .reduce = reduce};
  divide(operation.ins, bytes_of(input), size);
  operation.outs.push_back(bytes_of(output));
  operation.inputs = {&input, 1};
  operation.outputs = {&output, 1};
  return operation;
}

}  // namespace

Work Operations::all_gather(const Buffer& output, const ConstBuffer& input, const AllGatherOptions& options) {
  auto operation = all_gather_of(OpType::all_gather_single, output, input, size_);
  return submit(operation, issue(input.device(), options));
}

Work Operations::all_gather(const BufferList& outputs, const ConstBuffer& input, const AllGatherOptions& options) {
  constexpr auto op = OpType::all_gather;
  check_memory(op, input);
  check_length(op, outputs.size(), size_, "a list");
  check_list(op, outputs);
  check_same_dtypes(op, outputs, input);
  check_count(op, outputs[static_cast<std::size_t>(rank_)].count(), input.count(), "this rank's output");
  Operation operation{.type = op, .dtype = input.dtype()};
  operation.ins.push_back(bytes_of(input));
  for (const auto& output : outputs) operation.outs.push_back(bytes_of(output));
  operation.inputs = {&input, 1};
  operation.outputs = view(outputs);
  return submit(operation, issue(input.device(), options));
}

Work Operations::all_gather_coalesced(const std::vector<BufferList>& outputs, const ConstBufferList& inputs,
                                      const AllGatherOptions& options) {
  constexpr auto op = OpType::all_gather_coalesced;
  check_length(op, outputs.size(), size_, "lists");
  check_list(op, inputs);
  Operation operation{.type = op, .dtype = inputs[0].dtype()};
  std::vector<Buffer> all;
  for (const auto& list : outputs) {
    check_length(op, list.size(), static_cast<int>(inputs.size()), "a rank's list");
    check_list(op, list);
    for (std::size_t j = 0; j < inputs.size(); ++j) {
      check_same_dtype(op, list[j], inputs[j]);
      if (!(list[j].sizes() == inputs[j].sizes())) {
        throw ValueError(fmt::format("{}: an output of sizes {} for an input of sizes {}", to_string(op),
                                     to_string(list[j].sizes()), to_string(inputs[j].sizes())),
                         in(op));
      }
      all.push_back(list[j]);
    }
  }
  for (std::size_t j = 0; j < inputs.size(); ++j) {
    Operation member{.type = OpType::all_gather, .dtype = inputs[j].dtype()};
    member.ins.push_back(bytes_of(inputs[j]));
    for (const auto& list : outputs) member.outs.push_back(bytes_of(list[j]));
    operation.members.push_back(std::move(member));
  }
  operation.inputs = view(inputs);
  operation.outputs = all;
  return submit(operation, issue(inputs[0].device(), options));
}

Work Operations::all_gather_coalesced(const BufferList& outputs, const ConstBufferList& inputs,
                                      const AllGatherOptions& options) {
  constexpr auto op = OpType::all_gather_coalesced;
  check_list(op, inputs);
  check_length(op, outputs.size(), static_cast<int>(inputs.size()), "outputs");
  Operation operation{.type = op, .dtype = inputs[0].dtype()};
  for (std::size_t j = 0; j < inputs.size(); ++j) {
    operation.members.push_back(all_gather_of(op, outputs[j], inputs[j], size_));
  }
  operation.inputs = view(inputs);
  operation.outputs = view(outputs);
  return submit(operation, issue(inputs[0].device(), options));
}

Work Operations::gather(const BufferList& outputs, const ConstBuffer& input, const GatherOptions& options) {
  constexpr auto op = OpType::gather;
  check_rank(op, options.root, size_, "root");
  check_memory(op, input);
  Operation operation{.type = op, .dtype = input.dtype(), .root_or_peer = options.root};
  if (rank_ == options.root) {
    check_length(op, outputs.size(), size_, "a list");
    check_list(op, outputs);
    for (const auto& output : outputs) {
      check_same_dtype(op, output, input);
      check_count(op, output.count(), input.count(), "an output");
    }
  } else if (!outputs.empty()) {
    throw ValueError(fmt::format("{}: only rank {}, the root, takes outputs; rank {} must pass none", to_string(op),
                                 options.root, rank_),
                     in(op));
  }
  operation.ins.push_back(bytes_of(input));
  for (const auto& output : outputs) operation.outs.push_back(bytes_of(output));
  operation.inputs = {&input, 1};
  operation.outputs = view(outputs);
  return submit(operation, issue(input.device(), options));
}

Work Operations::scatter(const Buffer& output, const ConstBufferList& inputs, const ScatterOptions& options) {
  constexpr auto op = OpType::scatter;
  check_rank(op, options.root, size_, "root");
  check_memory(op, output);
  Operation operation{.type = op, .dtype = output.dtype(), .root_or_peer = options.root};
  if (rank_ == options.root) {
    check_length(op, inputs.size(), size_, "a list");
    check_list(op, inputs);
    for (const auto& input : inputs) {
      check_same_dtype(op, input, output);
      check_count(op, input.count(), output.count(), "an input");
    }
  } else if (!inputs.empty()) {
    throw ValueError(fmt::format("{}: only rank {}, the root, gives inputs; rank {} must pass none", to_string(op),
                                 options.root, rank_),
                     in(op));
  }
  for (const auto& input : inputs) operation.ins.push_back(bytes_of(input));
  operation.outs.push_back(bytes_of(output));
  operation.inputs = view(inputs);
  operation.outputs = {&output, 1};
  return submit(operation, issue(output.device(), options));
}

Work Operations::reduce_scatter(const Buffer& output, const ConstBufferList& inputs,
                                const ReduceScatterOptions& options) {
  constexpr auto op = OpType::reduce_scatter;
  check_memory(op, output);
  check_length(op, inputs.size(), size_, "a list");
  check_list(op, inputs);
  check_same_dtypes(op, inputs, output);
  check_reducible(output.dtype(), options.op);
  check_count(op, inputs[static_cast<std::size_t>(rank_)].count(), output.count(), "this rank's input");
  Operation operation{.type = op, .dtype = output.dtype(), .reduce = options.op};
  for (const auto& input : inputs) operation.ins.push_back(bytes_of(input));
  operation.outs.push_back(bytes_of(output));
  operation.inputs = view(inputs);
  operation.outputs = {&output, 1};
  return submit(operation, issue(output.device(), options));
}

Work Operations::reduce_scatter(const Buffer& output, const ConstBuffer& input, const ReduceScatterOptions& options) {
  auto operation = reduce_scatter_of(OpType::reduce_scatter_single, output, input, options.op, size_);
  return submit(operation, issue(output.device(), options));
}

Work Operations::reduce_scatter_coalesced(const BufferList& outputs, const ConstBufferList& inputs,
                                          const ReduceScatterOptions& options) {
  constexpr auto op = OpType::coalesced;
  check_list(op, inputs);
  check_length(op, outputs.size(), static_cast<int>(inputs.size()), "outputs");
  Operation operation{.type = op, .dtype = inputs[0].dtype(), .reduce = options.op};
  for (std::size_t j = 0; j < inputs.size(); ++j) {
    operation.members.push_back(reduce_scatter_of(op, outputs[j], inputs[j], options.op, size_));
  }
  operation.inputs = view(inputs);
  operation.outputs = view(outputs);
  return submit(operation, issue(inputs[0].device(), options));
}

namespace {

/// Blocks of rows, as `splits` says, or equal ones.
template <class List, class Whole>
void divide_rows(List& parts, Whole whole, const ConstBuffer& buffer, const std::vector<std::int64_t>& splits, int size,
                 std::string_view what) {
  constexpr auto op = OpType::all_to_all_single;
  const auto rows = buffer.sizes().empty() ? std::int64_t{1} : buffer.sizes()[0];
  if (splits.empty()) {
    if (rows % size != 0) {
      throw ValueError(fmt::format("{}: {} rows of the {} are not divisible among {} ranks; give the splits",
                                   to_string(op), rows, what, size),
                       in(op));
    }
    return divide(parts, whole, size);
  }
  check_length(op, splits.size(), size, fmt::format("{} splits", what));
  const bool is_sound = std::all_of(splits.begin(), splits.end(), [&](auto n) { return n >= 0 && n <= rows; });
  if (!is_sound || std::accumulate(splits.begin(), splits.end(), std::int64_t{0}) != rows) {
    throw ValueError(fmt::format("{}: the {} splits do not add up to its {} rows", to_string(op), what, rows), in(op));
  }
  const auto row_bytes = rows == 0 ? 0 : whole.size() / static_cast<std::size_t>(rows);
  std::size_t at = 0;
  for (const auto n : splits) {
    const auto bytes = static_cast<std::size_t>(n) * row_bytes;
    parts.push_back(whole.subspan(at, bytes));
    at += bytes;
  }
}

}  // namespace

Work Operations::all_to_all(const Buffer& output, const ConstBuffer& input, const AllToAllOptions& options) {
  constexpr auto op = OpType::all_to_all_single;
  check_memory(op, output);
  check_memory(op, input);
  check_same_dtype(op, output, input);
  Operation operation{.type = op, .dtype = input.dtype()};
  divide_rows(operation.ins, bytes_of(input), input, options.input_splits, size_, "input");
  divide_rows(operation.outs, bytes_of(output), output, options.output_splits, size_, "output");
  operation.inputs = {&input, 1};
  operation.outputs = {&output, 1};
  return submit(operation, issue(input.device(), options));
}

Work Operations::all_to_all(const BufferList& outputs, const ConstBufferList& inputs, const AllToAllOptions& options) {
  constexpr auto op = OpType::all_to_all;
  if (!options.input_splits.empty() || !options.output_splits.empty()) {
    throw ValueError(fmt::format("{}: splits are for single buffers; lists are split already", to_string(op)), in(op));
  }
  check_length(op, inputs.size(), size_, "inputs");
  check_length(op, outputs.size(), size_, "outputs");
  check_list(op, inputs);
  check_list(op, outputs);
  check_same_dtypes(op, inputs, outputs[0]);
  check_same_dtypes(op, outputs, outputs[0]);
  Operation operation{.type = op, .dtype = outputs[0].dtype()};
  for (const auto& input : inputs) operation.ins.push_back(bytes_of(input));
  for (const auto& output : outputs) operation.outs.push_back(bytes_of(output));
  operation.inputs = view(inputs);
  operation.outputs = view(outputs);
  return submit(operation, issue(inputs[0].device(), options));
}

Work Operations::barrier(const BarrierOptions& options) {
  Operation operation{.type = OpType::barrier};
  auto how = issue(Device(), options);
  how.device = options.device ? std::optional(options.device->type) : std::nullopt;
  return submit(operation, how);
}

namespace {

void check_tag(OpType op, int tag) {
  if (tag < 0) throw ValueError(fmt::format("{}: the tag {} is negative", to_string(op), tag), in(op));
}

}  // namespace

Work Operations::send(const ConstBuffer& buffer, int peer, const SendOptions& options) {
  constexpr auto op = OpType::send;
  check_rank(op, peer, size_, "peer");
  check_tag(op, options.tag);
  check_memory(op, buffer);
  Operation operation{.type = op, .dtype = buffer.dtype(), .root_or_peer = peer, .tag = options.tag};
  operation.ins.push_back(bytes_of(buffer));
  operation.inputs = {&buffer, 1};
  return submit(operation, issue(buffer.device(), options));
}

Work Operations::recv(const Buffer& buffer, int peer, const RecvOptions& options) {
  constexpr auto op = OpType::recv;
  check_rank(op, peer, size_, "peer");
  check_tag(op, options.tag);
  check_memory(op, buffer);
  Operation operation{.type = op, .dtype = buffer.dtype(), .root_or_peer = peer, .tag = options.tag};
  operation.outs.push_back(bytes_of(buffer));
  operation.outputs = {&buffer, 1};
  return submit(operation, issue(buffer.device(), options));
}

Work Operations::recv_any_source(const Buffer& buffer, const RecvOptions& options) {
  constexpr auto op = OpType::recv_any_source;
  check_tag(op, options.tag);
  check_memory(op, buffer);
  Operation operation{.type = op, .dtype = buffer.dtype(), .root_or_peer = Backend::any_source, .tag = options.tag};
  operation.outs.push_back(bytes_of(buffer));
  operation.outputs = {&buffer, 1};
  return submit(operation, issue(buffer.device(), options));
}

}  // namespace cohort
