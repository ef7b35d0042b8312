// SPDX-License-Identifier: BSD-3-Clause
//
// The description of an operation after its arguments have been checked. Backends perform it, and the flight recorder,
// the hooks, mismatch detection and error messages are derived from it. The operation's circumstances (sequence number,
// deadline, stream) are in a Call.
//
//   const auto op = cohort::Operation::broadcast(memory, root);    // the library makes them from users' calls
//   backend->perform(op, call);                                    // backend.h
//
// The memory of each type of operation, on rank r of n:
//
// ```text
//   type                      ins                            outs
//   all_reduce                the operand                    the result; may be the same memory
//   reduce                    the operand                    the result on the root, none elsewhere
//   broadcast                 none                           the data: read on the root, written elsewhere
//   all_gather                this rank's piece              n pieces; sizes may differ between ranks
//   gather                    this rank's piece              n pieces on the root, none elsewhere
//   scatter                   n pieces on the root,          this rank's piece
//                             none elsewhere
//   reduce_scatter            n pieces                       the reduction of all ranks' ins[r]
//   all_to_all                n pieces                       n pieces: outs[q] is what rank q has in its ins[r]
//   send                      the message                    none
//   recv, recv_any_source     none                           the message
//   barrier                   none                           none
// ```
//
// The types that end in _single are the same, but their pieces are consecutive parts of one buffer. A coalesced
// operation has no memory of its own: its members are performed one after another, as one operation.
#pragma once

#include <cohort/buffer.h>
#include <cohort/dtype.h>
#include <cohort/export.h>
#include <cohort/op_type.h>
#include <cohort/reduce_op.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace cohort {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

namespace detail {

/// A list that allocates only if it has more than N elements, and does not initialise unused elements.
template <class T, std::size_t N = 8>
class SmallList {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  // Not defaulted, because `SmallList x{}` would then zero the whole object first.
  SmallList() noexcept {}  // NOLINT(modernize-use-equals-default)
  explicit SmallList(std::span<const T> values) {
    for (const auto& value : values) push_back(value);
  }
  SmallList(const SmallList& other) : size_(other.size_), many_(other.many_) {
    std::memcpy(few_, other.few_, std::min(size_, N) * sizeof(T));
  }
  SmallList& operator=(const SmallList&) = delete;
  ~SmallList() = default;

  void push_back(const T& value) {
    if (size_ >= N) return push_back_to_many(value);
    std::memcpy(few_ + size_ * sizeof(T), &value, sizeof(T));
    ++size_;
  }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  const T* data() const { return size_ <= N ? reinterpret_cast<const T*>(few_) : many_.data(); }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  // NOLINTNEXTLINE(google-explicit-constructor): it is a span in all but storage
  operator std::span<const T>() const { return {data(), size_}; }

 private:
  [[gnu::noinline]] void push_back_to_many(const T& value) {
    if (size_ == N) many_.assign(begin(), end());
    many_.push_back(value);
    ++size_;
  }

  std::size_t size_ = 0;
  alignas(T) std::byte few_[N * sizeof(T)];  // NOLINT(*-avoid-c-arrays): uninitialised on purpose
  std::vector<T> many_;
};

}  // namespace detail

struct COHORT_API Operation {
  static constexpr int any_source = -1;

  OpType type = OpType::unknown;
  DType dtype = DType::u8;
  ReduceOp reduce{};  ///< for types that reduce
  int root = 0;       ///< for types that have a root
  int peer = 0;       ///< for send and recv; any_source for recv_any_source
  int tag = 0;        ///< for send and recv
  /// The order of the elements in memory: 0 if it is row-major, otherwise a digest of the sizes and strides.
  std::uint32_t layout = 0;
  detail::SmallList<ConstBytes> ins{};
  detail::SmallList<Bytes> outs{};
  std::vector<Operation> members{};

  /// The user's buffers, with their shapes; empty for internal operations of the library. Valid until the call that
  /// issued the operation returns.
  std::span<const ConstBuffer> input_buffers{};
  std::span<const Buffer> output_buffers{};

  /// The first of `ins` and of `outs`, for types with one buffer; an empty span if this rank has none.
  ConstBytes in() const { return ins.empty() ? ConstBytes() : ins[0]; }
  Bytes out() const { return outs.empty() ? Bytes() : outs[0]; }
  std::size_t count_of(ConstBytes piece) const { return piece.size() / size_of(dtype); }

  static Operation all_reduce(ConstBytes in, Bytes out, DType dtype, const ReduceOp& op) {
    return reduction(OpType::all_reduce, {&in, 1}, {&out, 1}, dtype, op);
  }
  /// `out` is empty on ranks other than the root.
  static Operation reduce_to(int root, ConstBytes in, Bytes out, DType dtype, const ReduceOp& op) {
    auto operation = reduction(OpType::reduce, {&in, 1}, {&out, out.data() == nullptr ? 0U : 1U}, dtype, op);
    operation.root = root;
    return operation;
  }
  static Operation reduce_scatter(std::span<const ConstBytes> ins, Bytes out, DType dtype, const ReduceOp& op) {
    return reduction(OpType::reduce_scatter, ins, {&out, 1}, dtype, op);
  }
  static Operation broadcast(Bytes data, int root, DType dtype = DType::u8) {
    return moving(OpType::broadcast, {}, {&data, 1}, root, dtype);
  }
  static Operation all_gather(ConstBytes in, std::span<const Bytes> outs, DType dtype = DType::u8) {
    return moving(OpType::all_gather, {&in, 1}, outs, 0, dtype);
  }
  static Operation gather(ConstBytes in, std::span<const Bytes> outs, int root, DType dtype = DType::u8) {
    return moving(OpType::gather, {&in, 1}, outs, root, dtype);
  }
  static Operation scatter(std::span<const ConstBytes> ins, Bytes out, int root, DType dtype = DType::u8) {
    return moving(OpType::scatter, ins, {&out, 1}, root, dtype);
  }
  static Operation all_to_all(std::span<const ConstBytes> ins, std::span<const Bytes> outs, DType dtype = DType::u8) {
    return moving(OpType::all_to_all, ins, outs, 0, dtype);
  }
  static Operation barrier() { return {.type = OpType::barrier}; }
  static Operation send(ConstBytes data, int peer, int tag, DType dtype = DType::u8) {
    auto operation = moving(OpType::send, {&data, 1}, {}, 0, dtype);
    operation.peer = peer;
    operation.tag = tag;
    return operation;
  }
  static Operation recv(Bytes data, int peer, int tag, DType dtype = DType::u8) {
    auto operation = moving(peer == any_source ? OpType::recv_any_source : OpType::recv, {}, {&data, 1}, 0, dtype);
    operation.peer = peer;
    operation.tag = tag;
    return operation;
  }

 private:
  static Operation moving(OpType type, std::span<const ConstBytes> ins, std::span<const Bytes> outs, int root,
                          DType dtype);
  static Operation reduction(OpType type, std::span<const ConstBytes> ins, std::span<const Bytes> outs, DType dtype,
                             const ReduceOp& op);
};

}  // namespace cohort
