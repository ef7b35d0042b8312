// SPDX-License-Identifier: BSD-3-Clause
#include "backends/common/recent_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>

namespace cohort {

namespace {
/// A rank that waits for nobody may be ahead of the others, so one is not enough: as many on either side of the first
/// operation that has not ended.
constexpr std::uint64_t noted = 8;
}  // namespace

std::uint64_t RecentOps::enter(const OpSignature& signature, std::uint64_t sequence) {
  kept_.push_back({.signature = signature, .sequence = sequence});
  return ++entered_;
}

void RecentOps::exit(std::uint64_t number) {
  ended_ = std::max(ended_, number);
  while (entered_ - kept_.size() + noted < ended_ + 1) kept_.pop_front();
}

std::string RecentOps::note(int rank) const {
  auto text = fmt::format("{} {}", current() != 0 ? "in" : "out", rank);
  const auto first = entered_ - kept_.size() + 1;
  const auto last = std::min(entered_, ended_ + noted);
  for (auto number = first; number <= last; ++number) {
    const auto& [signature, sequence] = kept_[number - first];
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
