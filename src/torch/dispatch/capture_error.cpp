// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/torch/capture_error.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace cohort {

namespace {

/// With a capital and a full stop; names of functions and operators stay as they are.
std::string sentence(std::string_view text) {
  std::string result(text);
  if (result.empty()) return result;
  const auto word = text.substr(0, text.find(' '));
  const bool is_word =
      std::all_of(word.begin(), word.end(), [](char c) { return (c >= 'a' && c <= 'z') || c == '\''; });
  if (is_word) result.front() = static_cast<char>(result.front() - 'a' + 'A');
  if (std::string_view(".!?").find(result.back()) == std::string_view::npos) result += '.';
  return result;
}

std::string message_from(CaptureRefusal reason, std::string_view context, std::string_view explanation,
                         const std::vector<std::string>& hints) {
  auto message = fmt::format("The step cannot be captured because of {} ({}).", context, to_string(reason));
  if (!explanation.empty()) message += '\n' + sentence(explanation);
  for (const auto& hint : hints) message += '\n' + sentence(hint);
  return message;
}

}  // namespace

std::string_view to_string(CaptureRefusal reason) {
  switch (reason) {
    case CaptureRefusal::host_read:
      return "host_read";
    case CaptureRefusal::host_write:
      return "host_write";
    case CaptureRefusal::changing_number:
      return "changing_number";
    case CaptureRefusal::changing_operators:
      return "changing_operators";
    case CaptureRefusal::unsupported_operator:
      return "unsupported_operator";
    case CaptureRefusal::unsupported_call:
      return "unsupported_call";
    case CaptureRefusal::different_ranks:
      return "different_ranks";
  }
  return "unknown";
}

CaptureError::CaptureError(CaptureRefusal reason, std::string context, std::string explanation,
                           std::vector<std::string> hints)
    : Error(message_from(reason, context, explanation, hints)),
      reason_(reason),
      refused_(std::move(context)),
      explanation_(std::move(explanation)),
      hints_(std::move(hints)) {}

}  // namespace cohort
