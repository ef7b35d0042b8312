// SPDX-License-Identifier: BSD-3-Clause
//
// The latest operations of a rank, and how those of several ranks are compared. Every rank numbers the operations that
// it enters, so that what two ranks have under one number must be the same. On host memory a rank is in one operation
// at a time; on a device it enqueues many, which end in the order in which they were entered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "backends/common/failure.h"
#include "group/mismatch.h"

namespace cohort {

class RecentOps {
 public:
  /// Returns the number of the operation.
  std::uint64_t enter(const OpSignature& signature, std::uint64_t sequence);
  /// It has ended, and so have those that were entered before it.
  void exit(std::uint64_t number);
  /// The number of the first operation that has not ended; 0 if there is none.
  std::uint64_t current() const { return ended_ < entered_ ? ended_ + 1 : 0; }
  /// What the rank publishes; see OpNote.
  std::string note(int rank) const;

 private:
  struct Entered {
    OpSignature signature{};
    std::uint64_t sequence = 0;
  };
  std::deque<Entered> kept_;  ///< the newest is number `entered_`
  std::uint64_t entered_ = 0;
  std::uint64_t ended_ = 0;
};

/// A rank's note: "in 2" or "out 2", where 2 is the rank, and a line for each of its latest operations with the number,
/// the digest and the description.
struct OpNote {
  struct Op {
    std::string digest{};
    std::string text{};
  };
  int rank = -1;
  bool is_in = false;
  std::map<std::uint64_t, Op> ops{};

  static OpNote parse(const std::string& text);
  /// The number of the last operation; 0 if there is none.
  std::uint64_t newest() const { return ops.empty() ? 0 : ops.rbegin()->first; }
};

/// The first operation that two ranks called differently.
std::optional<Failure> first_mismatch(std::span<const OpNote> notes);

}  // namespace cohort
