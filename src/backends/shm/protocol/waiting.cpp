// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/protocol/waiting.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/rank_index.h"

namespace cohort::shm {

namespace {

using std::chrono::milliseconds;

/// The processes of a host share this clock.
std::int64_t now() {
  return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// A rank that waits says so every 20 ms, or later on a busy machine.
constexpr milliseconds keepalive_timeout{300};
constexpr milliseconds after_giving_up{1000};

}  // namespace

Waiting::Waiting(const Board& board, int rank) : board_(board), rank_(rank), waits_(index_of(board.ranks())) {}

void Waiting::begin(int awaited) {
  const std::lock_guard lock(mutex_);
  for (auto& each : waits_) each.gave_up_until = 0;  // it waits for somebody else now
  ++waits_[index_of(awaited)].count;
  publish();
}

void Waiting::go_on() {
  const std::lock_guard lock(mutex_);
  publish();
}

void Waiting::end(int awaited, bool gave_up) {
  const std::lock_guard lock(mutex_);
  auto& waits = waits_[index_of(awaited)];
  --waits.count;
  if (gave_up) waits.gave_up_until = now() + after_giving_up.count();
  publish();
}

void Waiting::publish() {
  const auto time = now();
  std::int64_t until = 0;
  auto& published = board_.info(rank_).awaited;
  for (std::size_t i = 0; i < published.ranks.size(); ++i) {
    std::uint64_t word = 0;
    for (std::size_t rank = i * 64; rank < std::min(waits_.size(), (i + 1) * 64); ++rank) {
      const auto& waits = waits_[rank];
      const auto valid_until = std::max(waits.gave_up_until, waits.count > 0 ? time + keepalive_timeout.count() : 0);
      if (valid_until <= time) continue;
      word |= std::uint64_t{1} << (rank % 64);
      until = std::max(until, valid_until);
    }
    published.ranks[i].store(word, std::memory_order_relaxed);
  }
  published.until.store(until, std::memory_order_release);
}

std::vector<int> Waiting::awaited_by(int rank) const {
  std::vector<int> ranks;
  const auto& theirs = board_.info(rank).awaited;
  if (now() > theirs.until.load(std::memory_order_acquire)) return ranks;
  for (int each = 0; each < board_.ranks(); ++each) {
    const auto word = theirs.ranks[index_of(each) / 64].load(std::memory_order_relaxed);
    if ((word >> (index_of(each) % 64) & 1U) != 0) ranks.push_back(each);
  }
  return ranks;
}

std::vector<int> Waiting::chain(int awaited) const {
  if (awaited < 0) return {awaited};
  constexpr int nobody = -1;
  std::vector<int> found_through(waits_.size(), nobody);
  // This rank's own waits lead back to where the search began.
  found_through[index_of(rank_)] = rank_;
  found_through[index_of(awaited)] = rank_;
  std::vector<int> found{awaited};
  for (std::size_t next = 0; next < found.size(); ++next) {
    const auto ranks = awaited_by(found[next]);
    if (ranks.empty()) {
      std::vector<int> chain;
      for (int each = found[next]; each != rank_; each = found_through[index_of(each)]) chain.push_back(each);
      std::reverse(chain.begin(), chain.end());
      return chain;
    }
    for (const int each : ranks) {
      if (found_through[index_of(each)] != nobody) continue;
      found_through[index_of(each)] = found[next];
      found.push_back(each);
    }
  }
  return {awaited};
}

void LongWait::goes_on(int awaited) {
  if (awaited == awaited_) {
    if (awaited >= 0) waiting_.go_on();
    return;
  }
  if (awaited_ >= 0) waiting_.end(awaited_, false);
  awaited_ = awaited;
  if (awaited >= 0) waiting_.begin(awaited);
}

std::string describe_rest(const std::vector<int>& chain) {
  std::string text;
  for (std::size_t i = 1; i < chain.size(); ++i) text += fmt::format(", which waits for rank {}", chain[i]);
  return text;
}

}  // namespace cohort::shm
