// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/messages/messenger.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "backends/shm/protocol/wait_monitor.h"
#include "core/rank_index.h"
#include "group/mismatch.h"
#include "reduce/copy.h"

namespace cohort::shm {

namespace {

std::byte* payload_of(PairRing::Slot& slot, std::size_t bytes) {
  return bytes <= post_inline_bytes ? slot.part.payload.data() : slot.payload.data();
}

}  // namespace

/// Waited for by whoever advances it.
class Messenger::AsyncTransfer : public Transfer {
 public:
  void check() override { monitor_.check(); }
  void someone_waits() override { monitor_.goes_on(); }
  void miss_deadline() override { monitor_.give_up(); }

 protected:
  AsyncTransfer(Messenger& messenger, int peer_or_any, const Call& call) : messenger_(messenger), call_(call) {
    monitor_.waits_for(peer_or_any);
  }

  Messenger& messenger_;

 private:
  Call call_;
  WaitMonitor monitor_{messenger_.engine_, call_, Engine::Wait::message};
};

class Messenger::Sending final : public AsyncTransfer {
 public:
  Sending(Messenger& messenger, OutgoingPtr message, const Call& call)
      : AsyncTransfer(messenger, message->peer, call), message_(std::move(message)) {}
  ~Sending() override { messenger_.withdraw(message_); }
  bool advance() override {
    const std::lock_guard lock(messenger_.mutex_);
    if (!message_->is_done) messenger_.progress(message_->peer);
    if (message_->error) std::rethrow_exception(message_->error);
    return message_->is_done;
  }
  int source() const override { return messenger_.rank_; }

 private:
  OutgoingPtr message_;
};

class Messenger::Receiving final : public AsyncTransfer {
 public:
  Receiving(Messenger& messenger, IncomingPtr message, const Call& call)
      : AsyncTransfer(messenger, message->peer_or_any, call), message_(std::move(message)) {}
  ~Receiving() override { messenger_.abandon(message_); }
  bool advance() override {
    const std::lock_guard lock(messenger_.mutex_);
    if (!message_->is_done) messenger_.progress(message_->peer_or_any);
    if (message_->error) std::rethrow_exception(message_->error);
    return message_->is_done;
  }
  bool has_begun() const override {
    const std::lock_guard lock(messenger_.mutex_);
    return message_->source >= 0 || message_->received > 0;
  }
  int source() const override { return message_->source; }

 private:
  IncomingPtr message_;
};

Messenger::Messenger(Engine& engine)
    : engine_(engine), board_(engine.board()), rank_(engine.rank()), peers_(static_cast<std::size_t>(engine.size())) {}

// --- interface

bool Messenger::send_now(const Operation& op) {
  const std::lock_guard lock(mutex_);
  auto& to = peers_[index_of(op.peer)];
  if (op.in().size() > message_bytes || !to.queue.empty() || !to.notices.empty()) return false;
  Outgoing message{.data = op.in(), .peer = op.peer, .tag = op.tag, .type = message_type(op)};
  return write_next(op.peer, message);
}

bool Messenger::recv_now(const Operation& op) {
  const std::lock_guard lock(mutex_);
  const int peer = op.peer;
  const auto data = op.out();
  auto& from = peers_[index_of(peer)];
  if (!from.has_in_ring || !posted_.empty() || !from.unexpected.empty()) return false;
  auto& ring_in = board_.ring(peer, rank_);
  auto& slot = board_.slot(ring_in, from.next_in);
  if (slot.part.number.load(std::memory_order_acquire) != from.next_in + 1) return false;
  if (static_cast<Kind>(slot.part.kind) != Kind::eager || slot.part.tag != op.tag || slot.part.bytes != data.size() ||
      slot.part.type != message_type(op)) {
    return false;
  }
  reduce::copy(data.data(), payload_of(slot, data.size()), data.size());
  ring_in.consumed.flag.value.store(++from.next_in, std::memory_order_release);
  ring(peer);
  return true;
}

void Messenger::spin_for_part(int peer) {
  const std::atomic<std::uint32_t>* number = nullptr;
  std::uint32_t expected = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto& from = peers_[index_of(peer)];
    if (!from.has_in_ring) return;
    number = &board_.slot(board_.ring(peer, rank_), from.next_in).part.number;
    expected = from.next_in + 1;
  }
  // Without the mutex: another thread may take the part, which recv_now() then finds out.
  for (std::uint32_t looks = 0; looks <= engine_.policy().spins; ++looks) {
    if (reached(number->load(std::memory_order_acquire), expected)) return;
    if (looks >= Flag<StdAtomics>::looks_without_pause) StdAtomics::pause();
  }
}

