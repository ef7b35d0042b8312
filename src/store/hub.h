// SPDX-License-Identifier: BSD-3-Clause
//
// What the connections of one server share: the table, which process holds which rank, how much memory is taken. It
// lives on the server's event loop; only the counters at the end are read from other threads.
#pragma once

#include <cohort/deadline.h>
#include <cohort/store_server.h>

#include <condition_variable>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>

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
  const Secret* secret() const { return options_.secret ? &*options_.secret : nullptr; }
  Table& table() { return table_; }

  /// Whether `more` bytes fit the memory limit now.
  bool has_room(std::size_t more) const { return table_.bytes() + buffered_ + more <= options_.limits.memory; }
  /// Counts bytes that connections hold in transit.
  void buffered(std::ptrdiff_t change) { buffered_ += static_cast<std::size_t>(change); }

  /// Decides on a claim whose proof was right: welcome, wrong_job, rank_taken or too_many. A claim that is welcome is
  /// counted, and must leave() in the end.
  handshake::Verdict enter(const handshake::Claim& claim);
  void leave(const handshake::Claim& claim);

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
  Table table_;
  std::size_t buffered_ = 0;
  std::map<int, Holder> holders_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  StoreServer::Stats stats_;
  std::size_t clients_ = 0;          ///< authenticated connections other than the host's own
  std::size_t foreign_clients_ = 0;  ///< of these, the ones from other processes
  std::size_t workers_ = 0;
  std::set<int> worker_ranks_;
};

}  // namespace cohort
