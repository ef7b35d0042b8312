// SPDX-License-Identifier: BSD-3-Clause
//
// Each slot is a sequence lock whose data are atomic words, so that readers never block writers and no access is a data
// race. The first word, `control`, says which position the slot holds and whether a writer is active:
//
//   control = (position + 1) * 2 + busy;   0: never written
//
// Writers (the operation that takes the slot, and its later stages) enter by a compare-and-swap from an idle control to
// a busy one, so there is only one at a time, and leave by a release store of the idle control. A slot may be taken
// only from an older position, and a stage may be noted only at the same position; the compare-and-swap decides both.
//
// Readers copy the words between two loads of control, and keep the copy if both loads are equal and idle. This is
// correct because
//   - words are stored with release and loaded with acquire. If a reader sees a word of a later writer, that writer's
//     entry to the slot (sequenced before the store) happens before the reader's second load of control, which must
//     then return that entry or something newer: the two loads differ.
//   - control is left with release and first loaded with acquire, so a reader sees all words of the writer it names.
// (The textbook form uses fences and relaxed words. ThreadSanitizer does not support fences, and on x86-64 both forms
// compile to the same plain moves.)
//
// An operation costs three locked instructions and two reads of the tick counter, about 20 ns in all. The reads are
// most of it.
#include "observe/ring.h"

#include <algorithm>
#include <bit>

namespace cohort::observe {

namespace {

// The order puts the words that the common case writes (one-dimensional buffers) into the first cache lines of the
// slot.
enum At : std::size_t {
  control,
  created,
  started,
  ended,
  op_name,
  kind,
  group_and_thread,
  collective_sequence,
  p2p_sequence,
  op_id,
  timeout_and_peer,
  input_shape,
  input_elements,
  output_shape,
  output_elements,
  input_sizes,  // not written if is_flat()
  output_sizes = input_sizes + kept_sizes,
};

constexpr std::uint64_t busy = 1;
constexpr std::uint64_t idle_at(std::uint64_t position) {
  return (position + 1) * 2;
}

/// How often to retry while a writer is active. It usually leaves within a few nanoseconds; if it was interrupted,
/// others do not wait for it.
constexpr int most_tries = 200;

void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr std::uint64_t packed(std::uint64_t high, std::uint64_t low) {
  return high << 32U | low;
}
constexpr std::uint64_t high_half(std::uint64_t word) {
  return word >> 32U;
}
constexpr std::uint64_t low_half(std::uint64_t word) {
  return word & 0xffffffffU;
}

/// For one buffer of one dimension, the size is the number of elements and is not stored separately.
constexpr bool is_flat(std::size_t dimensions, std::size_t buffers) {
  return dimensions == 1 && buffers == 1;
}

/// The last bit of the tick count at which an operation ended says whether it failed.
constexpr std::uint64_t failed_bit = 1;

}  // namespace

Ring::Ring(std::size_t capacity, bool with_frames)
    : capacity_(capacity),
      // A power of two, so that finding a slot needs no division; the extra slots are never shown.
      mask_(std::bit_ceil(std::max<std::size_t>(capacity, 1)) - 1),
      slots_(capacity == 0 ? 0 : mask_ + 1),
      frames_(with_frames ? slots_.size() : 0) {}

std::uint64_t Ring::write(const Event& event, const Origin& origin, std::span<void* const> frames) noexcept {
  if (capacity_ == 0) return no_position;
  const auto position = next_.fetch_add(1, std::memory_order_relaxed);
  auto& words = slot(position).words;
  const auto mine = idle_at(position);
  auto seen = words[control].load(std::memory_order_relaxed);
  for (int tries = 0;; ++tries) {
    // The slot holds a newer position if this thread was interrupted for a whole round of the ring.
    if (seen >= mine || tries == most_tries) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return no_position;
    }
    if ((seen & busy) != 0) {
      pause();
      seen = words[control].load(std::memory_order_relaxed);
    } else if (words[control].compare_exchange_strong(seen, mine | busy, std::memory_order_acquire,
                                                      std::memory_order_relaxed)) {
      break;
    }
  }

  const auto put = [&words](std::size_t at, std::uint64_t value) { words[at].store(value, std::memory_order_release); };
  const auto put_shape = [&put](const Shape& shape, std::size_t at_shape, std::size_t at_sizes) {
    const auto dimensions = std::min(shape.sizes.size(), kept_sizes);
    put(at_shape, packed(static_cast<std::uint64_t>(shape.dtype) << 8U | dimensions, shape.buffers));
    put(at_shape + 1, static_cast<std::uint64_t>(shape.elements));
    if (is_flat(shape.sizes.size(), shape.buffers)) return;
    for (std::size_t i = 0; i < dimensions; ++i) {
      auto size = static_cast<std::uint64_t>(shape.sizes[i]);
      if (i == kept_sizes - 1) {
        for (const auto further : shape.sizes.subspan(kept_sizes)) size *= static_cast<std::uint64_t>(further);
      }
      put(at_sizes + i, size);
    }
  };
  constexpr std::int64_t longest = 0xffffffff;
  put(created, origin.now);
  put(started, event.starts_at_once ? origin.now : 0);
  put(ended, event.ends_at_once ? origin.now & ~failed_bit : 0);
  put(op_name, reinterpret_cast<std::uintptr_t>(event.op));
  put(kind, event.is_p2p ? 1 : 0);
  put(group_and_thread, packed(origin.group, origin.thread));
  put(collective_sequence, static_cast<std::uint64_t>(event.collective_sequence));
  put(p2p_sequence, static_cast<std::uint64_t>(event.p2p_sequence));
  put(op_id, static_cast<std::uint64_t>(event.op_id));
  put(timeout_and_peer, packed(static_cast<std::uint64_t>(std::clamp<std::int64_t>(event.timeout_ms, 0, longest)),
                               static_cast<std::uint32_t>(event.peer)));
  put_shape(event.input, input_shape, input_sizes);
  put_shape(event.output, output_shape, output_sizes);
  if (has_frames()) {
    auto& addresses = frames_[position & mask_].addresses;
    for (std::size_t i = 0; i < kept_frames; ++i) {
      addresses[i].store(i < frames.size() ? reinterpret_cast<std::uintptr_t>(frames[i]) : 0,
                         std::memory_order_release);
    }
  }
  words[control].store(mine, std::memory_order_release);
  return position;
}