void Messenger::send(const Operation& op, Call& call) {
  engine_.check(call);
  if (send_now(op)) return;
  call.waits();
  const auto message = post_send(op, call);
  try {
    wait(op.peer, call, [&] { return message->is_done; });
  } catch (...) {
    withdraw(message);
    throw;
  }
  if (message->error) std::rethrow_exception(message->error);
}

int Messenger::recv(const Operation& op, Call& call) {
  engine_.check(call);
  if (op.peer >= 0 && op.out().size() <= message_bytes) {
    if (recv_now(op)) return op.peer;
    call.waits();
    spin_for_part(op.peer);
    if (recv_now(op)) return op.peer;
  }
  call.waits();
  const auto message = post_recv(op, call);
  try {
    wait(op.peer, call, [&] { return message->is_done; });
  } catch (...) {
    abandon(message);
    throw;
  }
  if (message->error) std::rethrow_exception(message->error);
  return message->source;
}

std::unique_ptr<Transfer> Messenger::start_send(const Operation& op, Call& call) {
  return std::make_unique<Sending>(*this, post_send(op, call), call);
}

std::unique_ptr<Transfer> Messenger::start_recv(const Operation& op, Call& call) {
  return std::make_unique<Receiving>(*this, post_recv(op, call), call);
}

Messenger::OutgoingPtr Messenger::post_send(const Operation& op, const Call& call) {
  engine_.check(call);
  auto message = std::make_shared<Outgoing>();
  message->data = op.in();
  message->peer = op.peer;
  message->tag = op.tag;
  message->type = message_type(op);
  const std::lock_guard lock(mutex_);
  auto& to = peers_[index_of(op.peer)];
  message->id = ++to.next_id;
  to.queue.push_back(message);
  flush(op.peer);
  return message;
}

Messenger::IncomingPtr Messenger::post_recv(const Operation& op, const Call& call) {
  engine_.check(call);
  auto message = std::make_shared<Incoming>();
  message->data = op.out();
  message->peer_or_any = op.peer;
  message->tag = op.tag;
  message->type = message_type(op);
  const std::lock_guard lock(mutex_);
  if (match_unexpected(message)) {
    flush(message->source);  // a notice about it may have to be sent, and nobody else may call to send it
  } else {
    posted_.push_back(message);
  }
  return message;
}

void Messenger::withdraw(const OutgoingPtr& message) {
  const std::lock_guard lock(mutex_);
  if (message->is_done) return;
  message->is_done = message->is_withdrawn = true;
  auto& to = peers_[static_cast<std::size_t>(message->peer)];
  const bool was_streaming = message->is_cleared;
  std::erase(to.queue, message);
  // If it is announced and not yet cleared, it stays listed, and is withdrawn when the receiver asks for it. If the
  // receiver is reading it by itself, it finds out at the end and asks then.
  if (message->is_announced && !was_streaming) board_.ring(rank_, message->peer).withdrawals.withdraw();
  if (was_streaming) to.notices.push_back({.kind = Kind::withdraw, .id = message->id});
  message->data = {};
}

void Messenger::abandon(const IncomingPtr& message) {
  const std::lock_guard lock(mutex_);
  message->is_abandoned = true;
  posted_.remove(message);
}

