// SPDX-License-Identifier: BSD-3-Clause
#include "store/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/bytes.h"

namespace cohort::test {
namespace {

using wire::Status;

std::string_view body(const std::string& frame) {
  return std::string_view(frame).substr(wire::length_size);
}

TEST(WireTest, RequestsRoundTrip) {
  const std::string zeros("\0\0", 2);
  const StoreRequest request{.op = StoreOp::queue_pop, .keys = {"key", ""}, .values = {zeros, "value"}, .number = -42};
  std::string frame;
  wire::encode(request, frame);
  EXPECT_EQ(frame.size(), wire::encoded_size(request));
  const auto decoded = wire::decode_request(body(frame));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->kind, wire::Kind::operation);
  EXPECT_EQ(decoded->content.op, request.op);
  EXPECT_TRUE(decoded->content.block);
  EXPECT_EQ(decoded->content.number, -42);
  EXPECT_EQ(decoded->content.keys, request.keys);
  EXPECT_EQ(decoded->content.values, request.values);
}

TEST(WireTest, KindsRoundTrip) {
  for (const auto kind : {wire::Kind::operation, wire::Kind::will, wire::Kind::cancel}) {
    std::string frame;
    wire::encode({.op = StoreOp::queue_pop, .keys = {"k"}, .block = false}, frame, kind);
    const auto decoded = wire::decode_request(body(frame));
    ASSERT_TRUE(decoded);
    EXPECT_EQ(decoded->kind, kind);
    EXPECT_FALSE(decoded->content.block);
  }
}

TEST(WireTest, RepliesRoundTrip) {
  const wire::Reply reply{Status::cancelled, 1LL << 40, {"a", "", "ccc"}};
  std::string frame;
  wire::encode(reply, frame);
  EXPECT_EQ(frame.size(), wire::encoded_size(reply));
  const auto decoded = wire::decode_reply(body(frame));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->status, reply.status);
  EXPECT_EQ(decoded->number, reply.number);
  EXPECT_EQ(decoded->values, reply.values);
}

TEST(WireTest, EveryCutAndEveryExtraByteIsRefused) {
  std::string frame;
  wire::encode({.op = StoreOp::set, .keys = {"key"}, .values = {"value"}, .number = 7}, frame);
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
