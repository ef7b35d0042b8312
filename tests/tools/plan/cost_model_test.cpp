// SPDX-License-Identifier: BSD-3-Clause
//
// Costs of collectives: worked by hand from the formulas, and what must hold whatever the numbers are.
#include "plan/cost_model.h"

#include <cohort/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "support/expect_error.h"

namespace cohort::plan {
namespace {

constexpr double us = 1e-6;
constexpr double megabyte = 1e6;
/// 10 us and 1 GB/s: a megabyte takes 1000 us.
constexpr Link slow{.alpha = 10 * us, .beta = 1e-9};
constexpr double rounding = 1e-12;

const std::vector<std::string> operations{"all_reduce",
                                          "all_reduce_coalesced",
                                          "broadcast",
                                          "reduce",
                                          "all_gather",
                                          "all_gather_single",
                                          "gather",
                                          "scatter",
                                          "reduce_scatter",
                                          "reduce_scatter_single",
                                          "all_to_all",
                                          "barrier",
                                          "all_to_all_single",
                                          "send",
                                          "recv",
                                          "coalesced",
                                          "unheard_of"};

TEST(CostOnLink, ByHand) {
  const auto at = [](const char* operation, int ranks, Algorithm algorithm) {
    return cost_on_link(operation, megabyte, ranks, slow, algorithm) / us;
  };
  // Ring: 2 (p - 1) messages, 2 (p - 1) / p of the bytes.
  EXPECT_NEAR(at("all_reduce", 4, Algorithm::ring), 6 * 10 + 1.5 * 1000, rounding / us);
  // Recursive doubling: log2(p) messages of all bytes; a number that is no power of 2 is rounded up.
  EXPECT_NEAR(at("all_reduce", 4, Algorithm::tree), 2 * (10 + 1000), rounding / us);
  EXPECT_NEAR(at("all_reduce", 5, Algorithm::tree), 3 * (10 + 1000), rounding / us);
  // Rabenseifner's: 2 log2(p) messages, 2 (p - 1) / p of the bytes.
  EXPECT_NEAR(at("all_reduce", 4, Algorithm::best), 4 * 10 + 1.5 * 1000, rounding / us);
  // Two ranks exchange all they have at once.
  EXPECT_NEAR(at("all_reduce", 2, Algorithm::best), 10 + 1000, rounding / us);
  EXPECT_NEAR(at("all_gather", 4, Algorithm::ring), 3 * 10 + 750, rounding / us);
  EXPECT_NEAR(at("reduce_scatter", 4, Algorithm::best), 2 * 10 + 750, rounding / us);
  EXPECT_NEAR(at("broadcast", 8, Algorithm::tree), 3 * (10 + 1000), rounding / us);
  EXPECT_NEAR(at("broadcast", 8, Algorithm::best), 6 * 10 + 1.75 * 1000, rounding / us);
  EXPECT_NEAR(at("all_to_all", 4, Algorithm::ring), 3 * 10 + 750, rounding / us);
  EXPECT_NEAR(at("barrier", 8, Algorithm::best), 3 * 10, rounding / us);
  EXPECT_NEAR(at("send", 8, Algorithm::best), 10 + 1000, rounding / us);
}

TEST(CostOnLink, OneRankCostsNothing) {
  for (const auto& each : operations) {
    for (const auto algorithm : {Algorithm::best, Algorithm::ring, Algorithm::tree}) {
      EXPECT_EQ(cost_on_link(each, megabyte, 1, slow, algorithm), 0) << each;
    }
  }
}

TEST(CostOnLink, WithoutBytesOnlyLatencyIsLeft) {
  constexpr Link no_latency{.alpha = 0, .beta = 1e-9};
  for (const auto& each : operations) {
    for (const int ranks : {2, 3, 8, 1000}) {
      EXPECT_EQ(cost_on_link(each, 0, ranks, no_latency, Algorithm::best), 0) << each;
      // Whatever the algorithm, nobody knows all before log2(p) messages.
      const double least = each == "send" || each == "recv" ? 1 : std::ceil(std::log2(ranks));
      EXPECT_GE(cost_on_link(each, 0, ranks, slow, Algorithm::best), least * slow.alpha * 0.999) << each;
    }
  }
}

TEST(CostOnLink, GrowsWithBytesRanksAndTheLink) {
  for (const auto& operation : operations) {
    for (const auto algorithm : {Algorithm::best, Algorithm::ring, Algorithm::tree}) {
      double last = 0;
      for (double bytes = 1; bytes < 1e10; bytes *= 3) {
        const double now = cost_on_link(operation, bytes, 6, slow, algorithm);
        EXPECT_GE(now, last) << operation << " " << bytes;
        last = now;
        EXPECT_GE(cost_on_link(operation, bytes, 6, {.alpha = 2 * slow.alpha, .beta = slow.beta}, algorithm), now);
        EXPECT_GE(cost_on_link(operation, bytes, 6, {.alpha = slow.alpha, .beta = 2 * slow.beta}, algorithm), now);
        EXPECT_LE(cost_on_link(operation, bytes, 6, slow, Algorithm::best), now);
      }
      last = 0;
      for (int ranks = 2; ranks <= 4096; ranks *= 2) {
        const double now = cost_on_link(operation, megabyte, ranks, slow, algorithm);
        EXPECT_GE(now, last) << operation << " " << ranks;
        last = now;
      }
    }
  }
}

TEST(Placements, FillHostsInRankOrder) {
  const Cluster cluster{.ranks_per_host = 8, .intra = slow, .inter = slow};
  const auto is = [&](int ranks, int stride, int per_host, int hosts, int sharing) {
    const auto found = place(ranks, stride, cluster);
    EXPECT_EQ(found.per_host, per_host);
    EXPECT_EQ(found.hosts, hosts);
    EXPECT_EQ(found.sharing, sharing);
  };
  is(4, 1, 4, 1, 2);   // half a host
  is(32, 1, 8, 4, 1);  // the world
  is(4, 8, 1, 4, 8);   // one rank of each host: eight such groups share the hosts' links
  is(16, 2, 4, 4, 2);  // every other rank
  is(4, 16, 1, 4, 8);  // one rank of every other host
  EXPECT_EQ(place(64, 1, {.intra = slow}).hosts, 1);
}

TEST(CostOnHosts, ByHand) {
  const Cluster cluster{.ranks_per_host = 4,
                        .intra = {.alpha = 1 * us, .beta = 1e-10},  // a megabyte in 100 us
                        .inter = slow,
                        .algorithm = Algorithm::ring};
  const auto n = static_cast<std::size_t>(megabyte);
  // Inside: reduce_scatter and all_gather of 4 ranks. Between: a ring of 2 hosts with all bytes.
  EXPECT_NEAR(cost("all_reduce", n, place(8, 1, cluster), cluster) / us, 2 * (3 + 75) + (2 * 10 + 1000), 1e-6);
  EXPECT_NEAR(cost("all_gather", n, place(8, 1, cluster), cluster) / us, (3 + 75) + (10 + 500), 1e-6);
  // Each of the four groups has a quarter of the link.
  EXPECT_NEAR(cost("all_reduce", n, place(2, 4, cluster), cluster) / us, 2 * 10 + 4 * 1000, 1e-6);
  // 4 of 8 blocks leave the host, from each of its 4 ranks.
  EXPECT_NEAR(cost("all_to_all", n, place(8, 1, cluster), cluster) / us, (3 + 0.75 * 50) + 4 * 10 + 4 * 500, 1e-6);
  EXPECT_NEAR(cost("all_reduce", n, place(4, 1, cluster), cluster) / us, 6 * 1 + 1.5 * 100, 1e-6);
  EXPECT_ERROR(ValueError, cost("all_reduce", n, place(8, 1, cluster), {.ranks_per_host = 4, .intra = slow}),
               "the link between hosts is not given");
}

TEST(CostOnHosts, MoreHostsCostMore) {
  const Cluster cluster{.ranks_per_host = 8, .intra = {.alpha = us, .beta = 1e-11}, .inter = slow};
  for (const auto& operation : operations) {
    if (operation == "send" || operation == "recv") continue;
    double last = 0;
    for (int ranks = 8; ranks <= 8192; ranks *= 2) {
      const double now = cost(operation, 1 << 20U, place(ranks, 1, cluster), cluster);
      EXPECT_GE(now, last) << operation << " " << ranks;
      last = now;
    }
  }
}

TEST(FittedLink, IsFoundAgain) {
  for (const int ranks : {2, 3, 8, 16}) {
    for (const auto algorithm : {Algorithm::best, Algorithm::ring, Algorithm::tree}) {
      std::vector<Sample> samples;
      for (std::size_t bytes = 1024; bytes <= (64U << 20U); bytes *= 4) {
        samples.push_back(
            {"all_reduce", bytes, cost_on_link("all_reduce", static_cast<double>(bytes), ranks, slow, algorithm)});
      }
      const auto found = fit_link(samples, ranks, algorithm);
      EXPECT_NEAR(found.alpha / slow.alpha, 1, 0.01) << ranks;
      EXPECT_NEAR(found.beta / slow.beta, 1, 0.01) << ranks;
    }
  }
}

TEST(FittedLink, StaysPossibleWhateverIsMeasured) {
  // Larger messages that take less time have no link.
  const auto found = fit_link({{"all_reduce", 1000, 1e-3}, {"all_reduce", 1000000, 1e-5}}, 2, Algorithm::best);
  EXPECT_GE(found.alpha, 0);
  EXPECT_GT(found.beta, 0);
  EXPECT_ERROR(ValueError, fit_link({{"all_reduce", 1000, 1e-3}}, 2, Algorithm::best), "at least two samples");
  EXPECT_ERROR(ValueError, fit_link({{"all_reduce", 8, 1e-3}, {"all_reduce", 8, 1e-3}}, 2, Algorithm::best),
               "all of one size");
}

}  // namespace
}  // namespace cohort::plan
