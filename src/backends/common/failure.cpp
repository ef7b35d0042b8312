// SPDX-License-Identifier: BSD-3-Clause
#include "backends/common/failure.h"

#include <fmt/format.h>

#include <utility>

namespace cohort {

Failure Departure::failure(int reporter) const {
  return {.kind = ErrorKind::peer_lost,
          .rank = rank,
          .reporter = reporter,
          .text = fmt::format("rank {} has left the group{}{}", rank,
                              last_error.empty() ? "" : "; its last error was: ", last_error)};
}

Failure failure_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const BackendError& e) {
    return {.kind = e.kind(), .rank = e.context().rank.value_or(-1), .text = e.message()};
  } catch (const Error& e) {
    return {.text = e.message()};
  } catch (const std::exception& e) {
    return {.text = e.what()};
  }
}

void throw_failure(const Failure& failure, ErrorContext context) {
  if (failure.rank >= 0) context.rank = failure.rank;
  switch (failure.kind) {
    case ErrorKind::timeout:
      throw OperationTimeoutError(failure.text, std::move(context));
    case ErrorKind::peer_lost:
      throw PeerLostError(failure.text, std::move(context));
    case ErrorKind::mismatch:
      throw MismatchError(failure.text, std::move(context));
    case ErrorKind::aborted:
      throw AbortedError(failure.text, std::move(context));
    default:
      throw BackendError(failure.text, std::move(context));
  }
}

namespace {
constexpr std::string_view broken_since = "the group is broken since ";
}

std::string_view cause_in(std::string_view text) {
  const auto colon = text.find(": ");
  if (!text.starts_with(broken_since) || !text.ends_with(way_out) || colon == std::string_view::npos) return text;
  text.remove_suffix(way_out.size());
  return text.substr(colon + 2);
}

void BrokenGroup::refuse(Failure failure, ErrorContext context, const Call& call) {
  {
    const std::lock_guard lock(mutex_);
    if (!first_) first_ = {.op = call.op(), .sequence = call.sequence()};
    // A receive that is asked about repeatedly, or an operation in several parts, is still the first one.
    if (first_->op != call.op() || first_->sequence != call.sequence()) {
      failure.text =
          fmt::format("{}{} #{}: {}{}", broken_since, to_string(first_->op), first_->sequence, failure.text, way_out);
    }
  }
  throw_failure(failure, std::move(context));
}

}  // namespace cohort
