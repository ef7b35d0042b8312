// SPDX-License-Identifier: BSD-3-Clause
//
// During a stream of all_reduces over three hosts, one host is cut off or its ranks are killed: which error the others
// get, and how soon.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <sstream>

#include "job.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int host_count = 3;
/// The timeout of each all_reduce: far longer than detecting the loss may take.
constexpr auto patience = 20s;
/// What backend hybrid promises, and gloo alone achieves as well.
constexpr auto cut_off_limit = 5s;
constexpr auto killed_limit = 2s;

/// What one rank printed.
struct Caught {
  std::string kind{};
  int rank = -1;
  std::chrono::duration<double> after{};
  std::string text{};
};

Caught parse(const std::string& line, Clock::time_point begin) {
  // caught at NANOSECONDS KIND rank RANK: TEXT
  std::istringstream in(line);
  std::string word;
  std::int64_t at = 0;
  Caught caught;
  in >> word >> word >> at >> caught.kind >> word >> caught.rank;
  std::getline(in, caught.text);
  caught.after = std::chrono::nanoseconds(at) - begin.time_since_epoch();
  return caught;
}

Caught caught_by(const Job& job, int rank, Clock::time_point begin) {
  for (const auto& line : job.lines_of(rank)) {
    if (line.starts_with("caught")) return parse(line, begin);
  }
  return {};
}

struct Loss {
  std::string backend;
  int host;

  friend std::string to_string(const Loss& loss) { return fmt::format("{}Host{}", loss.backend, loss.host); }
  friend void PrintTo(const Loss& loss, std::ostream* out) { *out << to_string(loss); }
};

class LossOfAHost : public ::testing::TestWithParam<Loss> {
 protected:
  void SetUp() override {
    if (!Hosts::what_is_missing().empty()) GTEST_SKIP() << Hosts::what_is_missing();
  }
  static int victim() { return GetParam().host; }
  static bool is_victim(int rank) { return rank / 2 == victim(); }

  static Job start(const Hosts& hosts, const Command& flags = {}) {
    // The launchers would terminate the ranks of a failed job at once.
    Command all{"--grace-period", "40"};
    all.insert(all.end(), flags.begin(), flags.end());
    return Job(hosts, {STREAM_RANK, GetParam().backend, std::to_string(std::chrono::milliseconds(patience).count())},
               {.flags = all});
  }
  static void report(const char* what, int rank, const Caught& caught) {
    std::printf("%s, %s, host %d, rank %d: %s after %.2f s%s\n", GetParam().backend.c_str(), what, victim(), rank,
                caught.kind.c_str(), caught.after.count(), caught.text.c_str());
  }
  /// Host 0 has the job's store.
  static bool has_store(int host) { return host == 0; }
  /// A rank that has lost the store cannot be told who is gone.
  static void expect_no_store(const Caught& caught, const Job& job) {
    EXPECT_EQ(caught.kind, "peer_lost") << job.output();
    EXPECT_EQ(caught.rank, -1) << caught.text;
    EXPECT_THAT(caught.text, HasSubstr("the job's store cannot be reached any more"));
  }
  /// Every rank on the other hosts learns that it has lost a rank of this one, or the store if that is lost with it.
  static void expect_noticed(const Job& job, const char* what, Clock::time_point begin,
                             std::chrono::duration<double> limit, bool is_store_lost) {
    for (int rank = 0; rank < job.ranks(); ++rank) {
      if (is_victim(rank)) continue;
      const auto caught = caught_by(job, rank, begin);
      report(what, rank, caught);
      EXPECT_LE(caught.after, limit) << rank;
      if (is_store_lost) {
        expect_no_store(caught, job);
        continue;
      }
      EXPECT_EQ(caught.kind, "peer_lost") << rank << job.output();
      EXPECT_TRUE(is_victim(caught.rank)) << caught.text;
    }
  }
};

TEST_P(LossOfAHost, CutOff) {
  const Hosts hosts(host_count);
  auto job = start(hosts);
  ASSERT_TRUE(job.wait_for_all("ready", 60s)) << job.output();
  const auto begin = Clock::now();
  hosts.cut_off(victim());
  job.wait(90s);
  expect_noticed(job, "cut off", begin, cut_off_limit, has_store(victim()));
  // The ranks that were cut off notice the same of the others.
  for (const int rank : {2 * victim(), 2 * victim() + 1}) {
    const auto caught = caught_by(job, rank, begin);
    report("cut off itself", rank, caught);
    EXPECT_LE(caught.after, cut_off_limit) << rank;
    if (has_store(victim())) {
      EXPECT_EQ(caught.kind, "peer_lost") << job.output();
      EXPECT_TRUE(caught.rank >= 0 && !is_victim(caught.rank)) << caught.text;
    } else {
      expect_no_store(caught, job);
    }
  }
}

TEST_P(LossOfAHost, RanksKilled) {
  const Hosts hosts(host_count);
  auto job = start(hosts);
  ASSERT_TRUE(job.wait_for_all("ready", 60s)) << job.output();
  std::vector<pid_t> pids;
  for (const int rank : {2 * victim(), 2 * victim() + 1}) {
    for (const auto& line : job.lines_of(rank)) {
      if (line.starts_with("ready pid ")) pids.push_back(std::stoi(line.substr(10)));
    }
  }
  ASSERT_EQ(pids.size(), 2U);
  const auto begin = Clock::now();
  for (const auto pid : pids) ::kill(pid, SIGKILL);
  EXPECT_THAT(job.wait(90s), Each(128 + SIGKILL)) << job.output();
  expect_noticed(job, "killed", begin, killed_limit, false);
}

/// Kills the launcher as well: on host 0 the store of the job is lost with it.
TEST_P(LossOfAHost, EverythingKilled) {
  const Hosts hosts(host_count);
  auto job = start(hosts);
  ASSERT_TRUE(job.wait_for_all("ready", 60s)) << job.output();
  const auto begin = Clock::now();
  job.launcher(victim()).signal(SIGKILL);
  job.wait(90s);
  expect_noticed(job, "host killed", begin, killed_limit, has_store(victim()));
}

INSTANTIATE_TEST_SUITE_P(Clusters, LossOfAHost,
                         ::testing::Values(Loss{"hybrid", 2}, Loss{"hybrid", 0}, Loss{"gloo", 2}, Loss{"gloo", 0}),
                         [](const auto& each) { return to_string(each.param); });

/// Ranks that compute for hours send nothing; the launchers detect the loss.
TEST(LossOfAHostByItsLaunchers, CutOffWhileTheRanksAreSilent) {
  if (!Hosts::what_is_missing().empty()) GTEST_SKIP() << Hosts::what_is_missing();
  const Hosts hosts(2);
  Job job(hosts, {"sh", "-c", "echo ready; exec sleep 100"}, {.ranks_per_host = 1});
  ASSERT_TRUE(job.wait_for_all("ready", 60s)) << job.output();
  const auto begin = Clock::now();
  hosts.cut_off(1);
  EXPECT_THAT(job.wait(60s), Each(1)) << job.output();
  const std::chrono::duration<double> after = Clock::now() - begin;
  std::printf("launchers, cut off, host 1: all ended after %.2f s\n", after.count());
  EXPECT_LE(after, 25s);
  EXPECT_THAT(job.launcher(0).output(), HasSubstr("the launcher of node 1 "));
  EXPECT_THAT(job.launcher(1).output(), HasSubstr("the launcher of node 0 is gone"));
}

}  // namespace
}  // namespace cohort::test
