// SPDX-License-Identifier: BSD-3-Clause
//
// Clients that know the secret and try to make the server hold more than its memory limit. What counts is what the
// allocator says, not what the server believes.
#include <gtest/gtest.h>
#include <malloc.h>

#include <functional>

#include "store/conversation_peer.h"

namespace cohort::test {
namespace {

constexpr std::size_t mib = 1U << 20U;
constexpr std::size_t limit = 8 * mib;
/// What docs/security.md says: the request that is executed and its reply, and this much for each connection.
constexpr std::size_t one_request = 4 * mib;
constexpr std::size_t one_connection = 128U << 10U;
constexpr int connections = 64;

HubOptions limits() {
  HubOptions options;
  options.limits.key = 8192;
  options.limits.value = mib;
  options.limits.frame = 2 * mib;
  options.limits.keys = 1U << 17U;
  options.limits.memory = limit;
  return options;
}

std::size_t allocated() {
  const auto info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

struct Attack {
  const char* name;
  /// One attempt of one client, which never reads; false: it has given up.
  std::function<bool(Peer& peer, int client, int attempt)> act;
};

bool goes_on(Conversation::Next next) {
  return next == Conversation::Next::more;
}

std::string name_of(int client, int attempt) {
  return std::to_string(client) + "." + std::to_string(attempt);
}

const std::string& large() {
  static const std::string value(mib - 100, 'v');
  return value;
}

std::vector<Attack> attacks() {
  return {
      {"RepliesThatNobodyReads",
       [](Peer& peer, int client, int attempt) {
         if (client == 0 && attempt == 0) peer.send({.op = StoreOp::set, .keys = {"k"}, .values = {large()}});
         return goes_on(peer.send({.op = StoreOp::get, .keys = {"k"}})) && attempt < 20;
       }},
      {"SmallRepliesThatNobodyReads",
       [](Peer& peer, int /*client*/, int attempt) {
         std::string many;
         for (int i = 0; i < 1000; ++i) wire::encode({.op = StoreOp::num_keys}, many);
         return goes_on(peer.conversation->feed(many)) && attempt < 100;
       }},
      {"RefusalsThatNobodyReads",
       [](Peer& peer, int client, int attempt) {
         const auto key = name_of(client, attempt);
         return goes_on(peer.send({.op = StoreOp::set, .keys = {key}, .values = {large()}})) && attempt < 200;
       }},
      {"Wills",
       [](Peer& peer, int client, int attempt) {
         const auto key = name_of(client, attempt);
         return goes_on(peer.send({.keys = {key}, .values = {large()}}, wire::Kind::will)) && attempt < 3;
       }},
      {"WillsOfManyKeys",
       [](Peer& peer, int client, int attempt) {
         std::vector<std::string> names;
         for (int i = 0; i < 5000; ++i) names.push_back(name_of(client, i));
         const std::vector<std::string_view> keys(names.begin(), names.end());
         const std::vector<std::string_view> values(keys.size(), "");
         return goes_on(peer.send({.keys = keys, .values = values}, wire::Kind::will)) && attempt < 3;
       }},
      {"WaitsForManyKeys",
       [](Peer& peer, int client, int /*attempt*/) {
         std::vector<std::string> names;
         for (int i = 0; i < 4000; ++i) names.push_back(name_of(client, i));
         const std::vector<std::string_view> keys(names.begin(), names.end());
         peer.send({.op = StoreOp::wait, .keys = keys});
         return false;  // one request at a time
       }},
      {"WaitsOfManyForTheSameKeys",
       [](Peer& peer, int /*client*/, int /*attempt*/) {
         std::vector<std::string> names;
         for (int i = 0; i < 4000; ++i) names.push_back(name_of(0, i));
         const std::vector<std::string_view> keys(names.begin(), names.end());
         peer.send({.op = StoreOp::get, .keys = keys});
         return false;
       }},
      {"PopsOfEmptyQueues",
       [](Peer& peer, int client, int attempt) {
         const auto queue = std::string(8000, 'q') + name_of(client, attempt);
         peer.send({.op = StoreOp::queue_pop, .keys = {queue}});
         peer.send({}, wire::Kind::cancel);
         return attempt < 50;
       }},
      {"ManySmallKeys",
       [](Peer& peer, int client, int attempt) {
         const auto key = name_of(client, attempt);
         return goes_on(peer.send({.op = StoreOp::set, .keys = {key}, .values = {""}})) && attempt < 2000;
       }},
      {"AQueueOfNothing",
       [](Peer& peer, int /*client*/, int attempt) {
         return goes_on(peer.send({.op = StoreOp::queue_push, .keys = {"q"}, .values = {""}})) && attempt < 5000;
       }},
      {"LongValuesThatBecomeShort",
       [](Peer& peer, int client, int attempt) {
         const auto key = name_of(client, attempt);
         peer.send({.op = StoreOp::set, .keys = {key}, .values = {large()}});
         peer.send({.op = StoreOp::set, .keys = {key}, .values = {"short"}});
         return attempt < 3;
       }},
      {"ValuesThatGrow",
       [](Peer& peer, int client, int attempt) {
         const std::string piece(40'000, 'p');
         const auto key = name_of(client, 0);
         return goes_on(peer.send({.op = StoreOp::append, .keys = {key}, .values = {piece}})) && attempt < 20;
       }},
      {"HalfRequests",
       [](Peer& peer, int /*client*/, int attempt) {
         std::string frame;
         wire::encode({.op = StoreOp::set, .keys = {"k"}, .values = {large()}}, frame);
         const auto piece = frame.size() / 20;
         if (attempt == 19) return false;
         return goes_on(
             peer.conversation->feed(std::string_view(frame).substr(static_cast<std::size_t>(attempt) * piece, piece)));
       }},
      {"LargeRequestsDone",
       [](Peer& peer, int client, int attempt) {
         const auto key = name_of(client % 2, 0);
         peer.send({.op = StoreOp::set, .keys = {key}, .values = {large()}});
         peer.replies();  // reads: what was given back must not stay
         return attempt < 2;
       }},
  };
}

class StoreMemory : public ::testing::TestWithParam<Attack> {};

TEST_P(StoreMemory, StaysUnderTheLimit) {
  Hub hub(limits());
  std::vector<std::unique_ptr<Peer>> peers;
  for (int i = 0; i < connections; ++i) {
    peers.push_back(std::make_unique<Peer>(hub));
    ASSERT_EQ(peers.back()->authenticate(nullptr), handshake::Verdict::welcome);
  }
  large();
  const auto before = allocated();
  std::size_t most = 0;
  std::vector<bool> goes_on(peers.size(), true);
  for (int attempt = 0; std::find(goes_on.begin(), goes_on.end(), true) != goes_on.end(); ++attempt) {
    for (std::size_t i = 0; i < peers.size(); ++i) {
      if (!goes_on[i]) continue;
      // As a session, which reads nothing more from a client that does not read.
      goes_on[i] = GetParam().act(*peers[i], static_cast<int>(i), attempt) && !peers[i]->conversation->has_backlog();
      most = std::max(most, allocated());
      ASSERT_LE(hub.memory(), limit + connections * one_connection);
    }
  }
  EXPECT_LE(most - std::min(before, most), limit + one_request + connections * one_connection);

  // Somebody who behaves can still delete.
  Peer late(hub);
  late.authenticate(nullptr);
  late.send({.op = StoreOp::delete_key, .keys = {"k"}});
  EXPECT_EQ(late.replies().size(), 1U);

  // What the attackers held is given back with their connections, but for their wills, which are done.
  peers.clear();
  late.conversation.reset();
  EXPECT_EQ(hub.memory(), hub.table().bytes());
  EXPECT_LE(hub.memory(), limit);
  EXPECT_LE(allocated() - std::min(before, allocated()), limit + mib);
}

INSTANTIATE_TEST_SUITE_P(, StoreMemory, ::testing::ValuesIn(attacks()),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(StoreMemoryLimit, AReplyThatDoesNotFitIsRefusedAndTheConnectionStays) {
  auto options = limits();
  options.limits.memory = mib + mib / 2;
  Hub hub(options);
  Peer peer(hub);
  peer.authenticate(nullptr);
  peer.send({.op = StoreOp::set, .keys = {"k"}, .values = {large()}});
  EXPECT_EQ(peer.replies().at(0), "0:0");
  EXPECT_EQ(peer.send({.op = StoreOp::get, .keys = {"k"}}), Conversation::Next::more);
  EXPECT_NE(peer.replies().at(0).find("no room for a reply"), std::string::npos);
  peer.send({.op = StoreOp::delete_key, .keys = {"k"}});
  EXPECT_EQ(peer.replies().at(0), "0:1");
}

TEST(StoreMemoryLimit, AValueIsPoppedEvenWhenTheStoreIsFull) {
  auto options = limits();
  options.limits.memory = mib + mib / 2;
  Hub hub(options);
  Peer peer(hub);
  peer.authenticate(nullptr);
  peer.send({.op = StoreOp::queue_push, .keys = {"q"}, .values = {large()}});
  EXPECT_EQ(peer.replies().at(0), "0:0");
  peer.send({.op = StoreOp::queue_pop, .keys = {"q"}});
  EXPECT_EQ(peer.replies().at(0), "0:0:" + large());
}

}  // namespace
}  // namespace cohort::test
