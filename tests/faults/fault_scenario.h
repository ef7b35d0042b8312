// SPDX-License-Identifier: BSD-3-Clause
//
// A fault scenario: ranks in processes of their own, a parent that does something to one of them, and what the others
// report. Every scenario ends: after its time limit the parent fails the test with what it knows and kills the ranks.
//
//   FaultScenario scenario(store(), 3, [](Member& me) {
//     auto group = me.join(30s);
//     me.say("ready");
//     me.attempt("barrier", [&] { group->barrier(); });
//   });
//   for (int rank = 0; rank < 3; ++rank) scenario.hear(rank, "ready");
//   scenario.signal(1, SIGKILL);
//   EXPECT_EQ(scenario.hear(0, "barrier").type, "PeerLostError");
#pragma once

#include <cohort/error.h>
#include <cohort/new_group.h>
#include <cohort/tcp_store.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/file_descriptor.h"
#include "support/ranks.h"
#include "support/store_host.h"

namespace cohort::test {

using Clock = std::chrono::steady_clock;

/// What a rank reports to its parent.
struct Word {
  std::string what{};
  std::string type{};  ///< class of the error, without its namespace; empty: success
  int at_fault = -1;
  std::string text{};
  Clock::time_point when{};
};
std::ostream& operator<<(std::ostream& out, const Word& word);

/// A rank's side of a scenario.
class Member {
 public:
  Member(int rank, int size, Endpoint store, std::string name, int socket)
      : rank_(rank), size_(size), store_(std::move(store)), name_(std::move(name)), socket_(socket) {}

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// For groups: the scenarios of a test share a store.
  const std::string& name() const { return name_; }
  StorePtr open_store() const;
  ProcessGroupPtr join(std::chrono::milliseconds timeout) const { return join(timeout, open_store()); }
  ProcessGroupPtr join(std::chrono::milliseconds timeout, StorePtr store) const;

  void say(const std::string& what, const std::string& text = {}) const;
  void say_error(const std::string& what, const std::exception& error) const;
  /// Runs the body and reports how it ended; true if it succeeded.
  bool attempt(const std::string& what, const std::function<void()>& body) const;
  /// Waits until the parent calls go().
  void await_go() const;
  bool is_told_to_go() const;
  /// Waits until the parent kills this process.
  [[noreturn]] static void idle();

 private:
  int rank_;
  int size_;
  Endpoint store_;
  std::string name_;
  int socket_;
};

class FaultScenario {
 public:
  using Body = std::function<void(Member&)>;

  FaultScenario(const StoreHost& store, int size, const Body& body,
                std::chrono::milliseconds bound = std::chrono::seconds(30));

  int size() const { return static_cast<int>(ranks_.size()); }
  /// The rank's next report, which must be about this.
  Word hear(int rank, const std::string& what);
  /// The same for every rank but one.
  std::vector<Word> hear_all(const std::string& what, int but = -1);
  void go(int rank) const;
  void go_all(int but = -1) const;
  Clock::time_point signal(int rank, int number) const;
  /// Waits until the rank's process has ended; returns its status as Process::wait() does.
  int end_of(int rank);
  /// Expects every rank but one to end with success.
  void expect_end(int but = -1);

 private:
  struct Rank {
    FileDescriptor socket{};
    std::optional<Process> process{};
    std::vector<Word> said{};
  };
  [[noreturn]] void give_up(int rank, const std::string& why) const;
  int remaining() const;
  Rank& at(int rank) { return ranks_.at(static_cast<std::size_t>(rank)); }
  const Rank& at(int rank) const { return ranks_.at(static_cast<std::size_t>(rank)); }

  std::vector<Rank> ranks_;
  const Clock::time_point until_;
  const bool had_failed_ = ::testing::Test::
      HasFailure();  ///< before the fork: the ranks inherit it and would report it as their own failure
};

/// Checks at the end of each test that nothing is left behind: no process, and so no abstract socket of one, no
/// abstract socket in this process, no name in /dev/shm.
class FaultTest : public ::testing::Test {
 protected:
  FaultTest();
  const StoreHost& store() const { return *store_; }
  void TearDown() override;

 private:
  const std::set<std::string> names_before_ = shared_memory_names();
  /// The ends of a pipe. Every process of the test inherits the one for writing, so reading ends with the last of them.
  FileDescriptor processes_end_;
  FileDescriptor process_lives_;
  std::optional<StoreHost> store_{std::in_place};

  static std::set<std::string> shared_memory_names();
  static std::vector<std::string> own_sockets();
};

inline std::int64_t milliseconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(to - from).count();
}

/// Open descriptors of this process.
std::size_t open_descriptors();

/// Runs an all_reduce over the group and checks the result.
void expect_all_reduce_works(ProcessGroup& group, std::size_t elements);

/// Prints a line of the fault table: what was done, which error the others got, and after how long.
void note(const std::string& scenario, const Word& got, std::int64_t milliseconds);

}  // namespace cohort::test
