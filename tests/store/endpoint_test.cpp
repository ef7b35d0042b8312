// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/endpoint.h>

#include "support/expect_error.h"

namespace cohort::test {
namespace {

TEST(EndpointTest, ParsesAndPrints) {
  for (const auto* const text :
       {"tcp://10.0.0.1:29500", "tcp://[::1]:0", "tcp://host.name:65535", "unix:@job/1", "unix:/run/x"}) {
    EXPECT_EQ(to_string(Endpoint::parse(text)), text);
  }
  EXPECT_EQ(Endpoint::parse("tcp://[::1]:80").host, "::1");
}

TEST(EndpointTest, RefusesTheRest) {
  for (const auto* const text :
       {"", "tcp://", "tcp://host", "tcp://host:", "tcp://host:65536", "tcp://host:-1", "tcp://:80", "tcp://::1:80",
        "unix:", "unix:@", "http://x:1", "tcp://host:8x", "tcp://[[::1]]:80"}) {
    EXPECT_ERROR(ValueError, Endpoint::parse(text), "tcp://host:port");
  }
}

TEST(EndpointTest, Loopback) {
  EXPECT_TRUE(is_loopback("127.0.0.1"));
  EXPECT_TRUE(is_loopback("127.9.9.9"));
  EXPECT_TRUE(is_loopback("::1"));
  EXPECT_TRUE(is_loopback("localhost"));
  EXPECT_FALSE(is_loopback("0.0.0.0"));
  EXPECT_FALSE(is_loopback("::"));
  EXPECT_FALSE(is_loopback("10.0.0.1"));
}

}  // namespace
}  // namespace cohort::test
