// SPDX-License-Identifier: BSD-3-Clause
//
// The operations of a process group. ProcessGroup runs them, and Batch collects them.
//
//   pg->all_reduce(x);                                            // in place, sum; blocks until the result is there
//   pg->all_reduce(x, {.op = cohort::ReduceOp::max(), .async_op = true, .timeout = 5s}).wait();
//   pg->broadcast(x, {.root = 2});
//   pg->all_gather(everything, mine);                             // one buffer: the concatenation of all inputs
//   pg->all_gather({a, b, c}, mine);                              // a list: one buffer per rank; sizes may differ
//   pg->send(x, 1, {.tag = 7});    pg->recv(y, 0, {.tag = 7});
//   if (rank == 0) pg->gather({a, b, c}, mine, {.uneven = true});  // sizes that differ between ranks
//   if (rank != 0) pg->gather({}, mine, {.uneven = true});
//
// Ranks are numbered within the group. Memory must be contiguous; strided memory is refused. Arguments are checked
// before anything happens: a call that throws ValueError, TypeError or Error because of its arguments has taken no
// sequence number, and the group stays usable. Buffers may be empty in every operation; the operation still
// synchronises, but for nccl.
//
// For device memory, an operation is ordered on the stream given in its options, and the host does not wait. With
// async_op it runs concurrently with that stream until Work::wait() makes the stream wait for it. Work::wait(timeout)
// blocks the host, and so does a barrier without async_op.
//
// reduce_op.h lists the reductions of each dtype. Structs, and trivially copyable objects of other types that have no
// dtype, can be moved by every operation, and reduced by functions of your own (reduction.h).
#pragma once

#include <cohort/buffer.h>
#include <cohort/export.h>
#include <cohort/op_type.h>
#include <cohort/reduce_op.h>
#include <cohort/reduction.h>
#include <cohort/timeout.h>
#include <cohort/work.h>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cohort {

struct AllReduceOptions {
  ReduceOp op = ReduceOp::sum();
  bool async_op = false;
  Timeout timeout{};
  /// For device memory: the cudaStream_t that the operation is ordered on; null: the null stream.
  void* stream = nullptr;
};
struct ReduceOptions {
  int root = 0;
  ReduceOp op = ReduceOp::sum();
  bool async_op = false;
  Timeout timeout{};
  void* stream = nullptr;
};
struct BroadcastOptions {
  int root = 0;
  bool async_op = false;
  Timeout timeout{};
  void* stream = nullptr;
};
struct GatherOptions {
  int root = 0;
  /// Whether the sizes may differ between ranks; equal on all ranks, of which only the root knows the sizes. Such a
  /// gather is performed, recorded and reported as an all_to_all in which only the root receives.
  bool uneven = false;
  bool async_op = false;
  Timeout timeout{};
  void* stream = nullptr;
};
struct ScatterOptions {
  int root = 0;
  bool async_op = false;
  Timeout timeout{};
  void* stream = nullptr;
};
struct AllGatherOptions {
  bool async_op = false;
  Timeout timeout{};
  void* stream = nullptr;
};
struct ReduceScatterOptions {
  ReduceOp op = ReduceOp::sum();
  bool async_op = false;
  Timeout timeout{};
  void* stream = nullptr;
};
struct AllToAllOptions {
  /// The number of rows (of the first dimension) that are received from and sent to each rank; empty: equal parts.
  std::vector<std::int64_t> output_splits{};
  std::vector<std::int64_t> input_splits{};
  bool async_op = false;
  Timeout timeout{};
  void* stream = nullptr;
};
struct BarrierOptions {
  std::optional<Device> device{};  ///< the device whose backend is used; nullopt: the default backend
  bool async_op = false;
  Timeout timeout{};
  void* stream = nullptr;
};
struct SendOptions {
  int tag = 0;
  bool async_op = false;
  Timeout timeout{};
  void* stream = nullptr;
};
using RecvOptions = SendOptions;

/// A list of buffers, made from {a, b}, from a vector of buffers, or from a range whose elements convert to buffers.
template <class B>
class ListOf {
 public:
  ListOf() = default;
  ListOf(std::initializer_list<B> buffers) : buffers_(buffers) {}
  template <class R>
    requires(std::ranges::input_range<R> && std::convertible_to<std::ranges::range_reference_t<R>, B> &&
             !std::same_as<std::remove_cvref_t<R>, ListOf>)
  explicit(false) ListOf(R&& range) {
    for (auto&& each : range) buffers_.emplace_back(each);
  }

  std::size_t size() const noexcept { return buffers_.size(); }
  bool empty() const noexcept { return buffers_.empty(); }
  const B& operator[](std::size_t i) const { return buffers_[i]; }
  auto begin() const noexcept { return buffers_.begin(); }
  auto end() const noexcept { return buffers_.end(); }

