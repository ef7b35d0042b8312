// SPDX-License-Identifier: BSD-3-Clause
#include "plan/cluster.h"

#include <cohort/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace cohort::plan {
namespace {

TEST(Clusters, AreReadFromJson) {
  const auto found = read_cluster(R"({
    "ranks_per_host": 8, "intra": {"alpha_us": 4, "gb_per_s": 200}, "inter": {"alpha_us": 12, "gb_per_s": 50},
    "algorithm": "ring", "overlap": 0.9})");
  EXPECT_EQ(found.ranks_per_host, 8);
  EXPECT_DOUBLE_EQ(found.intra.alpha, 4e-6);
  EXPECT_DOUBLE_EQ(found.intra.beta, 5e-12);
  EXPECT_DOUBLE_EQ(found.inter->beta, 2e-11);
  EXPECT_EQ(found.algorithm, Algorithm::ring);
  EXPECT_DOUBLE_EQ(found.overlap, 0.9);
  const auto again = read_cluster(to_json(found));
  EXPECT_NEAR(again.intra.beta / found.intra.beta, 1, 1e-12);
  EXPECT_EQ(again.ranks_per_host, 8);
}

TEST(Clusters, NeedOnlyALinkInside) {
  const auto found = read_cluster(R"({"intra": {"alpha_us": 0, "gb_per_s": 10}})");
  EXPECT_EQ(found.ranks_per_host, 0);
  EXPECT_FALSE(found.inter);
  EXPECT_EQ(found.overlap, 1);
}

TEST(Clusters, SayWhatIsWrong) {
  struct Bad {
    const char* json;
    const char* why;
  };
  for (const auto& [json, why] : {
           Bad{"", "parse error"},
           Bad{"[]", "the description of a cluster is not an object"},
           Bad{"{}", "\"intra\" is missing"},
           Bad{R"({"intra": 5})", "\"intra\" is not an object"},
           Bad{R"({"intra": {"alpha_us": 4}})", "\"gb_per_s\" is missing"},
           Bad{R"({"intra": {"alpha_us": "4", "gb_per_s": 1}})", "\"alpha_us\" is not a number"},
           Bad{R"({"intra": {"alpha_us": -1, "gb_per_s": 1}})", "the latency must be 0 or more"},
           Bad{R"({"intra": {"alpha_us": 1, "gb_per_s": 0}})", "the bandwidth positive"},
           Bad{R"({"intre": {"alpha_us": 1, "gb_per_s": 1}})", "did you mean \"int"},
           Bad{R"({"intra": {"alpha_us": 1, "gb_per_s": 1}, "overlap": 2})", "from 0 to 1"},
           Bad{R"({"intra": {"alpha_us": 1, "gb_per_s": 1}, "algorithm": "rong"})",
               "is no algorithm: best, ring, tree"},
           Bad{R"({"intra": {"alpha_us": 1, "gb_per_s": 1}, "ranks_per_host": 1.5})", "is not a number of ranks"},
           Bad{R"({"intra": {"alpha_us": 1, "gb_per_s": 1}, "inter": {"alpha_us": 1, "gb_per_s": 1}})",
               "how many ranks a host has"},
       }) {
    EXPECT_ERROR(ValueError, read_cluster(json), why);
  }
}

TEST(Links, AreTwoNumbers) {
  const auto link = parse_link("10:25", "--inter");
  EXPECT_DOUBLE_EQ(link.alpha, 1e-5);
  EXPECT_DOUBLE_EQ(link.beta, 4e-11);
  EXPECT_EQ(to_string(link), "10 us, 25 GB/s");
  for (const auto* const bad : {"", "10", "10:", "10:25:3", "a:b", "10:25GB"}) {
    EXPECT_ERROR(ValueError, parse_link(bad, "--inter"), "as in --inter 10:25");
  }
  EXPECT_ERROR(ValueError, parse_link("1:-3", "--inter"), "--inter: the latency");
}

}  // namespace
}  // namespace cohort::plan
