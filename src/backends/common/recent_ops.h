// SPDX-License-Identifier: BSD-3-Clause
//
// The latest operations of a rank, and how those of several ranks are compared. Every rank numbers the operations that
// it enters, so that what two ranks have under one number must be the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "backends/common/failure.h"
#include "group/mismatch.h"

namespace cohort {

class RecentOps {
 public:
  void enter(const OpSignature& signature, std::uint64_t sequence) {
    kept_[++entered_ % kept_.size()] = {.signature = signature, .sequence = sequence};
    is_in_ = true;
  }
  void exit() { is_in_ = false; }
  /// The number of the operation that this rank is in; 0 if it is in none.
  std::uint64_t current() const { return is_in_ ? entered_ : 0; }
  /// What the rank publishes; see OpNote.
  std::string note(int rank) const;

 private:
  struct Entered {
    OpSignature signature{};
    std::uint64_t sequence = 0;
  };
  /// A rank that waits for nobody may be ahead of the others, so one is not enough.
  std::array<Entered, 8> kept_{};
  std::uint64_t entered_ = 0;
  bool is_in_ = false;
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
