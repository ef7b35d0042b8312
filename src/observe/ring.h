// SPDX-License-Identifier: BSD-3-Clause
//
// The recorder's memory: a ring buffer of the newest operations of the process. Any thread writes it without a lock or
// a system call, and it can be read at any time. An operation is identified by its position, which is the number of
// operations recorded before it in this process. Positions are never reused, so a late update finds its slot taken by a
// newer position and does not change it.
#pragma once

#include <cohort/buffer.h>
#include <cohort/dtype.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/lazy_array.h"

namespace cohort::observe {

/// The input or output buffers of an operation. The sizes are borrowed.
struct Shape {
  DType dtype = DType::u8;
  std::uint16_t buffers = 0;
  std::int64_t elements = 0;              ///< in all buffers
  std::span<const std::int64_t> sizes{};  ///< of the first buffer

  static Shape of(const ConstBuffer& buffer) {
    return {buffer.dtype(), 1, buffer.count(), {buffer.sizes().data(), buffer.sizes().size()}};
  }
  /// The shape of a list of Buffer or ConstBuffer.
  template <class Buffers>
  static Shape of_all(const Buffers& buffers) {
    Shape shape;
    for (const ConstBuffer& buffer : buffers) {
      if (shape.buffers == 0) {
        shape = of(buffer);
      } else {
        ++shape.buffers;
        shape.elements += buffer.count();
      }
    }
    return shape;
  }
};

/// The beginning of an operation.
struct Event {
  const char* op = "";  ///< "all_reduce", ...: text with static storage duration
  bool is_p2p = false;
  /// The operation starts now, on this thread. This saves the call of started() and a read of the clock.
  bool starts_at_once = false;
  /// It has also ended, just now: it did not have to wait for anybody.
  bool ends_at_once = false;
  std::int64_t collective_sequence = 0;
  std::int64_t p2p_sequence = 0;
  std::int64_t op_id = 0;  ///< also counts the operations inside a batch
  Shape input{};
  Shape output{};
  std::int64_t timeout_ms = 0;
  int peer = -1;  ///< for point-to-point operations: the peer's rank in the group; -1: any
};

/// When and where an operation begins.
struct Origin {
  std::uint64_t now = 0;  ///< ticks
  std::uint32_t group = 0;
  std::uint32_t thread = 0;
};

/// Further dimensions are multiplied into the last one kept, so that the number of elements is right.
inline constexpr std::size_t kept_sizes = 4;
inline constexpr std::size_t kept_frames = 16;

/// A Shape as it is stored.
struct ShapeRecord {
  DType dtype = DType::u8;
  std::uint8_t dimensions = 0;
  std::uint16_t buffers = 0;
  std::int64_t elements = 0;
  std::array<std::int64_t, kept_sizes> sizes{};
};

/// A copy of one operation in the ring. Times are in ticks; 0: not yet.
struct Record {
  std::uint64_t position = 0;
  std::uint64_t created = 0;
  std::uint64_t started = 0;
  std::uint64_t completed = 0;
  std::uint64_t failed = 0;
  std::string_view op{};
  bool is_p2p = false;
  std::uint32_t group = 0;
  std::uint32_t thread = 0;
  std::int64_t collective_sequence = 0;
  std::int64_t p2p_sequence = 0;
  std::int64_t op_id = 0;
  std::uint32_t timeout_ms = 0;
  std::int32_t peer = -1;
  ShapeRecord input{};
  ShapeRecord output{};
  std::vector<const void*> frames{};  ///< if call stacks are kept
};

enum class Stage : std::uint8_t { started, completed, failed };

class Ring {
 public:
  static constexpr std::uint64_t no_position = ~std::uint64_t{0};

  /// Keeps the newest `capacity` operations; 0: none.
  Ring(std::size_t capacity, bool with_frames);

  std::size_t capacity() const noexcept { return capacity_; }
  bool has_frames() const noexcept { return !frames_.empty(); }
  /// The position that the next operation gets.
  std::uint64_t next() const noexcept { return next_.load(std::memory_order_relaxed); }
  /// The number of operations that were not recorded because another thread was interrupted while it held their slot,
  /// or because they were themselves overtaken by a whole round of the ring.
  std::uint64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }

  /// Returns the position of the new record, or no_position if it was dropped.
  std::uint64_t write(const Event& event, const Origin& origin, std::span<void* const> frames) noexcept;
  /// Notes the time of a stage, unless the slot has been taken by a newer operation.
  void note(std::uint64_t position, Stage stage, std::uint64_t when) noexcept;

  /// Returns the records from position `first` on, in recording order.
  std::vector<Record> read(std::uint64_t first) const;

 private:
  using Word = std::atomic<std::uint64_t>;
  static constexpr std::size_t words_per_slot = 24;
  struct alignas(64) Slot {
    std::array<Word, words_per_slot> words{};
  };
  struct Frames {
    std::array<Word, kept_frames> addresses{};
  };

  Slot& slot(std::uint64_t position) noexcept { return slots_[position & mask_]; }
  const Slot& slot(std::uint64_t position) const noexcept { return slots_[position & mask_]; }
  std::optional<Record> copy(std::uint64_t position) const;

  std::size_t capacity_;
  std::uint64_t mask_;
  LazyArray<Slot> slots_;
  LazyArray<Frames> frames_;
  alignas(64) std::atomic<std::uint64_t> next_{0};
  alignas(64) std::atomic<std::uint64_t> dropped_{0};
};

}  // namespace cohort::observe
