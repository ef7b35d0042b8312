// SPDX-License-Identifier: BSD-3-Clause
//
// The operations of a process group: what ProcessGroup runs and Batch collects.
//
//   pg->all_reduce(x);                                            // in place, sum; the result is there on return
//   pg->all_reduce(x, {.op = cohort::ReduceOp::max(), .async_op = true, .timeout = 5s}).wait();
//   pg->broadcast(x, {.root = 2});
//   pg->all_gather(everything, mine);                             // one buffer: the ranks' parts one after another
//   pg->all_gather({a, b, c}, mine);                              // a list: one buffer for each rank, sizes may differ
//   pg->send(x, 1, {.tag = 7});    pg->recv(y, 0, {.tag = 7});
//
// Ranks are those of the group. Memory is contiguous; strided memory is refused. Arguments are checked before anything
// happens: a call that throws ValueError, TypeError or Error for its arguments has taken no sequence number, and the
// group goes on. Buffers without elements are fine everywhere; the operation still synchronises.
//
// Device memory: an operation is ordered on the stream given in its options and the host does not wait. With async_op
// it runs beside that stream, which Work::wait() orders behind it; Work::wait(timeout) blocks the host, and so does a
// barrier that is not asynchronous.
//
// What each dtype allows is in reduce_op.h. Complex numbers, bool, f16 and bf16 are reduced as one expects (f16 and
// bf16 accumulate in f32; the sum of bools is "or").
#pragma once

#include <cohort/buffer.h>
#include <cohort/export.h>
#include <cohort/op_type.h>
#include <cohort/reduce_op.h>
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
  /// Of device memory: the cudaStream_t whose order counts; the null stream where nothing is said.
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
  /// Rows (of the first dimension) that go to and come from each rank; empty: equal parts.
  std::vector<std::int64_t> output_splits{};
  std::vector<std::int64_t> input_splits{};
  bool async_op = false;
  Timeout timeout{};
  void* stream = nullptr;
};
struct BarrierOptions {
  std::optional<Device> device{};  ///< whose backend; else the default one
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

/// Buffers in a row: {a, b}, a vector of Buffers, or a range of things that convert to one.
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
}  // namespace detail

class COHORT_API Operations {
 public:
  virtual ~Operations() = default;
  Operations& operator=(const Operations&) = delete;

  /// Every rank's buffer becomes the reduction of all ranks' buffers, element by element.
  Work all_reduce(const Buffer& buffer, const AllReduceOptions& options = {});
  /// Across all buffers of all ranks, first those of a rank in order, then the ranks: every buffer gets the same
  /// result (of f16 and bf16 a rank's own sum is rounded too). avg and premul_sum are refused for more than one buffer.
  Work all_reduce(const BufferList& buffers, const AllReduceOptions& options = {});
  /// Each buffer by itself; shapes may differ, the dtype not.
  Work all_reduce_coalesced(const BufferList& buffers, const AllReduceOptions& options = {});

  /// The root's buffer becomes the reduction; the others' are left as they are.
  Work reduce(const Buffer& buffer, const ReduceOptions& options = {});

  /// Every rank's buffer becomes the root's.
  Work broadcast(const Buffer& buffer, const BroadcastOptions& options = {});

  /// output = all ranks' inputs one after another: output has size() times the elements of input.
  Work all_gather(const Buffer& output, const ConstBuffer& input, const AllGatherOptions& options = {});
  /// outputs[r] = rank r's input. Sizes may differ between ranks; outputs[rank()] is as large as input.
  Work all_gather(const BufferList& outputs, const ConstBuffer& input, const AllGatherOptions& options = {});
  /// outputs[r][j] = rank r's inputs[j].
  Work all_gather_coalesced(const std::vector<BufferList>& outputs, const ConstBufferList& inputs,
                            const AllGatherOptions& options = {});
  /// outputs[j] = all ranks' inputs[j] one after another.
  Work all_gather_coalesced(const BufferList& outputs, const ConstBufferList& inputs,
                            const AllGatherOptions& options = {});

  /// On the root outputs[r] = rank r's input; elsewhere `outputs` must be empty.
  Work gather(const BufferList& outputs, const ConstBuffer& input, const GatherOptions& options = {});

  /// output = the root's inputs[rank()]; away from the root `inputs` must be empty.
  Work scatter(const Buffer& output, const ConstBufferList& inputs, const ScatterOptions& options = {});

  /// output = the reduction of all ranks' inputs[rank()]. Sizes may differ between ranks.
  Work reduce_scatter(const Buffer& output, const ConstBufferList& inputs, const ReduceScatterOptions& options = {});
  /// The same with the inputs one after another in one buffer.
  Work reduce_scatter(const Buffer& output, const ConstBuffer& input, const ReduceScatterOptions& options = {});
  Work reduce_scatter_coalesced(const BufferList& outputs, const ConstBufferList& inputs,
                                const ReduceScatterOptions& options = {});

  /// Block r of the input goes to rank r, block r of the output comes from rank r.
  Work all_to_all(const Buffer& output, const ConstBuffer& input, const AllToAllOptions& options = {});
  /// inputs[r] goes to rank r, outputs[r] comes from there.
  Work all_to_all(const BufferList& outputs, const ConstBufferList& inputs, const AllToAllOptions& options = {});

  /// Returns when every rank has called it. What this rank issued before is done by then.
  Work barrier(const BarrierOptions& options = {});

  /// Matched by peer and tag (not negative), in order; the sizes must agree. Independent of collectives.
  Work send(const ConstBuffer& buffer, int peer, const SendOptions& options = {});
  Work recv(const Buffer& buffer, int peer, const RecvOptions& options = {});
  /// From whoever sends first; Work::source_rank() says who it was.
  Work recv_any_source(const Buffer& buffer, const RecvOptions& options = {});

 protected:
  Operations(int rank, int size) : rank_(rank), size_(size) {}
  Operations(const Operations&) = default;

  virtual Work submit(const Operation& op, const detail::SubmitOptions& options) = 0;

  const int rank_;
  const int size_;
};

}  // namespace cohort
