// SPDX-License-Identifier: BSD-3-Clause
//
// The data that ranks contribute, and the memory that holds it.
#pragma once

#include <cohort/dtype.h>
#include <cohort/process_group.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "group/arrangements.h"
#include "reduce/reference.h"

namespace cohort::test {

using ByteVector = std::vector<std::uint8_t>;

inline constexpr auto all_dtypes = std::to_array({DType::f16, DType::bf16, DType::f32, DType::f64, DType::i8, DType::u8,
                                                  DType::i16, DType::i32, DType::i64, DType::boolean, DType::complex64,
                                                  DType::complex128, DType::u16, DType::u32, DType::u64, DType::raw});

inline std::uint64_t scrambled(std::uint64_t x) {
  x = (x ^ (x >> 31U)) * 0x7fb5d329728ea185U;
  x = (x ^ (x >> 27U)) * 0x81dadef4bc2dd44dU;
  return x ^ (x >> 33U);
}

/// Whether reductions combine the ranks in rank order. If not, the contributions are numbers for which the order does
/// not matter.
inline bool is_order_known() {
  static const bool is_known = backend_under_test().empty();
  return is_known;
}

/// Elements first, first + 1, ... of the contribution of `rank`. Each depends only on its position, so that a part of a
/// long vector can be reduced separately. Most are ordinary numbers for which the order of addition matters; some are
/// arbitrary bits: infinities, NaN, subnormals, extremes. Bools are 0, 1, 2 or 255.
ByteVector values(DType dtype, int rank, std::size_t count, std::size_t first = 0);

/// Where buffers are allocated. Mixed: even ranks use group memory, odd ranks ordinary memory.
enum class Place { ordinary, group, mixed };
inline std::vector<Place> places() {
  if (is_over_shared_memory()) return {Place::ordinary, Place::group, Place::mixed};
  return {Place::ordinary};  // the backend has no group memory
}

inline std::string to_string(Place place) {
  return place == Place::ordinary ? "ordinary" : place == Place::group ? "group" : "mixed";
}

/// Memory at a given offset from a cache line, between guard bytes that must not change.
class Memory {
 public:
  Memory(ProcessGroup& group, Place place, std::size_t bytes, std::size_t offset = 0) : bytes_(bytes) {
    const auto all = bytes + offset + 3 * line;
    const bool is_wanted = place == Place::group || (place == Place::mixed && group.rank() % 2 == 0);
    if (is_wanted && group.capabilities("cpu").group_memory) {
      shared_ = group.allocate(all);
      base_ = static_cast<std::uint8_t*>(shared_.data());
    } else {
      ordinary_.resize(all);
      base_ = ordinary_.data();
    }
    end_ = base_ + all;
    std::memset(base_, fence, all);
    const auto address = reinterpret_cast<std::uintptr_t>(base_);
    data_ = base_ + line + (line - address % line) % line + offset;
  }
  Memory(ProcessGroup& group, Place place, const ByteVector& bytes, std::size_t offset = 0)
      : Memory(group, place, bytes.size(), offset) {
    assign(bytes);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  Memory(Memory&&) = default;
  Memory& operator=(Memory&&) = default;
  ~Memory() = default;

  std::uint8_t* data() const { return data_; }
  ByteVector bytes() const { return {data_, data_ + bytes_}; }
  void assign(const ByteVector& bytes) const { std::copy(bytes.begin(), bytes.end(), data_); }
  Buffer buffer(DType dtype) const { return {data_, dtype, {static_cast<std::int64_t>(bytes_ / size_of(dtype))}}; }
  bool fences_stand() const {
    const auto stands = [](std::uint8_t byte) { return byte == fence; };
    return std::all_of(base_, data_, stands) && std::all_of(data_ + bytes_, end_, stands);
  }

 private:
  static constexpr std::size_t line = 64;
  static constexpr std::uint8_t fence = 0xA5;
  GroupMemory shared_;
  ByteVector ordinary_;
  std::size_t bytes_;
  std::uint8_t* base_ = nullptr;
  std::uint8_t* end_ = nullptr;
  std::uint8_t* data_ = nullptr;
};

/// Compares bit by bit, except for the payloads of NaN, which are not promised. The message says where the first
/// difference is.
inline ::testing::AssertionResult same_bits(DType dtype, const ByteVector& got, const ByteVector& expected) {
  if (got.size() != expected.size()) {
    return ::testing::AssertionFailure() << got.size() << " bytes, not " << expected.size();
  }
  if (got == expected) return ::testing::AssertionSuccess();
  const auto a = with_one_nan(dtype, got);
  const auto b = with_one_nan(dtype, expected);
  const auto differ = std::mismatch(a.begin(), a.end(), b.begin());
  if (differ.first == a.end()) return ::testing::AssertionSuccess();
  const auto element = static_cast<std::size_t>(differ.first - a.begin()) / size_of(dtype);
  return ::testing::AssertionFailure() << to_string(dtype) << ": element " << element << " of "
                                       << got.size() / size_of(dtype) << " differs";
}

inline ::testing::AssertionResult holds(const Memory& memory, DType dtype, const ByteVector& expected) {
  if (!memory.fences_stand()) return ::testing::AssertionFailure() << "bytes around the buffer were written";
  return same_bits(dtype, memory.bytes(), expected);
}

}  // namespace cohort::test