template <class Done>
void Messenger::wait(int peer_or_any, Call& call, Done&& done) {
  WaitMonitor monitor(engine_, call, Engine::Wait::message);
  monitor.waits_for(peer_or_any);
  for (std::uint32_t round = 0;; ++round) {
    {
      const std::lock_guard lock(mutex_);
      if (done()) return;
      if (progress(peer_or_any)) {
        if (done()) return;
        round = 0;
      }
    }
    if (monitor.next(round) == Pace::sleep) {
      rest(call.deadline());
    } else {
      StdAtomics::pause();
    }
  }
}

void Messenger::rest(Deadline until) {
  auto& info = board_.info(rank_);
  // As with flags, the sleeper announces itself and then looks once more; a sender writes and then looks for sleepers.
  info.listeners.fetch_add(1, std::memory_order_relaxed);
  StdAtomics::heavy_fence();
  const auto heard = info.doorbell.load(std::memory_order_acquire);
  bool moved = false;
  {
    const std::lock_guard lock(mutex_);
    moved = progress(Backend::any_source);
  }
  if (!moved) {
    StdAtomics::futex_wait(info.doorbell, heard, WaitMonitor::max_sleep(until));
  }
  info.listeners.fetch_sub(1, std::memory_order_relaxed);
}

// --- progress

bool Messenger::progress(int peer_or_any) {
  if (peer_or_any >= 0) return progress_peer(peer_or_any);
  bool moved = false;
  for (int peer = 0; peer < engine_.size(); ++peer) moved = progress_peer(peer) || moved;
  return moved;
}

bool Messenger::progress_peer(int peer) {
  const auto& with = peers_[index_of(peer)];
  // Rings are read only if something may arrive that this rank waits for; messages without a receive stay where they
  // are. The exception is a rank that is stuck sending: its peer may be stuck as well until its messages are taken out
  // of the ring.
  const bool awaits = !posted_.empty() || !with.announced.empty() || !with.arriving.empty() || !with.queue.empty();
  bool moved = awaits && drain(peer);
  moved = read_next(peer) || moved;
  return flush(peer) || moved;
}

bool Messenger::has_room(int peer) {
  auto& to = peers_[index_of(peer)];
  if (!to.has_out_ring) {
    board_.reserve_ring(rank_, peer);
    to.has_out_ring = true;
  }
  // The receiver writes this line with each part it takes, so it is read only when the ring looks full.
  if (to.next_out - to.consumed >= depth_) {
    to.consumed = board_.ring(rank_, peer).consumed.flag.value.load(std::memory_order_acquire);
  }
  return to.next_out - to.consumed < depth_;
}

Part* Messenger::next_part(int peer) {
  if (!has_room(peer)) return nullptr;
  const auto next = peers_[index_of(peer)].next_out;
  return &board_.slot(board_.ring(rank_, peer), next).part;
}

void Messenger::publish(int peer, Part& part) {
  part.number.store(++peers_[index_of(peer)].next_out, std::memory_order_release);
  ring(peer);
}

void Messenger::ring(int peer) {
  auto& info = board_.info(peer);
  StdAtomics::light_fence();
  if (info.listeners.load(std::memory_order_relaxed) == 0) return;
  info.doorbell.fetch_add(1, std::memory_order_release);
  StdAtomics::futex_wake(info.doorbell);
}

bool Messenger::flush(int peer) {
  auto& to = peers_[index_of(peer)];
  bool moved = false;
  while (!to.notices.empty()) {
    auto* const part = next_part(peer);
    if (part == nullptr) return moved;
    part->kind = static_cast<std::uint16_t>(to.notices.front().kind);
    part->id = to.notices.front().id;
    part->bytes = 0;
    if (const auto& message = to.notices.front().completes) message->is_done = true;
    to.notices.pop_front();
    publish(peer, *part);
    moved = true;
  }
  while (!to.queue.empty()) {
    const auto message = to.queue.front();
    if (!write_next(peer, *message)) return moved;
    moved = true;
    if (message->is_done) {
      to.queue.pop_front();
    } else if (!message->is_cleared) {
      to.announced.emplace(message->id, message);
      to.queue.pop_front();
    } else if (to.queue.size() > 1) {
      // Long messages take turns, so that none delays another.
      to.queue.pop_front();
      to.queue.push_back(message);
    }
  }
  return moved;
}

