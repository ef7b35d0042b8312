// SPDX-License-Identifier: BSD-3-Clause
//
// Checks the arguments of every form of an operation and turns it into the Operation that backends perform.
#include <cohort/error.h>
#include <cohort/operations.h>
#include <cohort/reduction.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "core/rank_index.h"
#include "group/mismatch.h"
#include "group/submit.h"

namespace cohort {

using detail::SubmitOptions;

namespace {

ErrorContext in(OpType type) {
  return {.op = std::string(to_string(type))};
}

[[noreturn]] void refuse_strides(OpType type, const ConstBuffer& buffer) {
  throw ValueError(fmt::format("{}: the buffer of sizes {} has strides {}: make it contiguous first", to_string(type),
                               to_string(buffer.sizes()), to_string(buffer.strides())),
                   in(type));
}

/// For buffers that are used as a whole.
void check_memory(OpType type, const ConstBuffer& buffer) {
  const bool is_taken = buffer.is_contiguous() || (buffer.is_used_in_memory_order() && buffer.is_dense());
  if (!is_taken) refuse_strides(type, buffer);
  if (buffer.data() == nullptr && buffer.count() > 0) {
    throw ValueError(fmt::format("{}: the buffer's address is null", to_string(type)), in(type));
  }
}

/// For buffers that are cut into pieces along their first dimension.
void check_row_major(OpType type, const ConstBuffer& buffer) {
  if (!buffer.is_contiguous()) refuse_strides(type, buffer);
  check_memory(type, buffer);
}

/// See Operation::layout.
std::uint32_t layout_of(const ConstBuffer& buffer) {
  if (buffer.is_contiguous()) return 0;
  std::uint64_t digest = buffer.sizes().size();
  for (const auto size : buffer.sizes()) digest = digest_of({digest, static_cast<std::uint64_t>(size)});
  for (const auto stride : buffer.strides()) digest = digest_of({digest, static_cast<std::uint64_t>(stride)});
  return short_digest(digest);
}

/// Without its memory. Not by designated initialisers, for which GCC clears all of the 400 bytes first: 10 ns.
Operation operation_on(const ConstBuffer& buffer, OpType type) {
  Operation op;
  op.type = type;
  op.dtype = buffer.dtype();
  op.layout = layout_of(buffer);
  return op;
}

template <class List>
void check_list(OpType type, const List& buffers) {
  if (buffers.empty()) throw ValueError(fmt::format("{}: the list of buffers is empty", to_string(type)), in(type));
  for (const auto& buffer : buffers) {
    check_memory(type, buffer);
    if (buffer.device().type != buffers[0].device().type) {
      throw ValueError(fmt::format("{}: buffers on different devices", to_string(type)), in(type));
    }
  }
}

void check_same_dtype(OpType type, const ConstBuffer& a, const ConstBuffer& b) {
  if (a.dtype() != b.dtype()) {
    throw TypeError(
        fmt::format("{}: buffers of types {} and {}", to_string(type), to_string(a.dtype()), to_string(b.dtype())),
        in(type));
  }
}

/// For buffers whose contents become each other's: elements of the same type, in the same order.
void check_alike(OpType type, const ConstBuffer& a, const ConstBuffer& b) {
  check_same_dtype(type, a, b);
  if (a.is_contiguous() && b.is_contiguous()) return;
  if (a.sizes() == b.sizes() && a.strides() == b.strides()) return;
  throw ValueError(fmt::format("{}: the elements of its buffers lie in different orders: sizes {} with strides {}, and "
                               "sizes {} with strides {} (none: row-major); make them contiguous first",
                               to_string(type), to_string(a.sizes()), to_string(a.strides()), to_string(b.sizes()),
                               to_string(b.strides())),
                   in(type));
}

template <class List>
void check_all_alike(OpType type, const List& buffers, const ConstBuffer& like) {
  for (const auto& buffer : buffers) check_alike(type, buffer, like);
}

void check_count(OpType type, std::int64_t got, std::int64_t wanted, std::string_view what) {
  if (got != wanted) {
    throw ValueError(fmt::format("{}: {} has {} elements, not {}", to_string(type), what, got, wanted), in(type));
  }
}

void check_length(OpType type, std::size_t got, int wanted, std::string_view what) {
  if (got != static_cast<std::size_t>(wanted)) {
    throw ValueError(fmt::format("{}: {} of {} buffers, not of {}", to_string(type), what, got, wanted), in(type));
  }
}

void check_rank(OpType type, int rank, int size, std::string_view what) {
  if (rank < 0 || rank >= size) {
    throw ValueError(
        fmt::format("{}: {} {} is not a rank of this group: 0 to {}", to_string(type), what, rank, size - 1), in(type));
  }
}

void check_reduction(OpType type, const ConstBuffer& buffer, const ReduceOp& op) {
  const auto* const user = op.user();
  if (user == nullptr) return check_reducible(buffer.dtype(), op);
  if (buffer.device().type != DeviceType::cpu) {
    throw NotSupportedError(
        fmt::format("{}: the reduction \"{}\" is a function of the program, which can only be called "
                    "on host memory: copy the data there, or use a built-in reduction",
                    to_string(type), user->name),
        in(type));
  }
  const auto& sizes = buffer.sizes();
  const bool fits = buffer.dtype() == user->dtype &&
                    (user->dtype != DType::raw ||
                     (!sizes.empty() && static_cast<std::size_t>(sizes[sizes.size() - 1]) == user->element_bytes));
  if (!fits) {
    throw TypeError(fmt::format("{}: the reduction \"{}\" is for elements of type {} of {} bytes; the buffer has "
                                "elements of type {} and sizes {}",
                                to_string(type), user->name, to_string(user->dtype), user->element_bytes,
                                to_string(buffer.dtype()), to_string(sizes)),
                    in(type));
  }
}

/// For operations that are performed by the backend alone.
void refuse_user_reduction(OpType type, const ReduceOp& op) {
  if (op.user() == nullptr) return;
  throw NotSupportedError(fmt::format("{}: the reduction \"{}\" is a function of the program, which all_reduce, reduce "
                                      "and reduce_scatter call for one buffer at a time",
                                      to_string(type), op.user()->name),
                          in(type));
}

Bytes bytes_of(const Buffer& buffer) {
  return {static_cast<std::byte*>(buffer.data()), buffer.bytes()};
}
ConstBytes bytes_of(const ConstBuffer& buffer) {
  return {static_cast<const std::byte*>(buffer.data()), buffer.bytes()};
}

/// Divides a buffer into n equal parts.
template <class List, class Whole>
void divide(List& parts, Whole whole, int n) {
  const auto each = whole.size() / static_cast<std::size_t>(n);
  for (int i = 0; i < n; ++i) parts.push_back(whole.subspan(static_cast<std::size_t>(i) * each, each));
}

template <class Options>
SubmitOptions submit_options(const Device& device, const Options& options) {
  return {.device = device.type, .async_op = options.async_op, .timeout = options.timeout, .stream = options.stream};
}

std::span<const Buffer> view(const BufferList& list) {
  return {list.size() == 0 ? nullptr : &list[0], list.size()};
}
std::span<const ConstBuffer> view(const ConstBufferList& list) {
  return {list.size() == 0 ? nullptr : &list[0], list.size()};
}

Operation all_reduce_of(const Buffer& buffer, const ReduceOp& reduce) {
  auto op = operation_on(buffer, OpType::all_reduce);
  op.reduce = reduce;
  op.ins.push_back(bytes_of(buffer));
  op.outs.push_back(bytes_of(buffer));
  op.output_buffers = {&buffer, 1};
  return op;
}

}  // namespace

Work Operations::all_reduce(const Buffer& buffer, const AllReduceOptions& options) {
  constexpr auto type = OpType::all_reduce;
  check_memory(type, buffer);
  check_reduction(type, buffer, options.op);
  const auto op = all_reduce_of(buffer, options.op);
  return submit(op, submit_options(buffer.device(), options));
}

Work Operations::all_reduce(const BufferList& buffers, const AllReduceOptions& options) {
  constexpr auto type = OpType::all_reduce;
  check_list(type, buffers);
  check_reduction(type, buffers[0], options.op);
  for (const auto& buffer : buffers) {
    check_alike(type, buffer, buffers[0]);
    check_count(type, buffer.count(), buffers[0].count(), "a buffer of the list");
  }
  if (buffers.size() > 1) refuse_user_reduction(type, options.op);
  const auto kind = options.op.kind();
  if (buffers.size() > 1 && (kind == ReduceOp::Kind::avg || kind == ReduceOp::Kind::premul_sum)) {
    throw ValueError(fmt::format("{}: {} over a list of buffers is not defined; reduce them one by one",
                                 to_string(type), to_string(options.op)),
                     in(type));
  }
  if (buffers.size() > 1 && buffers[0].device().type != DeviceType::cpu) {
    throw NotSupportedError(fmt::format("{}: lists of buffers are supported in host memory only", to_string(type)),
                            in(type));
  }
  auto op = operation_on(buffers[0], type);
  op.reduce = options.op;
  for (const auto& buffer : buffers) {
    op.ins.push_back(bytes_of(buffer));
    op.outs.push_back(bytes_of(buffer));
  }
  op.output_buffers = view(buffers);
  return submit(op, submit_options(buffers[0].device(), options));
}

Work Operations::all_reduce_coalesced(const BufferList& buffers, const AllReduceOptions& options) {
  constexpr auto type = OpType::all_reduce_coalesced;
  check_list(type, buffers);
  refuse_user_reduction(type, options.op);
  check_reduction(type, buffers[0], options.op);
  for (const auto& buffer : buffers) check_same_dtype(type, buffer, buffers[0]);
  auto op = operation_on(buffers[0], type);
  op.reduce = options.op;
  for (const auto& buffer : buffers) op.members.push_back(all_reduce_of(buffer, options.op));
  op.output_buffers = view(buffers);
  return submit(op, submit_options(buffers[0].device(), options));
}

Work Operations::reduce(const Buffer& buffer, const ReduceOptions& options) {
  constexpr auto type = OpType::reduce;
  check_rank(type, options.root, size_, "root");
  check_memory(type, buffer);
  check_reduction(type, buffer, options.op);
  auto op = operation_on(buffer, type);
  op.reduce = options.op;
  op.root = options.root;
  op.ins.push_back(bytes_of(buffer));
  if (rank_ == options.root) op.outs.push_back(bytes_of(buffer));
  op.output_buffers = {&buffer, 1};
  return submit(op, submit_options(buffer.device(), options));
}

Work Operations::broadcast(const Buffer& buffer, const BroadcastOptions& options) {
  constexpr auto type = OpType::broadcast;
  check_rank(type, options.root, size_, "root");
  check_memory(type, buffer);
  auto op = operation_on(buffer, type);
  op.root = options.root;
  op.outs.push_back(bytes_of(buffer));
  op.output_buffers = {&buffer, 1};
  return submit(op, submit_options(buffer.device(), options));
}

namespace {

Operation all_gather_of(OpType type, const Buffer& output, const ConstBuffer& input, int size) {
  check_row_major(type, output);
  check_row_major(type, input);
  check_same_dtype(type, output, input);
  check_count(type, output.count(), input.count() * size, "the output");
  auto op = operation_on(input, OpType::all_gather_single);
  op.ins.push_back(bytes_of(input));
  divide(op.outs, bytes_of(output), size);
  op.input_buffers = {&input, 1};
  op.output_buffers = {&output, 1};
  return op;
}

Operation reduce_scatter_of(OpType type, const Buffer& output, const ConstBuffer& input, const ReduceOp& reduce,
                            int size) {
  check_row_major(type, output);
  check_row_major(type, input);
  check_same_dtype(type, output, input);
  check_reduction(type, output, reduce);
  check_count(type, input.count(), output.count() * size, "the input");
  auto op = operation_on(output, OpType::reduce_scatter_single);
  op.reduce = reduce;
  divide(op.ins, bytes_of(input), size);
  op.outs.push_back(bytes_of(output));
  op.input_buffers = {&input, 1};
  op.output_buffers = {&output, 1};
  return op;
}

}  // namespace

Work Operations::all_gather(const Buffer& output, const ConstBuffer& input, const AllGatherOptions& options) {
  const auto op = all_gather_of(OpType::all_gather_single, output, input, size_);
  return submit(op, submit_options(input.device(), options));
}

Work Operations::all_gather(const BufferList& outputs, const ConstBuffer& input, const AllGatherOptions& options) {
  constexpr auto type = OpType::all_gather;
  check_memory(type, input);
  check_length(type, outputs.size(), size_, "a list");
  check_list(type, outputs);
  check_all_alike(type, outputs, input);
  check_count(type, outputs[index_of(rank_)].count(), input.count(), "this rank's output");
  auto op = operation_on(input, type);
  op.ins.push_back(bytes_of(input));
  for (const auto& output : outputs) op.outs.push_back(bytes_of(output));
  op.input_buffers = {&input, 1};
  op.output_buffers = view(outputs);
  return submit(op, submit_options(input.device(), options));
}

Work Operations::all_gather_coalesced(const std::vector<BufferList>& outputs, const ConstBufferList& inputs,
                                      const AllGatherOptions& options) {
  constexpr auto type = OpType::all_gather_coalesced;
  check_length(type, outputs.size(), size_, "lists");
  check_list(type, inputs);
  auto op = operation_on(inputs[0], type);
  std::vector<Buffer> all;
  for (const auto& list : outputs) {
    check_length(type, list.size(), static_cast<int>(inputs.size()), "a rank's list");
    check_list(type, list);
    for (std::size_t j = 0; j < inputs.size(); ++j) {
      check_alike(type, list[j], inputs[j]);
      if (!(list[j].sizes() == inputs[j].sizes())) {
        throw ValueError(fmt::format("{}: an output of sizes {} for an input of sizes {}", to_string(type),
                                     to_string(list[j].sizes()), to_string(inputs[j].sizes())),
                         in(type));
      }
      all.push_back(list[j]);
    }
  }
  for (std::size_t j = 0; j < inputs.size(); ++j) {
    auto member = operation_on(inputs[j], OpType::all_gather);
    member.ins.push_back(bytes_of(inputs[j]));
    for (const auto& list : outputs) member.outs.push_back(bytes_of(list[j]));
    op.members.push_back(std::move(member));
  }
  op.input_buffers = view(inputs);
  op.output_buffers = all;
  return submit(op, submit_options(inputs[0].device(), options));
}

Work Operations::all_gather_coalesced(const BufferList& outputs, const ConstBufferList& inputs,
                                      const AllGatherOptions& options) {
  constexpr auto type = OpType::all_gather_coalesced;
  check_list(type, inputs);
  check_length(type, outputs.size(), static_cast<int>(inputs.size()), "outputs");
  auto op = operation_on(inputs[0], type);
  for (std::size_t j = 0; j < inputs.size(); ++j) {
    op.members.push_back(all_gather_of(type, outputs[j], inputs[j], size_));
  }
  op.input_buffers = view(inputs);
  op.output_buffers = view(outputs);
  return submit(op, submit_options(inputs[0].device(), options));
}

Work Operations::gather(const BufferList& outputs, const ConstBuffer& input, const GatherOptions& options) {
  constexpr auto type = OpType::gather;
  const bool is_root = rank_ == options.root;
  check_rank(type, options.root, size_, "root");
  check_memory(type, input);
  if (options.uneven) check_row_major(type, input);
  if (is_root) {
    check_length(type, outputs.size(), size_, "a list");
    check_list(type, outputs);
    check_count(type, outputs[index_of(rank_)].count(), input.count(), "the root's own output");
    for (const auto& output : outputs) {
      if (options.uneven) {
        check_same_dtype(type, output, input);
        check_row_major(type, output);
        continue;
      }
      check_alike(type, output, input);
      check_count(type, output.count(), input.count(), "an output (sizes may differ with uneven = true on all ranks)");
    }
  } else if (!outputs.empty()) {
    throw ValueError(fmt::format("{}: only rank {}, the root, takes outputs; rank {} must pass none", to_string(type),
                                 options.root, rank_),
                     in(type));
  }
  // No rank but the root knows the sizes of the others, so a gather of different sizes cannot choose its algorithm by
  // size as an even one does. In an all_to_all every pair of ranks compares sizes.
  auto op = operation_on(input, options.uneven ? OpType::all_to_all : type);
  op.root = options.root;
  for (int rank = 0; options.uneven && rank < size_; ++rank) {
    op.ins.push_back(rank == options.root ? bytes_of(input) : ConstBytes());
    if (!is_root) op.outs.push_back(Bytes());
  }
  if (!options.uneven) op.ins.push_back(bytes_of(input));
  for (const auto& output : outputs) op.outs.push_back(bytes_of(output));
  op.input_buffers = {&input, 1};
  op.output_buffers = view(outputs);
  return submit(op, submit_options(input.device(), options));
}

Work Operations::scatter(const Buffer& output, const ConstBufferList& inputs, const ScatterOptions& options) {
  constexpr auto type = OpType::scatter;
  check_rank(type, options.root, size_, "root");
  check_memory(type, output);
  auto op = operation_on(output, type);
  op.root = options.root;
  if (rank_ == options.root) {
    check_length(type, inputs.size(), size_, "a list");
    check_list(type, inputs);
    for (const auto& input : inputs) {
      check_alike(type, input, output);
      check_count(type, input.count(), output.count(), "an input");
    }
  } else if (!inputs.empty()) {
    throw ValueError(fmt::format("{}: only rank {}, the root, gives inputs; rank {} must pass none", to_string(type),
                                 options.root, rank_),
                     in(type));
  }
  for (const auto& input : inputs) op.ins.push_back(bytes_of(input));
  op.outs.push_back(bytes_of(output));
  op.input_buffers = view(inputs);
  op.output_buffers = {&output, 1};
  return submit(op, submit_options(output.device(), options));
}

Work Operations::reduce_scatter(const Buffer& output, const ConstBufferList& inputs,
                                const ReduceScatterOptions& options) {
  constexpr auto type = OpType::reduce_scatter;
  check_memory(type, output);
  check_length(type, inputs.size(), size_, "a list");
  check_list(type, inputs);
  check_all_alike(type, inputs, output);
  check_reduction(type, output, options.op);
  check_count(type, inputs[index_of(rank_)].count(), output.count(), "this rank's input");
  auto op = operation_on(output, type);
  op.reduce = options.op;
  for (const auto& input : inputs) op.ins.push_back(bytes_of(input));
  op.outs.push_back(bytes_of(output));
  op.input_buffers = view(inputs);
  op.output_buffers = {&output, 1};
  return submit(op, submit_options(output.device(), options));
}

Work Operations::reduce_scatter(const Buffer& output, const ConstBuffer& input, const ReduceScatterOptions& options) {
  const auto op = reduce_scatter_of(OpType::reduce_scatter_single, output, input, options.op, size_);
  return submit(op, submit_options(output.device(), options));
}

Work Operations::reduce_scatter_coalesced(const BufferList& outputs, const ConstBufferList& inputs,
                                          const ReduceScatterOptions& options) {
  constexpr auto type = OpType::coalesced;
  check_list(type, inputs);
  refuse_user_reduction(type, options.op);
  check_length(type, outputs.size(), static_cast<int>(inputs.size()), "outputs");
  auto op = operation_on(inputs[0], type);
  op.reduce = options.op;
  for (std::size_t j = 0; j < inputs.size(); ++j) {
    op.members.push_back(reduce_scatter_of(type, outputs[j], inputs[j], options.op, size_));
  }
  op.input_buffers = view(inputs);
  op.output_buffers = view(outputs);
  return submit(op, submit_options(inputs[0].device(), options));
}

namespace {

/// Divides a buffer into blocks of as many rows as `splits` says, or into equal blocks if it is empty.
template <class List, class Whole>
void divide_rows(List& parts, Whole whole, const ConstBuffer& buffer, const std::vector<std::int64_t>& splits, int size,
                 std::string_view what) {
  constexpr auto type = OpType::all_to_all_single;
  const auto rows = buffer.sizes().empty() ? std::int64_t{1} : buffer.sizes()[0];
  if (splits.empty()) {
    if (rows % size != 0) {
      throw ValueError(fmt::format("{}: {} rows of the {} are not divisible among {} ranks; give the splits",
                                   to_string(type), rows, what, size),
                       in(type));
    }
    return divide(parts, whole, size);
  }
  check_length(type, splits.size(), size, fmt::format("{} splits", what));
  const bool is_sound = std::all_of(splits.begin(), splits.end(), [&](auto n) { return n >= 0 && n <= rows; });
  if (!is_sound || std::accumulate(splits.begin(), splits.end(), std::int64_t{0}) != rows) {
    throw ValueError(fmt::format("{}: the {} splits do not add up to its {} rows", to_string(type), what, rows),
                     in(type));
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
  constexpr auto type = OpType::all_to_all_single;
  check_row_major(type, output);
  check_row_major(type, input);
  check_same_dtype(type, output, input);
  auto op = operation_on(input, type);
  divide_rows(op.ins, bytes_of(input), input, options.input_splits, size_, "input");
  divide_rows(op.outs, bytes_of(output), output, options.output_splits, size_, "output");
  op.input_buffers = {&input, 1};
  op.output_buffers = {&output, 1};
  return submit(op, submit_options(input.device(), options));
}

Work Operations::all_to_all(const BufferList& outputs, const ConstBufferList& inputs, const AllToAllOptions& options) {
  constexpr auto type = OpType::all_to_all;
  if (!options.input_splits.empty() || !options.output_splits.empty()) {
    throw ValueError(fmt::format("{}: splits are for single buffers; lists are split already", to_string(type)),
                     in(type));
  }
  check_length(type, inputs.size(), size_, "inputs");
  check_length(type, outputs.size(), size_, "outputs");
  check_list(type, inputs);
  check_list(type, outputs);
  check_all_alike(type, inputs, outputs[0]);
  check_all_alike(type, outputs, outputs[0]);
  auto op = operation_on(outputs[0], type);
  for (const auto& input : inputs) op.ins.push_back(bytes_of(input));
  for (const auto& output : outputs) op.outs.push_back(bytes_of(output));
  op.input_buffers = view(inputs);
  op.output_buffers = view(outputs);
  return submit(op, submit_options(inputs[0].device(), options));
}

Work Operations::barrier(const BarrierOptions& options) {
  static const Operation op{.type = OpType::barrier};
  auto how = submit_options(Device(), options);
  how.device = options.device ? std::optional(options.device->type) : std::nullopt;
  return submit(op, how);
}

namespace {

void check_tag(OpType type, int tag) {
  if (tag < 0) throw ValueError(fmt::format("{}: the tag {} is negative", to_string(type), tag), in(type));
}

}  // namespace

Work Operations::send(const ConstBuffer& buffer, int peer, const SendOptions& options) {
  constexpr auto type = OpType::send;
  check_rank(type, peer, size_, "peer");
  check_tag(type, options.tag);
  check_memory(type, buffer);
  auto op = operation_on(buffer, type);
  op.peer = peer;
  op.tag = options.tag;
  op.ins.push_back(bytes_of(buffer));
  op.input_buffers = {&buffer, 1};
  return submit(op, submit_options(buffer.device(), options));
}

Work Operations::recv(const Buffer& buffer, int peer, const RecvOptions& options) {
  constexpr auto type = OpType::recv;
  check_rank(type, peer, size_, "peer");
  check_tag(type, options.tag);
  check_memory(type, buffer);
  auto op = operation_on(buffer, type);
  op.peer = peer;
  op.tag = options.tag;
  op.outs.push_back(bytes_of(buffer));
  op.output_buffers = {&buffer, 1};
  return submit(op, submit_options(buffer.device(), options));
}

Work Operations::recv_any_source(const Buffer& buffer, const RecvOptions& options) {
  constexpr auto type = OpType::recv_any_source;
  check_tag(type, options.tag);
  check_memory(type, buffer);
  auto op = operation_on(buffer, type);
  op.peer = Operation::any_source;
  op.tag = options.tag;
  op.outs.push_back(bytes_of(buffer));
  op.output_buffers = {&buffer, 1};
  return submit(op, submit_options(buffer.device(), options));
}

}  // namespace cohort
