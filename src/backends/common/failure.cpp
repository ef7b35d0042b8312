// SPDX-License-Identifier: BSD-3-Clause
#include "backends/common/failure.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/parse.h"
#include "core/rank_index.h"

namespace cohort {

namespace {

constexpr std::array failure_kinds{ErrorKind::backend, ErrorKind::timeout, ErrorKind::peer_lost, ErrorKind::mismatch,
                                   ErrorKind::aborted};

/// The cause (ErrorContext::cause) of every error that is made of a failure.
class CarriedFailure final : public BackendError {
 public:
  explicit CarriedFailure(const Failure& carried)
      : BackendError(carried.kind, carried.text, {}), failure_(std::make_shared<Failure>(carried)) {}

  const Failure& failure() const noexcept { return *failure_; }

 private:
  std::shared_ptr<const Failure> failure_;
};

std::exception_ptr error_saying(const std::string& text, const Failure& failure, ErrorContext context) {
  if (failure.rank >= 0) context.rank = failure.rank;
  context.cause = std::make_exception_ptr(CarriedFailure(failure));
  switch (failure.kind) {
    case ErrorKind::timeout:
      return std::make_exception_ptr(OperationTimeoutError(text, std::move(context)));
    case ErrorKind::peer_lost:
      return std::make_exception_ptr(PeerLostError(text, std::move(context)));
    case ErrorKind::mismatch:
      return std::make_exception_ptr(MismatchError(text, std::move(context)));
    case ErrorKind::aborted:
      return std::make_exception_ptr(AbortedError(text, std::move(context)));
    default:
      return std::make_exception_ptr(BackendError(text, std::move(context)));
  }
}

}  // namespace

Failure Departure::failure(int reporter) const {
  return {.kind = ErrorKind::peer_lost,
          .rank = rank,
          .reporter = reporter,
          .text = fmt::format("rank {} has left the group{}{}", rank,
                              last_error.empty() ? "" : "; its last error was: ", last_error)};
}

Failure failure_of(const BackendError& error) {
  if (error.context().cause != nullptr) {
    try {
      std::rethrow_exception(error.context().cause);
    } catch (const CarriedFailure& carried) {
      auto failure = carried.failure();
      failure.rank = error.context().rank.value_or(-1);
      return failure;
    } catch (...) {  // what an engine threw
    }
  }
  return {.kind = error.kind(), .rank = error.context().rank.value_or(-1), .text = error.message()};
}

Failure failure_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const BackendError& e) {
    return failure_of(e);
  } catch (const Error& e) {
    return {.text = e.message()};
  } catch (const std::exception& e) {
    return {.text = e.what()};
  }
}

Failure failure_of_part(const BackendError& error, const BackendSplit& part, int reporter) {
  const auto rank = error.context().rank;
  return {.kind = error.kind(),
          .rank = rank ? part.ranks.at(index_of(*rank)) : -1,
          .reporter = reporter,
          .text = fmt::format("{} (these are numbers within the part; its ranks are {} here)", error.message(),
                              fmt::join(part.ranks, ", "))};
}

std::string encode(const Failure& failure) {
  return fmt::format("{} {} {:d} {}", to_string(failure.kind), failure.rank, failure.is_explained,
                     std::string_view(failure.text).substr(0, most_failure_text));
}

std::optional<Failure> decode_failure(std::string_view text) {
  std::array<std::string_view, 3> words;
  for (auto& word : words) {
    const auto blank = text.find(' ');
    if (blank == std::string_view::npos) return std::nullopt;
    word = text.substr(0, blank);
    text.remove_prefix(blank + 1);
  }
  const auto kind =
      std::ranges::find_if(failure_kinds, [&](const ErrorKind known) { return to_string(known) == words[0]; });
  const auto rank = parse_integer<int>(words[1]);
  const bool is_explained = words[2] == "1";
  if (kind == failure_kinds.end() || !rank || *rank < -1 || (!is_explained && words[2] != "0")) return std::nullopt;
  if (text.size() > most_failure_text) return std::nullopt;
  return Failure{.kind = *kind, .rank = *rank, .is_explained = is_explained, .text = std::string(text)};
}

std::exception_ptr error_of(const Failure& failure, ErrorContext context) {
  return error_saying(failure.text, failure, std::move(context));
}

void throw_failure(const Failure& failure, ErrorContext context) {
  std::rethrow_exception(error_of(failure, std::move(context)));
}

void BrokenGroup::refuse(const Failure& failure, ErrorContext context, const Call& call) {
  First first{.op = call.op(), .sequence = call.sequence()};
  {
    const std::lock_guard lock(mutex_);
    if (!first_) first_ = first;
    first = *first_;
  }
  // A receive that is asked about repeatedly, or an operation in several parts, is still the first one.
  if (first.op == call.op() && first.sequence == call.sequence()) throw_failure(failure, std::move(context));
  const auto text = fmt::format("the group is broken since {} #{}: {}; make a new group or call shrink()",
                                to_string(first.op), first.sequence, failure.text);
  std::rethrow_exception(error_saying(text, failure, std::move(context)));
}

}  // namespace cohort