bool Messenger::write_next(int peer, Outgoing& message) {
  auto* const part = next_part(peer);
  if (part == nullptr) return false;
  part->tag = message.tag;
  part->type = message.type;
  part->id = message.id;
  part->total = message.data.size();
  part->bytes = 0;
  if (!message.is_cleared && message.data.size() > message_bytes) {
    part->kind = static_cast<std::uint16_t>(Kind::announce);
    const auto offer = offer_of(peer, message);
    std::memcpy(part->payload.data(), &offer, sizeof(offer));
    message.is_announced = true;
  } else {
    const auto bytes = std::min(message_bytes, message.data.size() - message.sent);
    auto& slot = board_.slot(board_.ring(rank_, peer), peers_[index_of(peer)].next_out);
    part->kind = static_cast<std::uint16_t>(message.is_cleared ? Kind::fragment : Kind::eager);
    part->bytes = static_cast<std::uint16_t>(bytes);
    reduce::copy(payload_of(slot, bytes), message.data.data() + message.sent, bytes);
    message.sent += bytes;
    message.is_done = message.sent == message.data.size();
  }
  publish(peer, *part);
  return true;
}

bool Messenger::drain(int peer) {
  auto& from = peers_[index_of(peer)];
  if (!from.has_in_ring) {
    board_.reserve_ring(peer, rank_);
    from.has_in_ring = true;
  }
  auto& ring_in = board_.ring(peer, rank_);
  bool moved = false;
  for (;;) {
    auto& slot = board_.slot(ring_in, from.next_in);
    if (slot.part.number.load(std::memory_order_acquire) != from.next_in + 1) break;
    if (slot.part.bytes <= message_bytes) take(peer, slot.part, payload_of(slot, slot.part.bytes));
    ring_in.consumed.flag.value.store(++from.next_in, std::memory_order_release);
    moved = true;
  }
  // The doorbell is rung once for any number of parts, because a sender that waits for room checks the whole ring.
  if (moved) ring(peer);
  return moved;
}

void Messenger::take(int peer, const Part& part, const std::byte* payload) {
  auto& from = peers_[index_of(peer)];
  switch (static_cast<Kind>(part.kind)) {
    case Kind::eager:
      if (const auto message = match(peer, part.tag)) {
        deliver(peer, message, part, payload);
      } else {
        from.unexpected.push_back({.tag = part.tag, .type = part.type, .data = {payload, payload + part.bytes}});
      }
      break;
    case Kind::announce: {
      Offer offer;
      std::memcpy(&offer, part.payload.data(), sizeof(offer));
      if (const auto message = match(peer, part.tag)) {
        accept_announced(peer, message, part.type, part.id, part.total, offer);
      } else {
        from.unexpected.push_back({.tag = part.tag,
                                   .type = part.type,
                                   .id = part.id,
                                   .total = part.total,
                                   .is_announced = true,
                                   .offer = offer});
      }
      break;
    }
    case Kind::taken:
      if (const auto it = from.announced.find(part.id); it != from.announced.end()) {
        it->second->is_done = true;
        from.announced.erase(it);
      }
      break;
    case Kind::clear:
      if (const auto it = from.announced.find(part.id); it != from.announced.end()) {
        if (it->second->is_withdrawn) {
          from.notices.push_back({.kind = Kind::withdraw, .id = part.id});
        } else {
          it->second->is_cleared = true;
          from.queue.push_back(it->second);
        }
        from.announced.erase(it);
      }
      break;
    case Kind::refuse:
      if (const auto it = from.announced.find(part.id); it != from.announced.end()) {
        it->second->error = std::make_exception_ptr(MismatchError(
            fmt::format(
                "rank {} expects another size or type than the {} bytes of {} that rank {} sends it with tag {}", peer,
                it->second->data.size(), to_string(static_cast<DType>(it->second->type & 0xffU)), rank_,
                it->second->tag),
            {.group = engine_.group(), .op = "send", .rank = peer}));
        it->second->is_done = true;
        from.announced.erase(it);
      }
      break;
    case Kind::fragment:
      if (const auto it = from.arriving.find(part.id); it != from.arriving.end()) {
        auto& message = *it->second;
        if (!message.is_abandoned && part.bytes <= message.data.size() - message.received)
          reduce::copy(message.data.data() + message.received, payload, part.bytes);
        message.received += part.bytes;
        if (message.received >= message.data.size()) {
          has_arrived(message);
          message.is_done = true;
          from.arriving.erase(it);
        }
      }
      break;
    case Kind::withdraw:
      if (const auto it = from.arriving.find(part.id); it != from.arriving.end()) {
        it->second->error =
            std::make_exception_ptr(BackendError(fmt::format("rank {} gave up on sending it", peer),
                                                 {.group = engine_.group(), .op = "recv", .rank = peer}));
        it->second->is_done = true;
        from.arriving.erase(it);
      }
      break;
  }
}

