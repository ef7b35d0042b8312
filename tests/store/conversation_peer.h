// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "store/conversation.h"

namespace cohort::test {

/// A client that talks to a Conversation directly.
class Peer {
 public:
  explicit Peer(Hub& hub) : conversation(std::make_unique<Conversation>(hub, [this] { ++woken; })) {}

  handshake::Verdict authenticate(const Secret* secret, std::optional<int> rank = {}, std::uint8_t process = 0) {
    const auto hello = handshake::decode_hello(conversation->take_outbox());
    handshake::Claim claim;
    claim.rank = rank;
    claim.process[0] = process;
    const auto bytes = handshake::encode(claim, handshake::client_proof(secret, *hello, claim));
    conversation->feed(bytes);
    return handshake::decode_welcome(conversation->take_outbox())->verdict;
  }

  Conversation::Next send(const StoreRequest& request, wire::Kind kind = wire::Kind::operation) {
    std::string frame;
    wire::encode(request, frame, kind);
    return conversation->feed(frame);
  }
  /// The replies that are there, as text.
  std::vector<std::string> replies() {
    std::vector<std::string> all;
    const auto bytes = conversation->take_outbox();
    std::string_view rest = bytes;
    while (!rest.empty()) {
      const std::size_t size = load_le<std::uint32_t>(rest.data());
      const auto reply = wire::decode_reply(rest.substr(4, size));
      std::string text = std::to_string(static_cast<int>(reply->status)) + ":" + std::to_string(reply->number);
      for (const auto value : reply->values) text += ":" + std::string(value);
      all.push_back(text);
      rest.remove_prefix(4 + size);
    }
    return all;
  }

  std::unique_ptr<Conversation> conversation;
  int woken = 0;
};

}  // namespace cohort::test
