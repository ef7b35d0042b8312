// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>

#include <fmt/format.h>

#include <array>

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

}  // namespace

Error::Error(const std::string& message, ErrorContext context) : Error(ErrorKind::error, message, std::move(context)) {}

Error::Error(ErrorKind kind, const std::string& message, ErrorContext context)
    : std::runtime_error(with_context(message, context)),
      kind_(kind),
      message_(message),
      context_(std::move(context)) {}

}  // namespace cohort
