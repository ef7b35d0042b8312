// SPDX-License-Identifier: BSD-3-Clause
#include "backends/common/recent_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>

namespace cohort {

std::string RecentOps::note(int rank) const {
  auto text = fmt::format("{} {}", is_in_ ? "in" : "out", rank);
  const auto count = std::min<std::uint64_t>(entered_, kept_.size());
  for (auto number = entered_ - count + 1; number <= entered_; ++number) {
    const auto& [signature, sequence] = kept_[number % kept_.size()];
    text += fmt::format("\n{} {} {} #{}", number, signature.digest(sequence), to_string(signature), sequence);
  }
  return text;
}

OpNote OpNote::parse(const std::string& text) {
  OpNote note;
  std::istringstream lines(text);
  std::string word;
  lines >> word >> note.rank >> std::ws;
  note.is_in = word == "in";
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::uint64_t number = 0;
    Op op;
    words >> number >> op.digest >> std::ws;
    std::getline(words, op.text);
    note.ops.emplace(number, std::move(op));
  }
  return note;
}

std::optional<Failure> first_mismatch(std::span<const OpNote> notes) {
  struct Called {
    int rank;
    const OpNote::Op* op;
  };
  std::map<std::uint64_t, Called> reference;
  std::map<std::uint64_t, Called> different;
  for (const auto& note : notes) {
    for (const auto& [number, op] : note.ops) {
      const Called called{.rank = note.rank, .op = &op};
      const auto& first = reference.emplace(number, called).first->second;
      if (first.op->digest != op.digest) different.emplace(number, called);
    }
  }
  if (different.empty()) return std::nullopt;
  const auto& [number, odd] = *different.begin();
  const auto& first = reference.at(number);
  return Failure{.kind = ErrorKind::mismatch,
                 .rank = odd.rank,
                 .text = describe_mismatch(odd.rank, odd.op->text, first.rank, first.op->text)};
}

}  // namespace cohort
