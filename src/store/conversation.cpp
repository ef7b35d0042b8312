// SPDX-License-Identifier: BSD-3-Clause
#include "store/conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

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

/// What a will takes until it is done, and the table takes then.
std::size_t cost_of_will(const StoreRequest& will) {
  std::size_t bytes = will.keys.size() * Table::entry_overhead;
  for (const auto key : will.keys) bytes += key.size();
  for (const auto value : will.values) bytes += value.size();
  return bytes;
}

}  // namespace

Conversation::Conversation(Hub& hub, std::function<void()> has_output)
    : hub_(hub),
      share_(hub),
      has_output_(std::move(has_output)),
      hello_{hub.secret() != nullptr, handshake::fresh_nonce()},
      caller_(hub.table(), [this](const wire::Reply& reply) { on_reply(reply); }) {
  outbox_ = handshake::encode(hello_);
  count_memory();
}

Conversation::~Conversation() {
  caller_.withdraw();
  if (claim_) hub_.leave(*claim_);
  share_.set(0);
  // Last, so that whoever it wakes finds this connection gone.
  for (const auto& [key, value] : will_) {
    try {
      hub_.table().set(key, value);
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): there is no memory, even to say so
    }
  }
}

void Conversation::count_memory() noexcept {
  share_.set(inbox_.capacity() + outbox_.capacity() + will_bytes_);
}

/// Keeps an incomplete claim or frame until the rest arrives. The memory it takes counts against the server's limit.
void Conversation::keep(std::string_view bytes) {
  if (bytes.empty()) {
    std::string().swap(inbox_);  // gives the memory back, which an assignment would not; most connections are idle
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
    inbox_.append(bytes);
    joined.swap(inbox_);
    count_memory();
    bytes = joined;
  }
  auto next = Next::more;
  backlog_ = false;
  while (next == Next::more) {
    const auto skipped = std::min(refused_, bytes.size());
    bytes.remove_prefix(skipped);
    refused_ -= skipped;
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
    if (size > hub_.options().limits.frame) {
      refuse(fmt::format("a request of {} bytes is over the store's limit", size));
      next = reject();
      break;
    }
    if (size > small_frame && !hub_.has_room(size)) {
      refuse(fmt::format("the store is full: there is no room for a request of {} bytes", size));
      // Only one request at a time may be under way.
      if (caller_.is_waiting()) next = reject();
      refused_ = wire::length_size + size;
      continue;
    }
    if (bytes.size() - wire::length_size < size) break;
    if (has_many_unsent()) {
      backlog_ = true;  // small requests may have large replies: send those first
      break;
    }
    next = on_frame(bytes.substr(wire::length_size, size));
    bytes.remove_prefix(wire::length_size + size);
  }
  if (next == Next::more) {
    if (!joined.empty() && bytes.size() == joined.size()) {
      // Still incomplete: put the buffer back as it is, so that a large request is not copied with every piece.
      inbox_.swap(joined);
    } else {
      keep(bytes);
    }
  }
  count_memory();
  feeding_ = false;
  return has_failed_ ? reject() : next;
}

bool Conversation::has_many_unsent() const {
  return outbox_.size() > most_unsent || (outbox_.size() > most_unsent_when_full && !hub_.has_room(0));
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
    welcome.proof = handshake::server_proof(secret, hello_, *decoded, welcome);
  }
  outbox_ += handshake::encode(welcome);
  had_wrong_secret_ = welcome.verdict == Verdict::wrong_secret;
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
  for (const auto key : keys) {
    if (key.size() > limits.key) return fmt::format("a key of {} bytes; at most {} are taken", key.size(), limits.key);
  }
  for (const auto value : values) {
    if (value.size() > limits.value) {
      return fmt::format("a value of {} bytes; at most {} are taken", value.size(), limits.value);
    }
  }
  if (request.kind == wire::Kind::operation && op == StoreOp::append) {
    const auto* const value = hub_.table().find(keys[0]);
    if (value != nullptr && value->size() + values[0].size() > limits.value) {
      return fmt::format("the value would grow beyond {} bytes", limits.value);
    }
  }
  const bool is_will = request.kind == wire::Kind::will;
  if (const auto cost = is_will ? cost_of_will(request.content) : hub_.table().cost_of(request.content);
      cost > 0 && !hub_.has_room(cost)) {
    return "the store is full: its memory limit is reached";
  }
  return {};
}

void Conversation::set_will(const StoreRequest& will) {
  will_ = {};
  will_bytes_ = 0;
  will_.reserve(will.keys.size());
  for (std::size_t i = 0; i < will.keys.size(); ++i) will_.emplace_back(will.keys[i], will.values[i]);
  will_bytes_ = cost_of_will(will);
  if (will.number > 0) keepalive_timeout_ = std::chrono::milliseconds(std::min<std::int64_t>(will.number, 60'000));
  answer({});
}

/// May be called while another connection's request is executed, which must not suffer from what happens here.
void Conversation::on_reply(const wire::Reply& reply) noexcept {
  try {
    const auto size = wire::encoded_size(reply) - wire::length_size;
    // A value that was popped would be lost; it was counted until now, so it does not add anything.
    const bool must_be_sent = size <= small_reply || reply.popped != nullptr;
    if (size > hub_.options().limits.frame) {
      refuse(fmt::format("the reply would have {} bytes; ask for fewer keys at once", size));
    } else if (!must_be_sent && !hub_.has_room(size)) {
      refuse(fmt::format("the store is full: there is no room for a reply of {} bytes", size));
    } else {
      answer(reply);
    }
  } catch (const std::bad_alloc&) {
    has_failed_ = true;
    if (!feeding_) has_output_();
  }
}

void Conversation::answer(const wire::Reply& reply) {
  wire::encode(reply, outbox_);
  count_memory();
  if (!feeding_) has_output_();
}

void Conversation::refuse(const std::string& why) {
  answer({.status = Status::refused, .values = {why}});
}

}  // namespace cohort
