// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>

#include <fmt/format.h>

#include <array>
#include <exception>

#include "core/last_error.h"

namespace cohort {

std::string_view to_string(ErrorKind kind) {
  static constexpr std::array<std::string_view, 17> names = {
      "error",   "value",     "type",     "key",     "index", "assertion",   "not_supported", "distributed", "backend",
      "timeout", "peer_lost", "mismatch", "aborted", "store", "queue_empty", "network",       "socket"};
  return names.at(static_cast<std::size_t>(kind));
}

namespace {

std::string with_context(const std::string& message, const ErrorContext& context) {
  std::string details;
  auto add = [&details](const std::string& detail) { details += (details.empty() ? " [" : ", ") + detail; };
  if (!context.group.empty()) add("group " + context.group);
  if (!context.op.empty()) add("op " + context.op);
  if (context.sequence) add(fmt::format("seq {}", *context.sequence));
  if (context.rank) add(fmt::format("rank {}", *context.rank));
  return details.empty() ? message : message + details + "]";
}

/// Trivially destructible, because errors are also made while a thread ends.
struct LastError {
  std::array<char, last_error_bytes> text;
  std::size_t length;
};
thread_local constinit LastError last_error{};

void remember(std::string_view message) noexcept {
  last_error.length = message.copy(last_error.text.data(), last_error.text.size());
}

}  // namespace

std::string_view last_error_of_thread() noexcept {
  return {last_error.text.data(), last_error.length};
}

std::string_view error_that_unwinds() noexcept {
  return std::uncaught_exceptions() > 0 ? last_error_of_thread() : std::string_view();
}

Error::Error(const std::string& message, ErrorContext context) : Error(ErrorKind::error, message, std::move(context)) {}

Error::Error(ErrorKind kind, const std::string& message, ErrorContext context)
    : std::runtime_error(with_context(message, context)), kind_(kind), message_(message), context_(std::move(context)) {
  remember(message);
}

}  // namespace cohort
