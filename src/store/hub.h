// SPDX-License-Identifier: BSD-3-Clause
//
// What the connections of one server share: the table, which process holds which rank, how much memory is taken. It
// lives on the server's event loop; only the counters at the end are read from other threads.
#pragma once

#include <cohort/deadline.h>
#include <cohort/store_server.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "core/log_rate_limiter.h"
#include "store/handshake.h"
#include "store/table.h"

namespace cohort {

struct HubOptions {
  std::optional<Secret> secret;
  handshake::JobTag job{};
  StoreLimits limits;
};

class Hub {
 public:
  explicit Hub(HubOptions options) : options_(std::move(options)) {}

  const HubOptions& options() const { return options_; }
  /// What warnings call the server.
  void set_name(std::string name) { name_ = std::move(name); }
  const Secret* secret() const { return options_.secret ? &*options_.secret : nullptr; }
  Table& table() { return table_; }

  /// What counts against the memory limit: the table, and what connections hold beside it.
  std::size_t memory() const { return table_.bytes() + held_; }
  /// Whether `more` bytes fit the memory limit now.
  bool has_room(std::size_t more) const { return memory() + more <= options_.limits.memory; }

  /// The memory that a connection holds: incomplete requests, unread replies, its will. Counts for as long as it lives.
  class Share {
   public:
    explicit Share(Hub& hub) : hub_(hub) {}
    ~Share() { set(0); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    void set(std::size_t bytes) noexcept {
      hub_.held_ += bytes - bytes_;
      bytes_ = bytes;
    }

   private:
    Hub& hub_;
    std::size_t bytes_ = 0;
  };

  /// Decides on a claim whose proof was right: welcome, wrong_job, rank_taken or too_many. A claim that is welcome is
  /// counted, and must leave() in the end.
  handshake::Verdict enter(const handshake::Claim& claim);
  void leave(const handshake::Claim& claim);
  /// Says in the log, now and then, that `peer` did not know the secret: usually another node with the wrong file.
  void warn_of_wrong_secret(const std::string& peer);

  /// The functions below may be called from any thread.
  void connection_accepted();
  void connection_authenticated();
  void connection_closed(bool was_authenticated, bool was_rejected);
  StoreServer::Stats stats() const;
  StoreServer::Joined wait_for_workers(std::size_t workers, Deadline deadline);
  bool wait_until_left(Deadline deadline, StoreServer::Clients clients);

 private:
  struct Holder {
    ProcessNonce process;
    std::size_t connections;
  };

  HubOptions options_;
  std::string name_;
  Table table_;
  std::size_t held_ = 0;
  std::map<int, Holder> holders_;
  LogRateLimiter wrong_secrets_{std::chrono::seconds(10)};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  StoreServer::Stats stats_;
  std::size_t clients_ = 0;          ///< authenticated connections other than the host's own
  std::size_t foreign_clients_ = 0;  ///< of these, the ones from other processes
  std::size_t workers_ = 0;
  std::set<int> worker_ranks_;
};

}  // namespace cohort
