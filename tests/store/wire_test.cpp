// SPDX-License-Identifier: BSD-3-Clause
#include "store/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/bytes.h"

namespace cohort::test {
namespace {

using wire::Op;
using wire::Status;

std::string_view body(const std::string& frame) {
  return std::string_view(frame).substr(wire::length_size);
}

TEST(WireTest, RequestsRoundTrip) {
  const std::string zeros("\0\0", 2);
  const wire::Request request{Op::compare_set, wire::flag_block, -42, {"key", ""}, {zeros, "value"}};
  std::string frame;
  wire::encode(request, frame);
  EXPECT_EQ(frame.size(), wire::encoded_size(request));
  const auto decoded = wire::decode_request(body(frame));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->op, request.op);
  EXPECT_EQ(decoded->flags, request.flags);
  EXPECT_EQ(decoded->number, -42);
  EXPECT_EQ(decoded->keys, request.keys);
  EXPECT_EQ(decoded->values, request.values);
}

TEST(WireTest, RepliesRoundTrip) {
  const wire::Reply reply{Status::cancelled, 1LL << 40, {"a", "", "ccc"}};
  std::string frame;
  wire::encode(reply, frame);
  const auto decoded = wire::decode_reply(body(frame));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->status, reply.status);
  EXPECT_EQ(decoded->number, reply.number);
  EXPECT_EQ(decoded->values, reply.values);
}

TEST(WireTest, EveryCutAndEveryExtraByteIsRefused) {
  std::string frame;
  wire::encode({Op::set, 0, 7, {"key"}, {"value"}}, frame);
  const auto whole = body(frame);
  for (std::size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(wire::decode_request(whole.substr(0, size)));
  EXPECT_FALSE(wire::decode_request(std::string(whole) + "x"));
  std::string reply;
  wire::encode({Status::ok, 0, {"v"}}, reply);
  for (std::size_t size = 0; size < body(reply).size(); ++size) {
    EXPECT_FALSE(wire::decode_reply(body(reply).substr(0, size)));
  }
}

TEST(WireTest, HugeCountsAreRefusedBeforeAnythingIsAllocated) {
  std::string bytes(wire::request_head, '\0');
  for (std::size_t at = 12; at < 20; ++at) bytes[at] = '\xff';
  EXPECT_FALSE(wire::decode_request(bytes));
  bytes[0] = 100;
  EXPECT_FALSE(wire::decode_request(bytes)) << "unknown operation";
}

}  // namespace
}  // namespace cohort::test
