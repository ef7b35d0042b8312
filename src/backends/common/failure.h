// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/backend.h>
#include <cohort/error.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace cohort {

/// Why a group has failed: thrown by every operation from then on. It stays a value on its way through detectors,
/// coordinators and the parts of a group; throw_failure() makes the error of it, which still carries it.
struct Failure {
  ErrorKind kind = ErrorKind::backend;
  int rank = -1;      ///< the rank at fault
  int reporter = -1;  ///< the rank that detected it
  /// What the ranks were doing would add nothing to a missed deadline (failure_coordinator.h).
  bool is_explained = false;
  std::string text{};
  /// For a part of a larger group (hybrid) that was ended because that group has failed: the failure of that group, in
  /// whose numbers the rank is.
  std::shared_ptr<const Failure> cause{};
};

/// The failure that an error was made of, or else the one that it means.
Failure failure_of(const BackendError& error);
/// The failure of a group that an error on one of its ranks means.
Failure failure_of(const std::exception_ptr& error);

/// Why a part could not be made, in the numbers of the group that was divided. The ranks outside the part are at their
/// next operation, where all ranks of the part look late: they are told which one is at fault.
Failure failure_of_part(const BackendError& error, const BackendSplit& part, int reporter);

/// The longest text that ranks tell each other through the store.
inline constexpr std::size_t most_failure_text = 4096;
/// What ranks tell each other through the store: "peer_lost 2 0 rank 2 is gone", where 0 is `is_explained`. The text is
/// cut to most_failure_text; `reporter` and `cause` are known to the own rank only.
std::string encode(const Failure& failure);
/// nullopt for anything that encode() does not return.
std::optional<Failure> decode_failure(std::string_view text);

/// A rank that has left its group in good order.
struct Departure {
  int rank = -1;
  std::string last_error{};  ///< what unwound its stack; empty if nothing did

  /// "rank 2 has left the group; its last error was: ...": for those who still needed it.
  Failure failure(int reporter = -1) const;
};

/// Asked now and then by those who wait for other ranks: returns the reason if waiting is in vain. May be null.
using FailureCheck = std::function<std::optional<Failure>()>;

/// The error of the class that belongs to the failure's kind.
std::exception_ptr error_of(const Failure& failure, ErrorContext context);
[[noreturn]] void throw_failure(const Failure& failure, ErrorContext context);

/// Throws the failure of a group on one rank. The first operation that gets it throws it as it is; later ones say since
/// which operation the group is broken, and what to do.
class BrokenGroup {
 public:
  [[noreturn]] void refuse(const Failure& failure, ErrorContext context, const Call& call);

 private:
  struct First {
    OpType op;
    std::uint64_t sequence;
  };
  std::mutex mutex_;
  std::optional<First> first_;
};

}  // namespace cohort
