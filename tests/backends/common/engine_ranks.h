// SPDX-License-Identifier: BSD-3-Clause
//
// Ranks of a group on an engine, which may die: each is a process, and the store outlives them.
#pragma once

#include <cohort/cohort.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/groups.h"
#include "support/store_host.h"

namespace cohort::test {

class NeedsGloo : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto names = backend_names();
    if (std::find(names.begin(), names.end(), "gloo") == names.end()) GTEST_SKIP() << "this build has no gloo";
  }
};

class EngineRanks {
 public:
  EngineRanks(std::string backend, int size, int hosts = 0)
      : backend_(std::move(backend)), size_(size), hosts_(hosts) {}

  StorePtr store() const { return std::make_shared<TcpStore>(TcpStoreOptions{.endpoint = store_host_.endpoint()}); }
  ProcessGroupPtr join(int rank, std::chrono::milliseconds timeout = patient) const {
    return new_group(backend_, timeout, "cpu", {}, {.store = store(), .rank = rank, .size = size_});
  }
  /// Returns the exit status of each rank.
  std::vector<int> run(const std::function<int(int rank)>& body) const {
    std::vector<Process> processes;
    for (int rank = 0; rank < size_; ++rank) {
      processes.emplace_back([&, rank] {
        name_host(rank, size_, hosts_);
        return body(rank);
      });
    }
    std::vector<int> statuses;
    for (auto& each : processes) statuses.push_back(each.wait());
    return statuses;
  }

 private:
  const std::string backend_;
  const int size_;
  const int hosts_;
  const StoreHost store_host_;
};

/// Rank `victim` is killed while the others are in an all-reduce that it has not joined; each of them must report
/// within `at_most` that this rank was lost.
inline void expect_loss_is_noticed(const EngineRanks& ranks, int size, int victim, std::chrono::milliseconds at_most,
                                   std::size_t count = 100'000) {
  const auto statuses = ranks.run([&](int rank) {
    const auto group = ranks.join(rank);
    group->barrier();
    if (rank == victim) {
      for (int other = 0; other < size; ++other) {
        if (other != victim) ranks.store()->wait({"in/" + std::to_string(other)}, patient);
      }
      ranks.store()->set("killed", std::to_string(Deadline::Clock::now().time_since_epoch().count()));
      ::raise(SIGKILL);
    }
    ranks.store()->set("in/" + std::to_string(rank), "");
    std::vector<float> x(count);
    try {
      for (;;) group->all_reduce(x);
    } catch (const PeerLostError& e) {
      const auto now = Deadline::Clock::now();
      const Deadline::Clock::time_point killed{Deadline::Clock::duration(std::stoll(ranks.store()->get("killed")))};
      EXPECT_LT(now - killed, at_most);
      EXPECT_EQ(e.context().rank, victim) << e.what();
      EXPECT_EQ(e.context().op, "all_reduce");
      EXPECT_EQ(e.context().group, group->id());
      EXPECT_THROW(group->barrier(), PeerLostError) << "from now on, at once";
    }
    return 0;
  });
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_EQ(statuses[static_cast<std::size_t>(rank)], rank == victim ? 128 + SIGKILL : 0) << "rank " << rank;
  }
}

}  // namespace cohort::test
