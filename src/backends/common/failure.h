// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/backend.h>
#include <cohort/error.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace cohort {

/// Why a group has failed: thrown by every operation from then on.
struct Failure {
  ErrorKind kind = ErrorKind::backend;
  int rank = -1;      ///< the rank at fault
  int reporter = -1;  ///< the rank that detected it
  /// What the ranks were doing would add nothing to a missed deadline (failure_coordinator.h).
  bool is_explained = false;
  std::string text{};
};

/// The failure of a group that an error on one of its ranks means.
Failure failure_of(const std::exception_ptr& error);

/// A rank that has left its group in good order.
struct Departure {
  int rank = -1;
  std::string last_error{};  ///< what unwound its stack; empty if nothing did

  /// "rank 2 has left the group; its last error was: ...": for those who still needed it.
  Failure failure(int reporter = -1) const;
};

/// Asked now and then by those who wait for other ranks: returns the reason if waiting is in vain. May be null.
using Trouble = std::function<std::optional<Failure>()>;

/// Throws the error class that belongs to the failure's kind.
[[noreturn]] void throw_failure(const Failure& failure, ErrorContext context);

/// What the errors of a broken group end with.
inline constexpr std::string_view way_out = "; make a new group or call shrink()";

/// The text of the failure itself in what BrokenGroup says about it.
std::string_view cause_in(std::string_view text);

/// Throws the failure of a group on one rank. The first operation that gets it throws it as it is; later ones say since
/// which operation the group is broken, and what to do.
class BrokenGroup {
 public:
  [[noreturn]] void refuse(Failure failure, ErrorContext context, const Call& call);

 private:
  struct First {
    OpType op;
    std::uint64_t sequence;
  };
  std::mutex mutex_;
  std::optional<First> first_;
};

}  // namespace cohort
