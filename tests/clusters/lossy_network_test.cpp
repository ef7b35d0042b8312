// SPDX-License-Identifier: BSD-3-Clause
//
// A slow network that loses frames, and one that falls silent while its links stay up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "job.h"
#include "relay.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using ::testing::Each;
using ::testing::HasSubstr;

class LossyNetworkTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!Hosts::what_is_missing().empty()) GTEST_SKIP() << Hosts::what_is_missing();
  }
};

TEST_P(LossyNetworkTest, GroupsFormAndWorkOverASlowNetworkThatLosesFrames) {
  const Hosts hosts(2, Hosts::Switch::none);
  const Relay relay(hosts, {.delay = 20ms, .loss = 0.005});
  Job job(hosts, {STREAM_RANK, GetParam(), "20000", "50"});
  EXPECT_THAT(job.wait(110s), Each(0)) << job.output();
  EXPECT_EQ(count_of(job.output(), "finished"), 4U) << job.output();
  EXPECT_GT(relay.lost(), 0U);
}

TEST_P(LossyNetworkTest, ADeadlineHoldsWhenAHostFallsSilent) {
  constexpr auto timeout = 1500ms;  // shorter than the time after which a silent host counts as lost
  const Hosts hosts(2, Hosts::Switch::none);
  Relay relay(hosts, {.delay = 2ms});
  Job job(hosts, {STREAM_RANK, GetParam(), std::to_string(timeout.count())}, {.flags = {"--grace-period", "40"}});
  ASSERT_TRUE(job.wait_for_all("ready", 60s)) << job.output();
  const auto begin = Clock::now();
  relay.silence(1);
  job.wait(90s);
  for (int rank = 0; rank < 4; ++rank) {
    std::string caught;
    for (const auto& line : job.lines_of(rank)) {
      if (line.starts_with("caught at ")) caught = line.substr(10);
    }
    ASSERT_FALSE(caught.empty()) << job.output();
    const std::chrono::duration<double> after = std::chrono::nanoseconds(std::stoll(caught)) - begin.time_since_epoch();
    std::printf("%s, silent host, deadline %.1f s, rank %d: after %.2f s%s\n", GetParam(),
                std::chrono::duration<double>(timeout).count(), rank, after.count(),
                caught.substr(caught.find(' ')).c_str());
    EXPECT_THAT(caught, HasSubstr(" timeout ")) << rank;
    EXPECT_LE(after, timeout + 1s);
  }
}

INSTANTIATE_TEST_SUITE_P(Clusters, LossyNetworkTest, ::testing::Values("hybrid", "gloo"),
                         [](const auto& each) { return std::string(each.param); });

/// The job's store cannot be reached from the beginning.
TEST(SilentNetwork, AJobThatCannotFormSaysWhoIsMissing) {
  if (!Hosts::what_is_missing().empty()) GTEST_SKIP() << Hosts::what_is_missing();
  const Hosts hosts(2, Hosts::Switch::none);
  Relay relay(hosts, {});
  relay.silence(1);
  Job job(hosts, {STREAM_RANK, "auto", "1000"}, {.flags = {"--rdzv-conf", "join_timeout=3"}});
  EXPECT_THAT(job.wait(20s), Each(1)) << job.output();
  EXPECT_THAT(job.launcher(0).output(), HasSubstr("not all hosts arrived within 3 s; missing: node 1"));
  EXPECT_THAT(job.launcher(1).output(), HasSubstr("no launcher of node 0 at tcp://10.77.0.1:29500 within 3 s"));
}

}  // namespace
}  // namespace cohort::test
