// SPDX-License-Identifier: BSD-3-Clause
//
// Point-to-point messages between ranks that share memory.
//
// From every rank to every other there is a ring of parts. A message that fits one part goes at once ("eager"); a
// longer one is announced, and its parts follow when the receiver has found where they belong, straight into that
// memory. So a message nobody has asked for yet takes at most 16 KiB of the receiver's memory and never stands in the
// way of others: messages match by peer and tag, in order, and progress independently.
//
// Nothing happens behind the scenes: whoever waits, or advances a transfer, moves everything that can move.
#pragma once

#include <cohort/backend.h>

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/shm/engine.h"

namespace cohort::shm {

class Messenger {
 public:
  explicit Messenger(Engine& engine);

  void send(const Operation& op, Call& call);
  int recv(const Operation& op, Call& call);
  std::unique_ptr<Transfer> start_send(const Operation& op, Call& call);
  std::unique_ptr<Transfer> start_recv(const Operation& op, Call& call);
  /// Until something may have moved, at most until `until` and a short while.
  void rest(Deadline until);

 private:
  enum class Kind : std::uint32_t {
    eager,     ///< a whole message
    announce,  ///< a message of `total` bytes wants to come
    clear,     ///< the message with this id may come
    refuse,    ///< it has the wrong size
    fragment,  ///< a part of it
    withdraw,  ///< it will not come after all
  };

  struct Outgoing {
    ConstBytes data{};
    int peer = 0;
    int tag = 0;
    std::uint64_t id = 0;
    std::size_t sent = 0;
    bool is_announced = false;
    bool is_cleared = false;
    bool is_done = false;
    bool is_withdrawn = false;
    std::exception_ptr error{};
  };
  struct Incoming {
    Bytes data{};
    int peer_or_any = 0;
    int tag = 0;
    int source = -1;
    std::size_t received = 0;
    bool is_done = false;
    bool is_abandoned = false;  ///< its memory is not ours any more
    std::exception_ptr error{};
  };
  using OutgoingPtr = std::shared_ptr<Outgoing>;
  using IncomingPtr = std::shared_ptr<Incoming>;

  /// Came before anybody asked for it.
  struct Unexpected {
    int tag = 0;
    std::uint64_t id = 0;
    std::uint64_t total = 0;
    bool is_announced = false;
    std::vector<std::byte> data{};
  };
  /// A word to a peer about one of its messages, or of ours.
  struct Notice {
    Kind kind{};
    std::uint64_t id = 0;
  };

  struct Peer {
    bool has_out_ring = false;
    bool has_in_ring = false;
    std::uint32_t next_out = 0;  ///< parts written
    std::uint32_t next_in = 0;   ///< parts read
    std::uint64_t next_id = 0;
    std::deque<Notice> notices{};
    std::deque<OutgoingPtr> queue{};                   ///< not announced yet, or cleared and not all sent
    std::map<std::uint64_t, OutgoingPtr> announced{};  ///< waiting for clear
    std::map<std::uint64_t, IncomingPtr> arriving{};   ///< cleared by us
    std::deque<Unexpected> unexpected{};
  };

  class Sending;
  class Receiving;

  /// The short way for short messages, when nothing else is in it: nothing is allocated. False: not now.
  bool send_now(ConstBytes data, int peer, int tag);
  bool recv_now(Bytes data, int peer, int tag);

  OutgoingPtr post_send(const Operation& op, const Call& call);
  IncomingPtr post_recv(const Operation& op, const Call& call);
  void withdraw(const OutgoingPtr& message);
  void abandon(const IncomingPtr& message);

  /// Whether anything moved. All with the mutex held.
  bool progress(int peer_or_any);
  bool progress_peer(int peer);
  bool flush(int peer);
  bool drain(int peer);
  bool has_room(int peer);
  Part* next_part(int peer);
  void publish(int peer, Part& part);
  bool write_next(int peer, Outgoing& message);
  void take(int peer, const Part& part, const std::byte* payload);
  void deliver(int peer, const IncomingPtr& message, const Part& part, const std::byte* payload);
  IncomingPtr match(int peer, int tag);
  bool match_unexpected(const IncomingPtr& message);
  void accept_announced(int peer, const IncomingPtr& message, std::uint64_t id, std::uint64_t total);
  void ring(int peer);
  std::exception_ptr wrong_size(int from, std::uint64_t sent, std::size_t expected) const;

  /// Throws if waiting for the peer is in vain; the second time it finds so.
  void check(int peer_or_any, const Call& call, bool& looked_again);
  /// Waits, advancing everything, until `done()`.
  template <class Done>
  void wait(int peer_or_any, Call& call, Done&& done);

  Engine& engine_;
  const Board& board_;
  const int rank_;
  std::mutex mutex_;
  std::vector<Peer> peers_;
  std::list<IncomingPtr> posted_;
};

}  // namespace cohort::shm
