// SPDX-License-Identifier: BSD-3-Clause
#include "run/losses.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <vector>

namespace cohort::tool {

int Losses::replacements() const {
  return std::accumulate(replacements_of_.begin(), replacements_of_.end(), 0,
                         [](int sum, const auto& each) { return sum + each.second; });
}

void Losses::lost(const RankEnd& end) {
  if (is_empty()) exit_code_ = end.status.shell_code();
  ends_[end.rank] = to_string(end.status);
}

AttemptOutcome Losses::outcome() const {
  if (is_empty()) return {.kind = AttemptOutcome::Kind::done};
  std::vector<std::string> texts;
  texts.reserve(ends_.size());
  for (const auto& [rank, end] : ends_) texts.push_back(fmt::format("rank {} {}", rank, end));
  return {.kind = AttemptOutcome::Kind::done,
          .exit_code = has_success_ ? ranks_were_lost : exit_code_,
          .text = fmt::format("the job has ended without all of its ranks: {}", fmt::join(texts, ", "))};
}

}  // namespace cohort::tool