 private:
  std::vector<B> buffers_;
};
using BufferList = ListOf<Buffer>;
using ConstBufferList = ListOf<ConstBuffer>;

struct Operation;
namespace detail {
struct SubmitOptions;

template <class T>
concept NoBuffer = !std::convertible_to<T, Buffer>;
template <class T>
concept NoConstBuffer = !std::convertible_to<T, ConstBuffer>;
template <class T>
concept NeitherBufferNorList = !std::convertible_to<T, Buffer> && !std::convertible_to<T, BufferList>;
template <class T>
concept NeitherConstBufferNorList = !std::convertible_to<T, ConstBuffer> && !std::convertible_to<T, ConstBufferList>;
template <class R>
concept RangeOfStructs =
    RangeOfMemory<R> && MovedAsBytes<std::ranges::range_value_t<R>> && std::convertible_to<R, Buffer>;

template <class... T>
inline constexpr bool is_allowed = false;

template <class... T>
Work refuse_arguments() {
  static_assert(is_allowed<T...>,
                "cohort: an argument is not memory that this operation can use. Allowed are contiguous ranges "
                "(std::vector, std::array, std::span, ...) whose elements are floating-point numbers, integers of 8 to "
                "64 bits, bool, std::byte, std::complex, cohort::Float16, cohort::BFloat16 or trivially copyable "
                "structs; cohort::Buffer; tensors, with <cohort/torch/tensor.h>; and types with cohort::BufferTraits. "
                "What is written to must not be const, and a container must not be a temporary. A single value is "
                "std::span(&value, 1), and std::vector<bool> has no elements in memory: use std::vector<char>.");
  return {};
}

template <class... T>
Work refuse_sum_of_structs() {
  static_assert(is_allowed<T...>,
                "cohort: structs have no sum. The built-in reductions are for floating-point numbers, integers of 8 to "
                "64 bits, bool, std::byte, std::complex, cohort::Float16 and cohort::BFloat16. To reduce objects of "
                "another trivially copyable type, pass a function of your own: {.op = reduction}, with a "
                "cohort::Reduction<T> (cohort/reduction.h).");
  return {};
}
}  // namespace detail

class COHORT_API Operations {
 public:
  virtual ~Operations() = default;
  Operations& operator=(const Operations&) = delete;

  /// Every rank's buffer becomes the reduction of all ranks' buffers, element by element.
  Work all_reduce(const Buffer& buffer, const AllReduceOptions& options = {});
  /// Reduces all buffers of all ranks to one result, which every buffer gets. Each rank first combines its own buffers
  /// in order, then the ranks are combined. For f16 and bf16, a rank's own result is rounded as well. avg and
  /// premul_sum are refused for more than one buffer.
  Work all_reduce(const BufferList& buffers, const AllReduceOptions& options = {});
  /// Reduces each buffer separately. The buffers may have different shapes but must have the same dtype.
  Work all_reduce_coalesced(const BufferList& buffers, const AllReduceOptions& options = {});

  /// The root's buffer becomes the reduction of all ranks' buffers; the other ranks' buffers do not change.
  Work reduce(const Buffer& buffer, const ReduceOptions& options = {});

  /// Every rank's buffer becomes a copy of the root's.
  Work broadcast(const Buffer& buffer, const BroadcastOptions& options = {});

  /// output = the concatenation of all ranks' inputs; it has size() times as many elements as input.
  Work all_gather(const Buffer& output, const ConstBuffer& input, const AllGatherOptions& options = {});
  /// outputs[r] = rank r's input. Sizes may differ between ranks; outputs[rank()] has the size of input.
  Work all_gather(const BufferList& outputs, const ConstBuffer& input, const AllGatherOptions& options = {});
  /// outputs[r][j] = rank r's inputs[j].
  Work all_gather_coalesced(const std::vector<BufferList>& outputs, const ConstBufferList& inputs,
                            const AllGatherOptions& options = {});
  /// outputs[j] = the concatenation of all ranks' inputs[j].
  Work all_gather_coalesced(const BufferList& outputs, const ConstBufferList& inputs,
                            const AllGatherOptions& options = {});

  /// On the root, outputs[r] = rank r's input; on the other ranks, `outputs` must be empty. All inputs have the same
  /// size, unless the options say `uneven`.
  Work gather(const BufferList& outputs, const ConstBuffer& input, const GatherOptions& options = {});

  /// output = the root's inputs[rank()]; on the other ranks, `inputs` must be empty.
  Work scatter(const Buffer& output, const ConstBufferList& inputs, const ScatterOptions& options = {});

  /// output = the reduction of all ranks' inputs[rank()]. Sizes may differ between ranks.
  Work reduce_scatter(const Buffer& output, const ConstBufferList& inputs, const ReduceScatterOptions& options = {});
  /// The same, with the inputs as consecutive parts of one buffer.
  Work reduce_scatter(const Buffer& output, const ConstBuffer& input, const ReduceScatterOptions& options = {});
  Work reduce_scatter_coalesced(const BufferList& outputs, const ConstBufferList& inputs,
                                const ReduceScatterOptions& options = {});

