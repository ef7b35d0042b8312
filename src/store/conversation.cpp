// SPDX-License-Identifier: BSD-3-Clause
#include "store/conversation.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/bytes.h"

namespace cohort {

using handshake::Verdict;
using wire::Status;

namespace {

bool is_well_formed(const wire::Request& request) {
  const auto keys = request.content.keys.size();
  const auto values = request.content.values.size();
  if (request.kind == wire::Kind::will) return keys == values;
  switch (request.content.op) {
    case StoreOp::set:
      return keys > 0 && keys == values;
    case StoreOp::get:
    case StoreOp::wait:
    case StoreOp::check:
      return keys > 0 && values == 0;
    case StoreOp::add:
    case StoreOp::delete_key:
    case StoreOp::queue_pop:
    case StoreOp::queue_len:
      return keys == 1 && values == 0;
    case StoreOp::compare_set:
      return keys == 1 && values == 2;
    case StoreOp::append:
    case StoreOp::queue_push:
      return keys == 1 && values == 1;
    case StoreOp::num_keys:
      return keys == 0 && values == 0;
  }
  return false;
}

/// Whether the request may make the server hold more than before.
bool takes_memory(const wire::Request& request) {
  if (request.kind == wire::Kind::will) return true;
  switch (request.content.op) {
    case StoreOp::set:
    case StoreOp::add:
    case StoreOp::compare_set:
    case StoreOp::append:
    case StoreOp::queue_push:
      return true;
    default:
      return false;
  }
}

}  // namespace

Conversation::Conversation(Hub& hub, std::function<void()> has_output)
    : hub_(hub),
      has_output_(std::move(has_output)),
      hello_{hub.secret() != nullptr, handshake::fresh_nonce()},
      caller_(hub.table(), [this](const wire::Reply& reply) { on_reply(reply); }) {
  outbox_ = handshake::encode(hello_);
}

Conversation::~Conversation() {
  caller_.withdraw();
  if (claim_) hub_.leave(*claim_);
  hub_.buffered(-static_cast<std::ptrdiff_t>(inbox_.size()));
  // Last, so that whoever it wakes finds this connection gone.
  for (const auto& [key, value] : will_) hub_.table().set(key, value);
}

/// Keeps an incomplete claim or frame until the rest arrives. The memory it takes counts against the server's limit.
void Conversation::keep(std::string_view bytes) {
  hub_.buffered(static_cast<std::ptrdiff_t>(bytes.size()) - static_cast<std::ptrdiff_t>(inbox_.size()));
  if (bytes.empty()) {
    inbox_ = std::string();  // gives the memory back: most connections are idle most of the time
  } else {
    inbox_.assign(bytes);
  }
}

Conversation::Next Conversation::reject() {
  rejected_ = true;
  return Next::close;
}

Conversation::Next Conversation::feed(std::string_view bytes) {
  feeding_ = true;
  std::string joined;
  if (!inbox_.empty()) {
    hub_.buffered(static_cast<std::ptrdiff_t>(bytes.size()));
    inbox_.append(bytes);
    joined.swap(inbox_);
    hub_.buffered(-static_cast<std::ptrdiff_t>(joined.size()));
    bytes = joined;
  }
  auto next = Next::more;
  backlog_ = false;
  while (next == Next::more) {
    if (!claim_) {
      if (bytes.size() < handshake::claim_size) {
        // What does not begin like a claim is rejected at once, not when it is long enough.
        if (!handshake::could_be_claim(bytes)) next = reject();
        break;
      }
      next = on_claim(bytes.substr(0, handshake::claim_size));
      bytes.remove_prefix(handshake::claim_size);
      continue;
    }
    if (bytes.size() < wire::length_size) break;
    const std::size_t size = load_le<std::uint32_t>(bytes.data());
    if (size > hub_.options().limits.frame || (size > small_frame && !hub_.has_room(size))) {
      refuse(fmt::format("a request of {} bytes is over the store's limit", size));
      next = reject();
      break;
    }
    if (bytes.size() - wire::length_size < size) break;
    if (outbox_.size() > most_unsent) {
      backlog_ = true;  // small requests may have large replies: send those first
      break;
    }
    next = on_frame(bytes.substr(wire::length_size, size));
    bytes.remove_prefix(wire::length_size + size);
  }
  if (next == Next::more) {
    if (!joined.empty() && bytes.size() == joined.size()) {
      // Still incomplete: put the buffer back as it is, so that a large request is not copied with every piece.
      hub_.buffered(static_cast<std::ptrdiff_t>(joined.size()));
      inbox_.swap(joined);
    } else {
      keep(bytes);
    }
  }
  feeding_ = false;
  return next;
}

Conversation::Next Conversation::on_claim(std::string_view bytes) {
  const auto decoded = handshake::decode_claim(bytes);
  if (!decoded) return reject();
  const auto& [claim, proof] = *decoded;
  const auto* const secret = hub_.secret();
  handshake::Welcome welcome;
  welcome.verdict = handshake::equal(proof, handshake::client_proof(secret, hello_, claim)) ? hub_.enter(claim)
                                                                                            : Verdict::wrong_secret;
  if (welcome.verdict == Verdict::welcome) {
    claim_ = claim;
    const auto& limits = hub_.options().limits;
    welcome.limits = {limits.key, limits.value, limits.frame, limits.keys};
    welcome.proof = handshake::server_proof(secret, hello_, claim);
  }
  outbox_ += handshake::encode(welcome);
  return claim_ ? Next::more : reject();
}

Conversation::Next Conversation::on_frame(std::string_view body) {
  const auto request = wire::decode_request(body);
  if (!request) return reject();
  if (request->kind == wire::Kind::cancel) {
    caller_.cancel();  // does nothing if the reply is on its way already
    return Next::more;
  }
  if (caller_.is_waiting()) return reject();  // one request at a time
  if (const auto why = objection(*request); !why.empty()) {
    refuse(why);
  } else if (request->kind == wire::Kind::will) {
    set_will(request->content);
  } else {
    caller_.execute(request->content);
  }
  return Next::more;
}

std::string Conversation::objection(const wire::Request& request) const {
  const auto& limits = hub_.options().limits;
  const auto& [op, keys, values, number, block] = request.content;
  if (!is_well_formed(request))
    return fmt::format("a request {} with {} keys and {} values", static_cast<int>(op), keys.size(), values.size());
  if (keys.size() > limits.keys) {
    return fmt::format("{} keys in one request; at most {} are taken", keys.size(), limits.keys);
  }
  std::size_t bytes = 0;
  for (const auto key : keys) {
    if (key.size() > limits.key) return fmt::format("a key of {} bytes; at most {} are taken", key.size(), limits.key);
    bytes += key.size();
  }
  for (const auto value : values) {
    if (value.size() > limits.value) {
      return fmt::format("a value of {} bytes; at most {} are taken", value.size(), limits.value);
    }
    bytes += value.size();
  }
  if (request.kind == wire::Kind::operation && op == StoreOp::append) {
    const auto* const value = hub_.table().find(keys[0]);
    if (value != nullptr && value->size() + values[0].size() > limits.value) {
      return fmt::format("the value would grow beyond {} bytes", limits.value);
    }
  }
  if (takes_memory(request) && !hub_.has_room(bytes + keys.size() * Table::entry_overhead)) {
    return "the store is full: its memory limit is reached";
  }
  return {};
}

void Conversation::set_will(const StoreRequest& will) {
  will_.clear();
  for (std::size_t i = 0; i < will.keys.size(); ++i) will_.emplace_back(will.keys[i], will.values[i]);
  if (will.number > 0) silence_ = std::chrono::milliseconds(std::min<std::int64_t>(will.number, 60'000));
  answer({});
}

void Conversation::on_reply(const wire::Reply& reply) {
  const auto size = wire::encoded_size(reply) - wire::length_size;
  if (size > hub_.options().limits.frame) {
    return refuse(fmt::format("the reply would have {} bytes; ask for fewer keys at once", size));
  }
  answer(reply);
}

void Conversation::answer(const wire::Reply& reply) {
  wire::encode(reply, outbox_);
  if (!feeding_) has_output_();
}

void Conversation::refuse(const std::string& why) {
  answer({.status = Status::refused, .values = {why}});
}

}  // namespace cohort
