// SPDX-License-Identifier: BSD-3-Clause
#include "store/hub.h"

#include "core/log_format.h"

namespace cohort {

using handshake::Verdict;

handshake::Verdict Hub::enter(const handshake::Claim& claim) {
  if (claim.job != options_.job) return Verdict::wrong_job;
  const std::lock_guard lock(mutex_);
  if (stats_.connections >= options_.limits.connections) return Verdict::too_many;
  if (claim.rank) {
    const auto [it, is_new] = holders_.try_emplace(*claim.rank, Holder{claim.process, 0});
    if (!is_new && it->second.process != claim.process) return Verdict::rank_taken;
    ++it->second.connections;
  }
  ++stats_.connections;
  if (!claim.is_host) ++clients_;
  if (claim.process != process_nonce()) ++foreign_clients_;
  if (claim.is_worker) {
    ++workers_;
    // Bounded, since a client could join as one rank after another.
    if (claim.rank && worker_ranks_.size() < options_.limits.connections) worker_ranks_.insert(*claim.rank);
    changed_.notify_all();
  }
  return Verdict::welcome;
}

void Hub::leave(const handshake::Claim& claim) {
  if (claim.rank) {
    const auto it = holders_.find(*claim.rank);
    if (--it->second.connections == 0) holders_.erase(it);
  }
  const std::lock_guard lock(mutex_);
  --stats_.connections;
  if (!claim.is_host) --clients_;
  if (claim.process != process_nonce()) --foreign_clients_;
  changed_.notify_all();
}

void Hub::warn_of_wrong_secret(const std::string& peer) {
  const auto count = wrong_secrets_.count();
  if (count == 0) return;
  log_warn(
      "store at {}: refused a process at {} that does not have the job's secret{}; if it belongs to this job, give it "
      "the same COHORT_SECRET_FILE",
      name_, peer, count == 1 ? "" : fmt::format(" ({} times since the last warning)", count));
}

void Hub::connection_accepted() {
  const std::lock_guard lock(mutex_);
  ++stats_.accepted;
  ++stats_.unauthenticated;
}

void Hub::connection_closed(bool was_authenticated, bool was_rejected) {
  const std::lock_guard lock(mutex_);
  if (!was_authenticated) --stats_.unauthenticated;
  if (was_rejected) ++stats_.rejected;
}

void Hub::connection_authenticated() {
  const std::lock_guard lock(mutex_);
  --stats_.unauthenticated;
}

StoreServer::Stats Hub::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

StoreServer::Joined Hub::wait_for_workers(std::size_t workers, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto enough = [&] { return workers_ >= workers; };
  if (deadline.is_never()) {
    changed_.wait(lock, enough);
  } else {
    changed_.wait_until(lock, deadline.when(), enough);
  }
  return {workers_, {worker_ranks_.begin(), worker_ranks_.end()}};
}

bool Hub::wait_until_left(Deadline deadline, StoreServer::Clients clients) {
  std::unique_lock lock(mutex_);
  const auto alone = [&] { return (clients == StoreServer::Clients::all ? clients_ : foreign_clients_) == 0; };
  if (deadline.is_never()) {
    changed_.wait(lock, alone);
    return true;
  }
  return changed_.wait_until(lock, deadline.when(), alone);
}

}  // namespace cohort