Messenger::IncomingPtr Messenger::match(int peer, int tag) {
  const auto it = std::find_if(posted_.begin(), posted_.end(), [&](const IncomingPtr& message) {
    return message->tag == tag && (message->peer_or_any == peer || message->peer_or_any == Backend::any_source);
  });
  if (it == posted_.end()) return nullptr;
  auto message = *it;
  posted_.erase(it);
  message->source = peer;
  return message;
}

bool Messenger::match_unexpected(const IncomingPtr& message) {
  for (int peer = 0; peer < engine_.size(); ++peer) {
    if (message->peer_or_any != Backend::any_source && message->peer_or_any != peer) continue;
    auto& waiting = peers_[index_of(peer)].unexpected;
    const auto it =
        std::find_if(waiting.begin(), waiting.end(), [&](const Unexpected& each) { return each.tag == message->tag; });
    if (it == waiting.end()) continue;
    message->source = peer;
    if (it->is_announced) {
      accept_announced(peer, message, it->type, it->id, it->total, it->offer);
    } else {
      message->error = disagreement(peer, it->data.size(), it->type, *message);
      if (!message->error) reduce::copy(message->data.data(), it->data.data(), it->data.size());
      message->is_done = true;
    }
    waiting.erase(it);
    return true;
  }
  return false;
}

void Messenger::deliver(int peer, const IncomingPtr& message, const Part& part, const std::byte* payload) {
  message->error = disagreement(peer, part.bytes, part.type, *message);
  if (!message->error) reduce::copy(message->data.data(), payload, part.bytes);
  message->is_done = true;
}

void Messenger::accept_announced(int peer, const IncomingPtr& message, std::uint32_t type, std::uint64_t id,
                                 std::uint64_t total, const Offer& offer) {
  auto& from = peers_[index_of(peer)];
  if (message->error = disagreement(peer, total, type, *message); message->error) {
    message->is_done = true;
    from.notices.push_back({.kind = Kind::refuse, .id = id});
  } else if (offer.kind == Offer::Kind::group_memory ||
             (offer.kind == Offer::Kind::ordinary && will_read(from, *message))) {
    from.reading.push_back({.message = message, .id = id, .offer = offer});
  } else {
    ask_for_parts(peer, message, id);
  }
}

void Messenger::ask_for_parts(int peer, const IncomingPtr& message, std::uint64_t id) {
  auto& from = peers_[index_of(peer)];
  message->received = 0;
  from.arriving.emplace(id, message);
  from.notices.push_back({.kind = Kind::clear, .id = id});
}

std::exception_ptr Messenger::disagreement(int from, std::uint64_t sent, std::uint32_t type,
                                           const Incoming& message) const {
  if (sent == message.data.size() && type == message.type) return nullptr;
  return std::make_exception_ptr(
      MismatchError(describe_wrong_message(from, sent, type, rank_, message.data.size(), message.type),
                    {.group = engine_.group(), .op = "recv", .rank = from}));
}

}  // namespace cohort::shm
