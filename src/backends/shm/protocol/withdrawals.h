// SPDX-License-Identifier: BSD-3-Clause
//
// A receiver may read a long message out of the sender's memory by itself. But the sender may give up in the meantime
// (its deadline passes, the group is aborted) and use the memory for something else. So the sender counts the messages
// it has withdrawn from this receiver, and announces a message together with the count. If the count is still the same
// when the receiver has read the last byte, then every byte was read from the message.
//
// Memory order. This is the reader's half of a sequence lock. A receiver that has read a byte which was written after
// the withdrawal must see the new count. withdraw() is an acquire, so that the writes to the memory stay behind it.
// is_valid() must come after the reads, which a load does not ensure; a read-modify-write that releases does (Boehm,
// "Can seqlocks get along with programming language memory models?", 2012). Both are rare: once per long message.
#pragma once

#include <atomic>
#include <cstdint>

namespace cohort::shm {

template <class Atomics>
class Withdrawals {
 public:
  /// For the sender: the count to announce.
  std::uint32_t count() const { return count_.load(std::memory_order_relaxed); }
  /// For the sender, before the memory of a message is used for something else.
  void withdraw() { count_.fetch_add(1, std::memory_order_acq_rel); }
  /// For the receiver, after it has read the whole message.
  bool is_valid(std::uint32_t announced) { return count_.fetch_add(0, std::memory_order_acq_rel) == announced; }

 private:
  typename Atomics::template Atomic<std::uint32_t> count_;
};

}  // namespace cohort::shm
