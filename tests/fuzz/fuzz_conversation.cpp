// SPDX-License-Identifier: BSD-3-Clause
//
// The server's side of three connections. A byte before each piece of input says how long the piece is and which
// connection it goes to; two of the clients have authenticated, the third has not.
#include <cstdlib>

#include "accepted.h"
#include "store/conversation.h"

namespace {

cohort::HubOptions small() {
  cohort::HubOptions options;
  options.limits.key = 64;
  options.limits.value = 4096;
  options.limits.frame = 1 << 16;
  options.limits.keys = 16;
  options.limits.memory = 1 << 18;
  return options;
}

std::unique_ptr<cohort::Conversation> authenticated(cohort::Hub& hub) {
  auto conversation = std::make_unique<cohort::Conversation>(hub, [] {});
  const auto hello = cohort::handshake::decode_hello(conversation->take_outbox());
  const cohort::handshake::Claim claim;
  conversation->feed(cohort::handshake::encode(claim, cohort::handshake::client_proof(nullptr, *hello, claim)));
  if (!conversation->is_authenticated()) std::abort();
  return conversation;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cohort::Hub hub(small());
  auto member = authenticated(hub);
  auto other = authenticated(hub);
  auto unauthenticated = std::make_unique<cohort::Conversation>(hub, [] {});
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  while (!rest.empty()) {
    const auto control = static_cast<std::uint8_t>(rest[0]);
    rest.remove_prefix(1);
    const auto piece = rest.substr(0, control & 0x3fU);
    rest.remove_prefix(piece.size());
    auto& target = (control & 0x80U) != 0 ? unauthenticated : (control & 0x40U) != 0 ? other : member;
    if (!target) continue;
    const auto next = target->feed(piece);
    if (&target == &unauthenticated && target->is_authenticated()) std::abort();
    const bool is_answered = !target->take_outbox().empty() && &target != &unauthenticated;
    if (next == cohort::Conversation::Next::close) target.reset();
    // A member is answered, and none is sent away.
    cohort::fuzz::accepted = (cohort::fuzz::accepted || is_answered) && member && other;
    if (hub.table().bytes() > (1U << 18U)) std::abort();
  }
  return 0;
}
