// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/engine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <utility>

#include "core/last_error.h"
#include "group/mismatch.h"

namespace cohort::shm {

namespace {
/// When the library is loaded, a process usually has one thread, and preparing takes no time.
[[maybe_unused]] const bool is_prepared_at_load = (StdAtomics::prepare(), true);
}  // namespace

Engine::Engine(EngineParts parts)
    : name_(std::move(parts.name)),
      group_(std::move(parts.group)),
      board_(std::move(parts.board)),
      rank_(parts.rank),
      size_(board_.ranks()),
      policy_(parts.policy),
      liveness_(std::move(parts.liveness)),
      peer_memory_(std::move(parts.peer_memory)),
      order_(board_, rank_, size_),
      at_exit_([this] { leave(); }) {
  StdAtomics::prepare();
}

Engine::~Engine() {
  leave();
}

void Engine::leave() noexcept {
  auto& info = board_.info(rank_);
  if (has_left(rank_)) return;
  const auto error = error_that_unwinds();
  info.last_error[error.copy(info.last_error.data(), info.last_error.size() - 1)] = '\0';
  // After everything this rank has posted, so that a rank that sees it leave also sees its posts.
  info.state.store(static_cast<std::uint32_t>(RankState::left), std::memory_order_release);
}

ErrorContext Engine::context(const Call& call) const {
  return {.group = group_, .op = std::string(to_string(call.op())), .sequence = call.sequence()};
}

void Engine::fail(const Failure& failure, const Call& call) {
  record_failure(board_, failure);
  broken_.refuse(*recorded_failure(board_), context(call), call);
}

void Engine::refuse(const Call& call) const {
  broken_.refuse(*recorded_failure(board_), context(call), call);
}

std::vector<int> Engine::dead_ranks() {
  const std::lock_guard lock(liveness_mutex_);
  return liveness_.dead();
}

std::uint32_t Engine::last_posted(int rank) const {
  std::uint32_t last = 0;
  for (std::uint32_t slot = 0; slot < post_depth; ++slot) {
    const auto posted = board_.post(rank, slot).flag.value.load(std::memory_order_acquire);
    if (posted != 0 && (last == 0 || reached(posted, last))) last = posted;
  }
  return last;
}

bool Engine::is_in_step(int rank) const {
  const auto last = last_posted(rank);
  return last != 0 && reached(last, entered_.load(std::memory_order_relaxed));
}

std::optional<Failure> Engine::find_failure(int awaited, Wait wait) {
  const auto departure_of = [&](int rank) {
    const auto& words = board_.info(rank).last_error;
    return Departure{.rank = rank, .last_error = {words.data(), ::strnlen(words.data(), words.size())}}.failure(rank_);
  };
  for (const int rank : dead_ranks()) {
    // A rank that ended after doing its part matters only to those that wait for more from it.
    const bool matters = wait == Wait::collective ? !is_in_step(rank) : awaited < 0;
    if (rank != awaited && !matters) continue;
    // A process that ended in good order has left its groups before.
    if (has_left(rank)) return departure_of(rank);
    return Failure{.kind = ErrorKind::peer_lost,
                   .rank = rank,
                   .reporter = rank_,
                   .text = fmt::format("rank {} (process {}) has died", rank,
                                       board_.info(rank).pid.load(std::memory_order_relaxed))};
  }
  if (awaited >= 0 && has_left(awaited)) return departure_of(awaited);
  return std::nullopt;
}

int Engine::furthest_behind(int awaited) const {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_ && !is_in_step(rank)) return rank;
  }
  int slowest = awaited;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_ || slowest < 0) continue;
    const auto theirs = board_.drained(rank).value.load(std::memory_order_relaxed);
    if (!reached(theirs, board_.drained(slowest).value.load(std::memory_order_relaxed))) slowest = rank;
  }
  return slowest;
}

std::string Engine::describe_progress(int awaited) const {
  std::vector<int> missing;
  std::vector<std::string> places;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_ || is_in_step(rank)) continue;
    missing.push_back(rank);
    const auto last = last_posted(rank);
    if (last == 0) {
      places.push_back(fmt::format("rank {} has not called any operation", rank));
      continue;
    }
    const auto& post = board_.post(rank, last);
    // A post has half of the number; the rest follows from this rank's own, which is not far from it.
    const auto own = sequence_.load(std::memory_order_relaxed);
    const auto ahead =
        static_cast<std::int32_t>(post.sequence.load(std::memory_order_relaxed) - static_cast<std::uint32_t>(own));
    places.push_back(fmt::format("rank {} last called {} #{}", rank,
                                 to_string(OpSignature::unpack(post.word.load(std::memory_order_relaxed))),
                                 static_cast<std::int64_t>(own) + ahead));
  }
  if (missing.empty()) {
    return awaited < 0 ? std::string("all ranks have entered it")
                       : fmt::format("all ranks have entered it; rank {} makes no progress", awaited);
  }
  return fmt::format("missing: rank{} {}; {}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", "),
                     fmt::join(places, "; "));
}

}  // namespace cohort::shm
