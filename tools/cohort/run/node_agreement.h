// SPDX-License-Identifier: BSD-3-Clause
//
// How the launchers of several hosts act as one: they meet in the store of the job at the start of each attempt, and
// end it with one outcome, the first that any of them reaches. Each of them registers a value that the store sets when
// the connection is lost, so that the death of a launcher is an outcome too.
//
// Keys, under cohort/run/: job (flags that must be the same everywhere), node/<n> (its host, pid and number of ranks),
// arrived/<attempt>, start/<attempt>, finished/<attempt>, outcome/<attempt>.
#pragma once

#include <cohort/tcp_store.h>

#include <asio/io_context.hpp>
#include <asio/thread_pool.hpp>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "run/attempt_outcome.h"
#include "run/launch_plan.h"
#include "run/rank_environment.h"

namespace cohort::tool {

class NodeAgreement {
 public:
  /// Called on the loop.
  struct Events {
    std::function<void(const World&)> on_start;             ///< all hosts have arrived
    std::function<void(const AttemptOutcome&)> on_outcome;  ///< the attempt is over, or will never start
    std::function<void(const std::string&)> on_delay;       ///< which hosts this one has been waiting for
  };

  NodeAgreement(asio::io_context& loop, const LaunchPlan& plan, TcpStoreOptions store, Events events);
  /// Disconnects. Where there is no outcome yet, the others learn that this host is lost.
  ~NodeAgreement();
  NodeAgreement(const NodeAgreement&) = delete;
  NodeAgreement& operator=(const NodeAgreement&) = delete;

  /// Answers with on_start and later on_outcome, or with on_outcome alone.
  void join(int attempt);
  /// This host's ranks have all ended: with success, or under --keep-going with losses that the outcome tells of.
  void finished(int attempt, const AttemptOutcome& own);
  /// Takes effect unless there is an outcome already.
  void propose(int attempt, const AttemptOutcome& outcome);

 private:
  void connect(Deadline deadline);
  void introduce();
  World meet(int attempt, Deadline deadline);
  World place() const;
  /// The key's value; leaving interrupts it.
  std::string await(const std::string& key, Deadline deadline);
  std::string await_start(int attempt, Deadline deadline);
  std::string missing_nodes() const;
  /// Under --keep-going a host may be lost without ending the job: waits for the outcome and meanwhile looks for such
  /// hosts.
  std::string await_outcome(int attempt);
  /// Settles the outcome if each host has finished or is gone.
  void settle_if_all_ended(Store& store, int attempt) const;
  void announce(const AttemptOutcome& outcome);
  void explain_delay(const std::string& text);
  template <class Work>
  void talk(Work&& work);

  asio::io_context& loop_;
  const LaunchPlan& plan_;
  TcpStoreOptions options_;
  std::shared_ptr<const Events> events_;  // what is posted may outlive this object
  std::mutex leaving_;
  std::atomic<bool> is_leaving_ = false;   // set under the lock
  std::shared_ptr<TcpStore> store_;        // for calls that wait for others; set under the lock
  std::atomic<bool> has_outcome_ = false;  // of the current attempt
  StorePtr talker_;                        // for calls that do not
  // Store calls block, the loop must not: one thread for those that wait for others, one for those that do not.
  asio::thread_pool waiting_thread_{1};
  asio::thread_pool talking_thread_{1};
};

}  // namespace cohort::tool
