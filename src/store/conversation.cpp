// SPDX-License-Identifier: BSD-3-Clause
#include "store/conversation.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/bytes.h"

namespace cohort {

using handshake::Verdict;
using wire::Op;
using wire::Status;

Conversation::Conversation(Hub& hub, std::function<void()> has_output)
    : hub_(hub), has_output_(std::move(has_output)), hello_{hub.secret() != nullptr, handshake::fresh_nonce()} {
  outbox_ = handshake::encode(hello_);
}

Conversation::~Conversation() {
  stop_waiting();
  if (claim_) hub_.leave(*claim_);
  hub_.buffered(-static_cast<std::ptrdiff_t>(inbox_.size()));
  // Last, so that whoever it wakes finds this connection gone.
  for (const auto& [key, value] : will_) hub_.table().set(key, value);
}

/// Incomplete messages wait here for their rest; the memory they take counts against the server's limit.
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
        // What does not begin as a claim does is refused at once, not when it is long enough.
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
      backlog_ = true;  // small requests may have large answers: those come first
      break;
    }
    next = on_frame(bytes.substr(wire::length_size, size));
    bytes.remove_prefix(wire::length_size + size);
  }
  if (next == Next::more) {
    if (!joined.empty() && bytes.size() == joined.size()) {
      // Still incomplete: take the buffer back as it is, so that a large request is not copied with every piece.
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
  const auto authenticated = handshake::decode_claim(bytes);
  if (!authenticated) return reject();
  const auto& [claim, proof] = *authenticated;
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
  if (request->op == Op::cancel) {
    cancel();
    return Next::more;
  }
  if (waiting_) return reject();  // one request at a time
  if (const auto why = objection(*request); !why.empty()) {
    refuse(why);
  } else {
    execute(*request);
  }
  return Next::more;
}

std::string Conversation::objection(const wire::Request& request) const {
  const auto& limits = hub_.options().limits;
  const auto keys = request.keys.size();
  const auto values = request.values.size();
  const bool well_formed = [&] {
    switch (request.op) {
      case Op::set:
      case Op::will:
        return keys == values;
      case Op::get:
      case Op::wait:
      case Op::check:
        return keys > 0 && values == 0;
      case Op::add:
      case Op::erase:
      case Op::pop:
      case Op::length:
        return keys == 1 && values == 0;
      case Op::compare_set:
        return keys == 1 && values == 2;
      case Op::append:
      case Op::push:
        return keys == 1 && values == 1;
      case Op::count:
        return keys == 0 && values == 0;
      case Op::cancel:
        return false;
    }
    return false;
  }();
  if (!well_formed)
    return fmt::format("a request {} with {} keys and {} values", static_cast<int>(request.op), keys, values);
  if (keys > limits.keys) return fmt::format("{} keys in one request; at most {} are taken", keys, limits.keys);
  std::size_t bytes = 0;
  for (const auto key : request.keys) {
    if (key.size() > limits.key) return fmt::format("a key of {} bytes; at most {} are taken", key.size(), limits.key);
    bytes += key.size();
  }
  for (const auto value : request.values) {
    if (value.size() > limits.value) {
      return fmt::format("a value of {} bytes; at most {} are taken", value.size(), limits.value);
    }
    bytes += value.size();
  }
  if (request.op == Op::append) {
    const auto* const value = hub_.table().find(request.keys[0]);
    if (value != nullptr && value->size() + request.values[0].size() > limits.value) {
      return fmt::format("the value would grow beyond {} bytes", limits.value);
    }
  }
  const bool stores = request.op == Op::set || request.op == Op::append || request.op == Op::push ||
                      request.op == Op::add || request.op == Op::compare_set || request.op == Op::will;
  if (stores && !hub_.has_room(bytes + keys * Table::entry_overhead)) {
    return "the store is full: its memory limit is reached";
  }
  return {};
}

void Conversation::execute(const wire::Request& request) {
  auto& table = hub_.table();
  switch (request.op) {
    case Op::set:
      for (std::size_t i = 0; i < request.keys.size(); ++i) table.set(request.keys[i], request.values[i]);
      return answer({});
    case Op::get:
    case Op::wait:
      return wait(request);
    case Op::add: {
      const auto sum = table.add(request.keys[0], request.number);
      return answer({sum ? Status::ok : Status::not_a_number, sum.value_or(0), {}});
    }
    case Op::compare_set: {
      const auto value = table.compare_set(request.keys[0], request.values[0], request.values[1]);
      return answer({Status::ok, 0, {value}});
    }
    case Op::check: {
      const bool all = std::all_of(request.keys.begin(), request.keys.end(),
                                   [&table](std::string_view key) { return table.contains(key); });
      return answer({Status::ok, all ? 1 : 0, {}});
    }
    case Op::erase:
      return answer({Status::ok, table.erase(request.keys[0]) ? 1 : 0, {}});
    case Op::count:
      return answer({Status::ok, static_cast<std::int64_t>(table.size()), {}});
    case Op::append:
      table.append(request.keys[0], request.values[0]);
      return answer({});
    case Op::push:
      table.queue_push(request.keys[0], std::string(request.values[0]));
      return answer({});
    case Op::pop:
      if (const auto value = table.queue_pop(request.keys[0])) return answer({Status::ok, 0, {*value}});
      if ((request.flags & wire::flag_block) == 0) return answer({Status::queue_empty, 0, {}});
      return wait(request);
    case Op::length:
      return answer({Status::ok, static_cast<std::int64_t>(table.queue_len(request.keys[0])), {}});
    case Op::will:
      will_.clear();
      for (std::size_t i = 0; i < request.keys.size(); ++i) will_.emplace_back(request.keys[i], request.values[i]);
      if (request.number > 0) silence_ = std::chrono::milliseconds(std::min<std::int64_t>(request.number, 60'000));
      return answer({});
    case Op::cancel:
      return;
  }
}

void Conversation::wait(const wire::Request& request) {
  auto& table = hub_.table();
  if (request.op != Op::pop && table.contains_all(request.keys, request.op == Op::get)) {
    return request.op == Op::get ? answer_with_values(request.keys) : answer({});
  }
  auto waiting = std::make_unique<Waiting>();
  waiting->op = request.op;
  waiting->keys.assign(request.keys.begin(), request.keys.end());
  if (request.op == Op::pop) {
    waiting->popper.emplace([this](const std::string& value) {
      const auto done = std::move(waiting_);  // ends with this call, which it owns
      answer({Status::ok, 0, {value}});
    });
    table.wait_pop(request.keys[0], *waiting->popper);
    waiting_ = std::move(waiting);
    return;
  }
  waiting->waiter.emplace([this] {
    const auto done = std::move(waiting_);  // ends with this call, which it owns
    done->op == Op::get ? answer_with_values({done->keys.begin(), done->keys.end()}) : answer({});
  });
  table.wait(request.keys, request.op == Op::get, *waiting->waiter);
  waiting_ = std::move(waiting);
}

void Conversation::answer_with_values(const std::vector<std::string_view>& keys) {
  wire::Reply reply;
  std::size_t bytes = wire::reply_head;
  reply.values.reserve(keys.size());
  for (const auto key : keys) {
    reply.values.emplace_back(*hub_.table().find(key));
    bytes += sizeof(std::uint32_t) + reply.values.back().size();
  }
  if (bytes > hub_.options().limits.frame)
    return refuse(fmt::format("the reply would have {} bytes; ask for fewer keys at once", bytes));
  answer(reply);
}

void Conversation::cancel() {
  if (!waiting_) return;  // its answer is on the way
  wire::Reply reply{Status::cancelled, 0, {}};
  for (const auto& key : waiting_->keys) {
    const bool there = waiting_->op == Op::get ? hub_.table().find(key) != nullptr : hub_.table().contains(key);
    if (!there) reply.values.emplace_back(key);
  }
  const auto keep_keys_alive = std::move(waiting_->keys);
  stop_waiting();
  answer(reply);
}

void Conversation::stop_waiting() {
  if (!waiting_) return;
  if (waiting_->waiter) hub_.table().forget(*waiting_->waiter);
  if (waiting_->popper) hub_.table().forget(*waiting_->popper);
  waiting_.reset();
}

void Conversation::answer(const wire::Reply& reply) {
  wire::encode(reply, outbox_);
  if (!feeding_) has_output_();
}

void Conversation::refuse(const std::string& why) {
  answer({Status::refused, 0, {why}});
}

}  // namespace cohort