void Ring::note(std::uint64_t position, Stage stage, std::uint64_t when) noexcept {
  if (position == no_position) return;
  auto& words = slot(position).words;
  const auto idle = idle_at(position);
  for (int tries = 0; tries < most_tries; ++tries) {
    auto seen = idle;
    if (words[control].compare_exchange_strong(seen, idle | busy, std::memory_order_acquire,
                                               std::memory_order_relaxed)) {
      if (stage == Stage::started) {
        words[started].store(when, std::memory_order_release);
      } else {
        const auto outcome = stage == Stage::failed ? failed_bit : 0;
        words[ended].store((when & ~failed_bit) | outcome, std::memory_order_release);
      }
      words[control].store(idle, std::memory_order_release);
      return;
    }
    if (seen != (idle | busy)) return;  // a newer operation has taken the slot
    pause();
  }
}

std::optional<Record> Ring::copy(std::uint64_t position) const {
  const auto& words = slot(position).words;
  for (int tries = 0; tries < most_tries; ++tries) {
    const auto before = words[control].load(std::memory_order_acquire);
    if ((before | busy) != (idle_at(position) | busy)) return std::nullopt;
    if ((before & busy) != 0) {
      pause();
      continue;
    }
    const auto get = [&words](std::size_t at) { return words[at].load(std::memory_order_acquire); };
    std::array<std::uint64_t, words_per_slot> copied{};
    for (std::size_t i = 1; i < words_per_slot; ++i) copied[i] = get(i);
    std::array<std::uint64_t, kept_frames> addresses{};
    if (has_frames()) {
      for (std::size_t i = 0; i < kept_frames; ++i) {
        addresses[i] = frames_[position & mask_].addresses[i].load(std::memory_order_acquire);
      }
    }
    if (words[control].load(std::memory_order_relaxed) != before) continue;

    const auto shape = [&copied](std::size_t at_shape, std::size_t at_sizes) {
      ShapeRecord result;
      result.dtype = static_cast<DType>(high_half(copied[at_shape]) >> 8U);
      result.dimensions = static_cast<std::uint8_t>(high_half(copied[at_shape]) & 0xffU);
      result.buffers = static_cast<std::uint16_t>(low_half(copied[at_shape]));
      result.elements = static_cast<std::int64_t>(copied[at_shape + 1]);
      const bool flat = is_flat(result.dimensions, result.buffers);
      for (std::size_t i = 0; i < result.dimensions; ++i) {
        result.sizes[i] = flat ? result.elements : static_cast<std::int64_t>(copied[at_sizes + i]);
      }
      return result;
    };
    const bool has_failed = (copied[ended] & failed_bit) != 0;
    Record record{
        .position = position,
        .created = copied[created],
        .started = copied[started],
        .completed = has_failed ? 0 : copied[ended],
        .failed = has_failed ? copied[ended] : 0,
        .op =  // NOLINTNEXTLINE(performance-no-int-to-ptr): the words hold one
        reinterpret_cast<const char*>(copied[op_name]),
        .is_p2p = copied[kind] != 0,
        .group = static_cast<std::uint32_t>(high_half(copied[group_and_thread])),
        .thread = static_cast<std::uint32_t>(low_half(copied[group_and_thread])),
        .collective_sequence = static_cast<std::int64_t>(copied[collective_sequence]),
        .p2p_sequence = static_cast<std::int64_t>(copied[p2p_sequence]),
        .op_id = static_cast<std::int64_t>(copied[op_id]),
        .timeout_ms = static_cast<std::uint32_t>(high_half(copied[timeout_and_peer])),
        .peer = static_cast<std::int32_t>(static_cast<std::uint32_t>(low_half(copied[timeout_and_peer]))),
        .input = shape(input_shape, input_sizes),
        .output = shape(output_shape, output_sizes),
    };
    for (const auto address : addresses) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): the words hold one
      if (address != 0) record.frames.push_back(reinterpret_cast<const void*>(address));
    }
    return record;
  }
  return std::nullopt;
}

std::vector<Record> Ring::read(std::uint64_t first) const {
  std::vector<Record> records;
  if (capacity_ == 0) return records;
  const auto end = next_.load(std::memory_order_acquire);
  first = std::max(first, end - std::min<std::uint64_t>(end, capacity_));
  for (auto position = first; position < end; ++position) {
    if (auto record = copy(position)) records.push_back(std::move(*record));
  }
  return records;
}

}  // namespace cohort::observe
