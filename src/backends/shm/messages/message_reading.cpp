// SPDX-License-Identifier: BSD-3-Clause
//
// The part of the messenger in which a receiver copies an announced message out of the sender's memory by itself, a
// piece in each round of progress, and decides whether to.
#include <algorithm>

#include "backends/shm/collectives/tuning.h"
#include "backends/shm/messages/messenger.h"
#include "core/rank_index.h"
#include "reduce/copy.h"

namespace cohort::shm {

namespace {

/// What is read of a message before others get their turn.
constexpr std::size_t longest_piece = mib;

}  // namespace

bool Messenger::will_read(const Peer& from, Incoming& message) {
  const auto bytes = message.data.size();
  const auto way = tuner_.next(AutoTuner::Pattern::message, bytes, AutoTuner::message_ways);
  // The time of a message that shares the ring with others says nothing.
  if (from.reading.empty() && from.arriving.empty()) message.trial = Trial{.way = way, .start = Deadline::Clock::now()};
  return way == AutoTuner::Way::read;
}

void Messenger::has_arrived(Incoming& message) {
  // What was abandoned has not been copied.
  if (!message.trial || message.is_abandoned) return;
  tuner_.took(message.trial->way, AutoTuner::Pattern::message, message.data.size(),
              Deadline::Clock::now() - message.trial->start);
}

Messenger::Offer Messenger::offer_of(int peer, const Outgoing& message) const {
  Offer offer{.withdrawals = board_.ring(rank_, peer).withdrawals.count()};
  const auto& memory = engine_.peer_memory();
  if (const auto location = memory.locate(message.data.data(), message.data.size())) {
    offer.location = *location;
    offer.kind = Offer::Kind::group_memory;
  } else if (memory.reads_ordinary()) {
    offer.location = reinterpret_cast<std::uint64_t>(message.data.data());
    offer.kind = Offer::Kind::ordinary;
  }
  return offer;
}

bool Messenger::read_next(int peer) {
  auto& from = peers_[index_of(peer)];
  if (from.reading.empty()) return false;
  const auto reading = from.reading.front();
  auto& message = *reading.message;
  const auto left = message.data.size() - message.received;
  if (!message.is_abandoned) {
    const auto bytes = std::min(left, longest_piece);
    if (!copy_piece(peer, reading, bytes)) {
      message.trial.reset();
      from.reading.pop_front();
      ask_for_parts(peer, reading.message, reading.id);
      return true;
    }
    message.received += bytes;
    if (bytes < left) {
      // Long messages take turns, so that none delays another.
      from.reading.pop_front();
      from.reading.push_back(reading);
      return true;
    }
  }
  from.reading.pop_front();
  if (!board_.ring(peer, rank_).withdrawals.is_valid(reading.offer.withdrawals)) {
    message.trial.reset();
    ask_for_parts(peer, reading.message, reading.id);
    return true;
  }
  has_arrived(message);
  from.notices.push_back({.kind = Kind::taken, .id = reading.id, .completes = reading.message});
  return true;
}

/// Returns false if the memory cannot be read, because the sender ends or lies.
bool Messenger::copy_piece(int peer, const Reading& reading, std::size_t bytes) {
  const auto& message = *reading.message;
  const auto& memory = engine_.peer_memory();
  auto* const to = message.data.data() + message.received;
  if (reading.offer.kind == Offer::Kind::group_memory) {
    const auto* const from = memory.find(peer, reading.offer.location, message.data.size());
    if (from == nullptr) return false;
    bypasses_caches({&message.data, 1}) ? reduce::stream_copy(to, from + message.received, bytes)
                                        : reduce::copy(to, from + message.received, bytes);
    return true;
  }
  if (!memory.reads_ordinary()) return false;
  try {
    memory.read(peer, reading.offer.location + message.received, to, bytes);
    return true;
  } catch (const BackendError&) {
    return false;
  }
}

}  // namespace cohort::shm
