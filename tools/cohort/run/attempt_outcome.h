// SPDX-License-Identifier: BSD-3-Clause
//
// How an attempt to run the job ended, as all hosts see it.
#pragma once

#include <string>
#include <string_view>

namespace cohort::tool {

struct AttemptOutcome {
  enum class Kind { go, done, failed };

  Kind kind = Kind::done;
  int exit_code = 0;
  /// No restart, whatever --max-restarts says: a host is lost, or the user wants the job to end.
  bool is_final = false;
  /// What happened, for the user; one line.
  std::string text{};

  bool operator==(const AttemptOutcome&) const = default;
};

std::string encode(const AttemptOutcome& outcome);
/// Throws an Error where the text is not an encoded outcome.
AttemptOutcome decode_outcome(std::string_view text);

}  // namespace cohort::tool