  /// Sends block r of the input to rank r, and receives block r of the output from rank r.
  Work all_to_all(const Buffer& output, const ConstBuffer& input, const AllToAllOptions& options = {});
  /// Sends inputs[r] to rank r, and receives outputs[r] from rank r.
  Work all_to_all(const BufferList& outputs, const ConstBufferList& inputs, const AllToAllOptions& options = {});

  /// Returns when every rank has called it. The operations that this rank issued before are done by then.
  Work barrier(const BarrierOptions& options = {});

  /// Sends and receives are matched by peer and tag, in order, independently of collectives (on nccl they take turns).
  /// The tag must not be negative, and the sizes must be equal.
  Work send(const ConstBuffer& buffer, int peer, const SendOptions& options = {});
  Work recv(const Buffer& buffer, int peer, const RecvOptions& options = {});
  /// Receives from the first rank that sends; Work::source_rank() returns which one it was.
  Work recv_any_source(const Buffer& buffer, const RecvOptions& options = {});

  // Arguments that are no memory do not compile, and the messages say what does. So does a sum of structs.
  template <detail::NeitherBufferNorList T>
  Work all_reduce(T&& /*buffer*/, const AllReduceOptions& /*options*/ = {}) {
    return detail::refuse_arguments<T>();
  }
  template <detail::RangeOfStructs T>
  Work all_reduce(T&& /*buffer*/) {
    return detail::refuse_sum_of_structs<T>();
  }
  template <detail::NoBuffer T>
  Work reduce(T&& /*buffer*/, const ReduceOptions& /*options*/ = {}) {
    return detail::refuse_arguments<T>();
  }
  template <detail::RangeOfStructs T>
  Work reduce(T&& /*buffer*/) {
    return detail::refuse_sum_of_structs<T>();
  }
  template <detail::NoBuffer T>
  Work broadcast(T&& /*buffer*/, const BroadcastOptions& /*options*/ = {}) {
    return detail::refuse_arguments<T>();
  }
  template <class O, class I>
    requires(detail::NeitherBufferNorList<O> || detail::NeitherConstBufferNorList<I>)
  Work all_gather(O&& /*outputs*/, I&& /*input*/, const AllGatherOptions& /*options*/ = {}) {
    return detail::refuse_arguments<O, I>();
  }
  template <class O, class I>
    requires(detail::NeitherBufferNorList<O> || detail::NeitherConstBufferNorList<I>)
  Work gather(O&& /*outputs*/, I&& /*input*/, const GatherOptions& /*options*/ = {}) {
    return detail::refuse_arguments<O, I>();
  }
  template <class O, class I>
    requires(detail::NeitherBufferNorList<O> || detail::NeitherConstBufferNorList<I>)
  Work scatter(O&& /*output*/, I&& /*inputs*/, const ScatterOptions& /*options*/ = {}) {
    return detail::refuse_arguments<O, I>();
  }
  template <class O, class I>
    requires(detail::NeitherBufferNorList<O> || detail::NeitherConstBufferNorList<I>)
  Work reduce_scatter(O&& /*output*/, I&& /*inputs*/, const ReduceScatterOptions& /*options*/ = {}) {
    return detail::refuse_arguments<O, I>();
  }
  template <detail::RangeOfStructs O, class I>
  Work reduce_scatter(O&& /*output*/, I&& /*inputs*/) {
    return detail::refuse_sum_of_structs<O, I>();
  }
  template <class O, class I>
    requires(detail::NeitherBufferNorList<O> || detail::NeitherConstBufferNorList<I>)
  Work all_to_all(O&& /*outputs*/, I&& /*inputs*/, const AllToAllOptions& /*options*/ = {}) {
    return detail::refuse_arguments<O, I>();
  }
  template <detail::NoConstBuffer T>
  Work send(T&& /*buffer*/, int /*peer*/, const SendOptions& /*options*/ = {}) {
    return detail::refuse_arguments<T>();
  }
  template <detail::NoBuffer T>
  Work recv(T&& /*buffer*/, int /*peer*/, const RecvOptions& /*options*/ = {}) {
    return detail::refuse_arguments<T>();
  }
  template <detail::NoBuffer T>
  Work recv_any_source(T&& /*buffer*/, const RecvOptions& /*options*/ = {}) {
    return detail::refuse_arguments<T>();
  }

 protected:
  Operations(int rank, int size) : rank_(rank), size_(size) {}
  Operations(const Operations&) = default;

  virtual Work submit(const Operation& op, const detail::SubmitOptions& options) = 0;

  const int rank_;
  const int size_;
};

}  // namespace cohort
