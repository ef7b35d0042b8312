// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/bootstrap/survivors.h"

#include <cohort/error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "core/rank_index.h"

namespace cohort::shm {

namespace {

enum Decision : std::uint32_t { open, final_, called_off };

/// Polls, because this runs after a failure, when latency does not matter.
template <class Done>
void poll_until(Deadline deadline, Done&& done, const auto& on_timeout) {
  for (int round = 0; !done(); ++round) {
    if (deadline.expired()) on_timeout();
    if (round < 100) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
}

}  // namespace

Survivors::Survivors(Engine& engine, std::span<const int> excluded, Deadline deadline)
    : engine_(engine),
      size_(static_cast<std::size_t>(engine.size())),
      rank_(static_cast<std::size_t>(engine.rank())),
      board_(engine.board().agreement(), size_),
      excluded_(excluded.begin(), excluded.end()),
      deadline_(deadline) {}

bool Survivors::is_out(std::size_t rank) {
  const auto has = [&](const auto& list) {
    return std::find(list.begin(), list.end(), static_cast<int>(rank)) != list.end();
  };
  return has(excluded_) || has(engine_.dead_ranks()) ||
         (rank != rank_ && engine_.board().info(static_cast<int>(rank)).state.load(std::memory_order_acquire) ==
                               static_cast<std::uint32_t>(RankState::left));
}

void Survivors::vote() {
  board_.vote(rank_).store(round_, std::memory_order_release);
  const auto missing = [&] {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < size_; ++rank) {
      if (board_.vote(rank).load(std::memory_order_acquire) < round_ && !is_out(rank))
        ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  };
  poll_until(
      deadline_, [&] { return missing().empty(); },
      [&] {
        const auto late = missing();
        if (late.empty()) return;
        throw OperationTimeoutError(fmt::format("shrink: rank{} {} neither died nor called shrink",
                                                late.size() == 1 ? "" : "s", fmt::join(late, ", ")),
                                    {.group = engine_.group(), .op = "shrink", .rank = late.front()});
      });
}

std::vector<int> Survivors::decide() {
  for (std::size_t rank = 0; rank < size_; ++rank) {
    const bool stays = board_.vote(rank).load(std::memory_order_acquire) >= round_ && !is_out(rank);
    board_.proposal(rank_, rank).store(round_ * 2 + (stays ? 1 : 0), std::memory_order_relaxed);
  }
  std::uint32_t winner = 0;
  // Release: a rank that reads the winner also reads its proposal.
  if (board_.winner(round_).compare_exchange_strong(winner, static_cast<std::uint32_t>(rank_) + 1,
                                                    std::memory_order_acq_rel)) {
    winner = static_cast<std::uint32_t>(rank_) + 1;
  }
  std::vector<int> members;
  for (std::size_t rank = 0; rank < size_; ++rank) {
    const auto entry = board_.proposal(winner - 1, rank).load(std::memory_order_relaxed);
    // The winner has gone on to a later round: this round was called off, as this rank will find out.
    if (entry / 2 != round_) return {};
    if ((entry & 1U) != 0) members.push_back(static_cast<int>(rank));
  }
  return members;
}

std::string Survivors::exchange(const std::vector<int>& members, std::string_view ticket) {
  const auto root = static_cast<std::size_t>(members.front());
  if (!ticket.empty()) {
    if (ticket.size() >= ticket_bytes) throw Error("shrink: the ticket is too long");
    std::memset(board_.ticket(rank_), 0, ticket_bytes);
    std::memcpy(board_.ticket(rank_), ticket.data(), ticket.size());
    board_.ticket_round(rank_).store(round_, std::memory_order_release);
    return std::string(ticket);
  }
  poll_until(
      deadline_, [&] { return board_.ticket_round(root).load(std::memory_order_acquire) >= round_ || is_out(root); },
      [&] {
        throw OperationTimeoutError(fmt::format("shrink: rank {} did not answer", root),
                                    {.group = engine_.group(), .op = "shrink", .rank = static_cast<int>(root)});
      });
  if (board_.ticket_round(root).load(std::memory_order_acquire) != round_) {
    throw PeerLostError(fmt::format("rank {} died during shrink", root),
                        {.group = engine_.group(), .op = "shrink", .rank = static_cast<int>(root)});
  }
  return {board_.ticket(root), ::strnlen(board_.ticket(root), ticket_bytes)};
}

std::optional<Failure> Survivors::lost_among(const std::vector<int>& members) {
  for (const int rank : members) {
    if (!is_out(index_of(rank))) continue;
    return Failure{.kind = ErrorKind::peer_lost,
                   .rank = rank,
                   .reporter = static_cast<int>(rank_),
                   .text = fmt::format("rank {} died during shrink", rank)};
  }
  return std::nullopt;
}

bool Survivors::confirm(const std::vector<int>& members, bool is_ready) {
  auto& outcome = board_.outcome(round_);
  const auto settle = [&](std::uint32_t to) {
    std::uint32_t expected = open;
    outcome.compare_exchange_strong(expected, to, std::memory_order_acq_rel);
  };
  if (is_ready) {
    board_.ready(rank_).store(round_, std::memory_order_release);
  } else {
    settle(called_off);
  }
  poll_until(
      deadline_,
      [&] {
        if (outcome.load(std::memory_order_acquire) != open) return true;
        const auto ready = [&](int rank) {
          return board_.ready(index_of(rank)).load(std::memory_order_acquire) >= round_;
        };
        if (std::all_of(members.begin(), members.end(), ready)) settle(final_);
        // A member that announced itself ready and died since does not prevent this: the new group will report its
        // death.
        if (std::any_of(members.begin(), members.end(),
                        [&](int rank) { return !ready(rank) && is_out(index_of(rank)); })) {
          settle(called_off);
        }
        return false;
      },
      [&] { settle(called_off); });
  return outcome.load(std::memory_order_acquire) == final_;
}

SurvivorGroup Survivors::form_group(BootstrapFunction bootstrap, const std::string& name) {
  if (std::find(excluded_.begin(), excluded_.end(), static_cast<int>(rank_)) != excluded_.end()) return {};
  for (round_ = 1; round_ < AgreementBoard::rounds(size_); ++round_) {
    vote();
    const auto members = decide();
    if (members.empty()) continue;
    const auto place = std::find(members.begin(), members.end(), static_cast<int>(rank_));
    if (place == members.end()) {
      throw BackendError("shrink: the other survivors left this rank out",
                         {.group = engine_.group(), .op = "shrink", .rank = static_cast<int>(rank_)});
    }
    SurvivorGroup group{.ranks = members};
    std::exception_ptr problem;
    try {
      group.parts.emplace(bootstrap({.name = name,
                                     .group = fmt::format("{}:shrink:{}", engine_.group(), round_),
                                     .rank = static_cast<int>(place - members.begin()),
                                     .size = static_cast<int>(members.size()),
                                     .deadline = deadline_,
                                     .exchange = [&](std::string_view ticket) { return exchange(members, ticket); },
                                     .failure_check = [&] { return lost_among(members); }}));
    } catch (const PeerLostError&) {
      problem = std::current_exception();
    } catch (const OperationTimeoutError&) {
      problem = std::current_exception();
    }
    if (confirm(members, problem == nullptr)) return group;
    if (deadline_.expired() && problem) std::rethrow_exception(problem);
  }
  throw BackendError("shrink: nobody else is left to agree with", {.group = engine_.group(), .op = "shrink"});
}

}  // namespace cohort::shm
