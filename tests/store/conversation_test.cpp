// SPDX-License-Identifier: BSD-3-Clause
//
// The server's side of the protocol, byte by byte, without sockets.
#include "store/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/conversation_peer.h"

namespace cohort::test {
namespace {

using handshake::Verdict;

HubOptions small_limits() {
  HubOptions options;
  options.limits.key = 16;
  options.limits.value = 100;
  options.limits.frame = 1000;
  options.limits.keys = 4;
  options.limits.memory = 5000;
  return options;
}

class ConversationTest : public ::testing::Test {
 protected:
  Hub hub{small_limits()};
};

TEST_F(ConversationTest, TakesItsInputInAnyPieces) {
  Peer peer(hub);
  const auto hello = handshake::decode_hello(peer.conversation->take_outbox());
  ASSERT_TRUE(hello);
  const handshake::Claim claim;
  auto bytes = handshake::encode(claim, handshake::client_proof(nullptr, *hello, claim));
  wire::encode({.op = StoreOp::set, .keys = {"k"}, .values = {"v"}}, bytes);
  wire::encode({.op = StoreOp::get, .keys = {"k"}}, bytes);
  for (const char byte : bytes) EXPECT_EQ(peer.conversation->feed({&byte, 1}), Conversation::Next::more);
  EXPECT_TRUE(peer.conversation->is_authenticated());
  peer.conversation->take_outbox();
  EXPECT_EQ(hub.table().size(), 1U);
}

TEST_F(ConversationTest, NothingIsParsedBeforeTheProof) {
  Peer peer(hub);
  std::string frame;
  wire::encode({.op = StoreOp::set, .keys = {"k"}, .values = {"v"}}, frame);
  frame.resize(handshake::claim_size, 'x');
  EXPECT_EQ(peer.conversation->feed(frame), Conversation::Next::close);
  EXPECT_TRUE(peer.conversation->is_rejected());
  EXPECT_EQ(hub.table().size(), 0U);
}

TEST_F(ConversationTest, RefusesForeignersAtTheirFirstByte) {
  for (const auto* const first : {"G", "\x16\x03\x01", "SSH-2.0", "\xff"}) {
    Peer peer(hub);
    EXPECT_EQ(peer.conversation->feed(first), Conversation::Next::close) << first;
  }
}

TEST_F(ConversationTest, AWrongSecretIsRefused) {
  auto options = small_limits();
  options.secret = Secret::generate();
  Hub guarded(options);
  const auto wrong = Secret::generate();
  EXPECT_EQ(Peer(guarded).authenticate(&*options.secret), Verdict::welcome);
  EXPECT_EQ(Peer(guarded).authenticate(&wrong), Verdict::wrong_secret);
  EXPECT_EQ(Peer(guarded).authenticate(nullptr), Verdict::wrong_secret);
}

TEST_F(ConversationTest, ARankBelongsToOneProcess) {
  auto holder = std::make_unique<Peer>(hub);
  EXPECT_EQ(holder->authenticate(nullptr, 1, 7), Verdict::welcome);
  auto second_of_holder = std::make_unique<Peer>(hub);
  EXPECT_EQ(second_of_holder->authenticate(nullptr, 1, 7), Verdict::welcome)
      << "clones and further connections are fine";
  EXPECT_EQ(Peer(hub).authenticate(nullptr, 1, 8), Verdict::rank_taken);
  EXPECT_EQ(Peer(hub).authenticate(nullptr, 2, 8), Verdict::welcome);
  holder.reset();
  EXPECT_EQ(Peer(hub).authenticate(nullptr, 1, 8), Verdict::rank_taken) << "the holder still has a connection";
  second_of_holder.reset();
  EXPECT_EQ(Peer(hub).authenticate(nullptr, 1, 8), Verdict::welcome) << "a dead process's rank is free";
}

TEST_F(ConversationTest, WaitsAreCompletedByOthers) {
  Peer waiter(hub);
  Peer setter(hub);
  waiter.authenticate(nullptr);
  setter.authenticate(nullptr);
  waiter.send({.op = StoreOp::get, .keys = {"a", "b"}});
  EXPECT_TRUE(waiter.replies().empty());
  setter.send({.op = StoreOp::set, .keys = {"a", "b"}, .values = {"1", "2"}});
  EXPECT_EQ(waiter.woken, 1);
  EXPECT_THAT(waiter.replies(), ::testing::ElementsAre("0:0:1:2"));
  waiter.send({.op = StoreOp::queue_pop, .keys = {"q"}});
  setter.send({.op = StoreOp::queue_push, .keys = {"q"}, .values = {"x"}});
  EXPECT_THAT(waiter.replies(), ::testing::ElementsAre("0:0:x"));
}

TEST_F(ConversationTest, CancelAnswersWhatWaitsAndNothingElse) {
  Peer peer(hub);
  peer.authenticate(nullptr);
  peer.send({}, wire::Kind::cancel);
  EXPECT_TRUE(peer.replies().empty());
  peer.send({.op = StoreOp::set, .keys = {"a"}, .values = {"1"}});
  peer.send({.op = StoreOp::wait, .keys = {"a", "b"}});
  peer.send({}, wire::Kind::cancel);
  peer.send({}, wire::Kind::cancel);
  EXPECT_THAT(peer.replies(), ::testing::ElementsAre("0:0", "1:0:b"));
  peer.send({.op = StoreOp::set, .keys = {"b"}, .values = {"late"}});
  EXPECT_THAT(peer.replies(), ::testing::ElementsAre("0:0")) << "the cancelled wait is forgotten";
}

TEST_F(ConversationTest, ASecondRequestWhileOneWaitsEndsTheConnection) {
  Peer peer(hub);
  peer.authenticate(nullptr);
  peer.send({.op = StoreOp::wait, .keys = {"a"}});
  EXPECT_EQ(peer.send({.op = StoreOp::num_keys}), Conversation::Next::close);
}

TEST_F(ConversationTest, LimitsRefuseTheRequestAndKeepTheConnection) {
  Peer peer(hub);
  peer.authenticate(nullptr);
  const std::string long_key(17, 'k');
  const std::string long_value(101, 'v');
  EXPECT_EQ(peer.send({.op = StoreOp::set, .keys = {long_key}, .values = {""}}), Conversation::Next::more);
  peer.send({.op = StoreOp::set, .keys = {"k"}, .values = {long_value}});
  peer.send({.op = StoreOp::check, .keys = {"1", "2", "3", "4", "5"}});
  peer.send({.op = StoreOp::set, .keys = {"k"}, .values = {std::string_view(long_value).substr(0, 60)}});
  peer.send({.op = StoreOp::append, .keys = {"k"}, .values = {std::string_view(long_value).substr(0, 60)}});
  peer.send({.op = StoreOp::add});
  const auto replies = peer.replies();
  ASSERT_EQ(replies.size(), 6U);
  EXPECT_THAT(replies[0], ::testing::HasSubstr("a key of 17 bytes"));
  EXPECT_THAT(replies[1], ::testing::HasSubstr("a value of 101 bytes"));
  EXPECT_THAT(replies[2], ::testing::HasSubstr("5 keys"));
  EXPECT_EQ(replies[3], "0:0");
  EXPECT_THAT(replies[4], ::testing::HasSubstr("grow beyond"));
  EXPECT_THAT(replies[5], ::testing::StartsWith("4:"));
}

TEST_F(ConversationTest, MemoryIsBounded) {
  Peer peer(hub);
  peer.authenticate(nullptr);
  const std::string value(100, 'v');
  std::string refusal;
  for (int i = 0; i < 100 && refusal.empty(); ++i) {
    const auto key = std::to_string(i);
    peer.send({.op = StoreOp::set, .keys = {key}, .values = {value}});
    const auto reply = peer.replies().at(0);
    if (reply != "0:0") refusal = reply;
  }
  EXPECT_THAT(refusal, ::testing::HasSubstr("full"));
  EXPECT_LE(hub.table().bytes(), 5000U);
}

TEST_F(ConversationTest, AnOversizedFrameIsRefusedByItsLengthAlone) {
  Peer peer(hub);
  peer.authenticate(nullptr);
  EXPECT_EQ(peer.conversation->feed(std::string("\xff\xff\xff\x7f", 4)), Conversation::Next::close);
  EXPECT_THAT(peer.replies().at(0), ::testing::HasSubstr("over the store's limit"));
}

TEST_F(ConversationTest, ALargeRequestWithoutRoomIsRefusedAndTheConnectionStays) {
  auto options = small_limits();
  options.limits.value = 1 << 20;
  options.limits.frame = 8 << 20;
  options.limits.memory = 1 << 19;
  Hub full(options);
  Peer peer(full);
  peer.authenticate(nullptr);
  std::string frames;
  wire::encode({.op = StoreOp::set, .keys = {"large"}, .values = {std::string(1 << 19, 'v')}}, frames);
  wire::encode({.op = StoreOp::set, .keys = {"small"}, .values = {"v"}}, frames);
  for (const std::size_t piece : {frames.size(), std::size_t{1000}, std::size_t{3}}) {
    peer.send({.op = StoreOp::delete_key, .keys = {"small"}});
    peer.replies();
    for (std::size_t at = 0; at < frames.size(); at += piece) {
      EXPECT_EQ(peer.conversation->feed(std::string_view(frames).substr(at, piece)), Conversation::Next::more);
    }
    const auto replies = peer.replies();
    ASSERT_EQ(replies.size(), 2U);
    EXPECT_THAT(replies[0], ::testing::HasSubstr("the store is full"));
    EXPECT_EQ(replies[1], "0:0");
    EXPECT_TRUE(full.table().contains("small"));
    EXPECT_FALSE(full.table().contains("large"));
  }
}

TEST_F(ConversationTest, AnswersThatNobodyReadsDoNotPileUp) {
  auto options = small_limits();
  options.limits.value = 1 << 20;
  options.limits.frame = 8 << 20;
  options.limits.memory = 64 << 20;
  Hub large(options);
  Peer peer(large);
  peer.authenticate(nullptr);
  const std::string value(1 << 19, 'v');
  peer.send({.op = StoreOp::set, .keys = {"k"}, .values = {value}});
  peer.replies();
  std::string many;
  for (int i = 0; i < 100; ++i) wire::encode({.op = StoreOp::get, .keys = {"k"}}, many);
  peer.conversation->feed(many);
  EXPECT_TRUE(peer.conversation->has_backlog());
  EXPECT_LT(peer.conversation->outbox().size(), 4U << 20U);
  std::size_t answered = peer.replies().size();
  while (peer.conversation->has_backlog()) {
    peer.conversation->feed({});
    answered += peer.replies().size();
  }
  EXPECT_EQ(answered, 100U);
}

TEST_F(ConversationTest, TheWillIsDoneWhenTheConnectionEnds) {
  auto dying = std::make_unique<Peer>(hub);
  Peer heir(hub);
  dying->authenticate(nullptr);
  heir.authenticate(nullptr);
  dying->send({.keys = {"gone"}, .values = {"rank 1"}}, wire::Kind::will);
  heir.send({.op = StoreOp::get, .keys = {"gone"}});
  EXPECT_TRUE(heir.replies().empty());
  dying.reset();
  EXPECT_THAT(heir.replies(), ::testing::ElementsAre("0:0:rank 1"));
  auto revoked = std::make_unique<Peer>(hub);
  revoked->authenticate(nullptr);
  revoked->send({.keys = {"second"}, .values = {""}}, wire::Kind::will);
  revoked->send({}, wire::Kind::will);
  revoked.reset();
  EXPECT_FALSE(hub.table().contains("second"));
}

}  // namespace
}  // namespace cohort::test
