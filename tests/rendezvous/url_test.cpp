// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/url.h"

#include "support/expect_error.h"

namespace cohort::test {
namespace {

TEST(RendezvousUrlTest, Parts) {
  const auto url = parse_rendezvous_url("tcp://[::1]:29500/p%20q?rank=1&world_size=4");
  EXPECT_EQ(url.scheme, "tcp");
  EXPECT_EQ(url.host, "::1");
  EXPECT_EQ(url.port, 29500);
  EXPECT_EQ(url.path, "/p q");
  EXPECT_EQ(url.query.at("rank"), "1");
  EXPECT_EQ(url.query.at("world_size"), "4");
  const auto bare = parse_rendezvous_url("env://");
  EXPECT_EQ(bare.scheme, "env");
  EXPECT_TRUE(bare.host.empty());
  EXPECT_FALSE(bare.port);
  EXPECT_EQ(parse_rendezvous_url("file:///tmp/x").path, "/tmp/x");
}

TEST(RendezvousUrlTest, RefusesNonsense) {
  EXPECT_ERROR(ValueError, parse_rendezvous_url("localhost:1"), "not a URL");
  EXPECT_ERROR(ValueError, parse_rendezvous_url("://x"), "not a URL");
  EXPECT_ERROR(ValueError, parse_rendezvous_url("tcp://h:port"), "not a number");
  EXPECT_ERROR(ValueError, parse_rendezvous_url("tcp://h:1?rank=1&rank=2"), "given twice");
  EXPECT_ERROR(ValueError, parse_rendezvous_url("file:///a%zz"), "hexadecimal");
  EXPECT_ERROR(ValueError, parse_rendezvous_url("file:///a%4"), "hexadecimal");
}

}  // namespace
}  // namespace cohort::test
