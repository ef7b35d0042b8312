// SPDX-License-Identifier: BSD-3-Clause
//
// Point-to-point messages between ranks that share memory.
//
// From every rank to every other there is a ring of parts. A message that fits into one part is sent at once ("eager").
// A longer one is announced. Once it matches a receive, the receiver copies it out of the sender's memory if it can
// access that, which is one copy, or has its parts sent through the ring, which is two. In ordinary memory, which the
// kernel reads, either can be faster; that is measured (auto_tuner.h). Both go straight into the receive's memory. A
// message that nobody has posted a receive for yet therefore takes at most 16 KiB of the receiver's memory and never
// blocks others: messages match by peer and tag, in order, and progress independently.
//
// There is no background thread: whoever waits for a transfer, or advances one, moves everything that can be moved.
#pragma once

#include <cohort/backend.h>

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "backends/shm/auto_tuner.h"
#include "backends/shm/engine.h"

namespace cohort::shm {

class Messenger {
 public:
  explicit Messenger(Engine& engine);

  void send(const Operation& op, Call& call);
  int recv(const Operation& op, Call& call);
  std::unique_ptr<Transfer> start_send(const Operation& op, Call& call);
  std::unique_ptr<Transfer> start_recv(const Operation& op, Call& call);
  /// Sleeps until something may have moved, until `until`, or for a short while, whichever comes first.
  void rest(Deadline until);

 private:
  enum class Kind : std::uint16_t {
    eager,     ///< a whole message
    announce,  ///< announces a message of `total` bytes
    clear,     ///< the message with this id may be sent
    taken,     ///< the message has been copied out of the sender's memory
    refuse,    ///< the message has the wrong size or type
    fragment,  ///< a part of a long message
    withdraw,  ///< the message will not be sent after all
  };

  struct Outgoing {
    ConstBytes data{};
    int peer = 0;
    int tag = 0;
    std::uint32_t type = 0;
    std::uint64_t id = 0;
    std::size_t sent = 0;
    bool is_announced = false;
    bool is_cleared = false;
    bool is_done = false;
    bool is_withdrawn = false;
    std::exception_ptr error{};
  };
  /// A message whose time is measured.
  struct Trial {
    AutoTuner::Way way{};
    Deadline::Clock::time_point start{};
  };
  struct Incoming {
    Bytes data{};
    int peer_or_any = 0;
    int tag = 0;
    std::uint32_t type = 0;
    int source = -1;
    std::size_t received = 0;
    bool is_done = false;
    bool is_abandoned = false;  ///< its memory must not be written any more
    std::optional<Trial> trial{};
    std::exception_ptr error{};
  };
  using OutgoingPtr = std::shared_ptr<Outgoing>;
  using IncomingPtr = std::shared_ptr<Incoming>;

  /// Where the memory of an announced message is; in the announcing part.
  struct Offer {
    enum class Kind : std::uint32_t { none, group_memory, ordinary };
    std::uint64_t location = 0;  ///< as in Lane (exchange.h)
    Kind kind = Kind::none;
    std::uint32_t withdrawals = 0;  ///< the count when it was announced (withdrawals.h)
  };
  static_assert(sizeof(Offer) <= post_inline_bytes);

  /// A message that this rank copies out of the sender's memory, a piece in each round of progress.
  struct Reading {
    IncomingPtr message{};
    std::uint64_t id = 0;
    Offer offer{};
  };

  /// A message that arrived before a matching receive was posted.
  struct Unexpected {
    int tag = 0;
    std::uint32_t type = 0;
    std::uint64_t id = 0;
    std::uint64_t total = 0;
    bool is_announced = false;
    Offer offer{};
    std::vector<std::byte> data{};
  };
  /// A control part without data, about one of the peer's messages or one of ours.
  struct Notice {
    Kind kind{};
    std::uint64_t id = 0;
    /// The receive that is done when the notice has been written: nobody may come back later to write it.
    IncomingPtr completes{};
  };

  struct Peer {
    bool has_out_ring = false;
    bool has_in_ring = false;
    std::uint32_t next_out = 0;  ///< parts written
    std::uint32_t next_in = 0;   ///< parts read
    std::uint32_t consumed = 0;  ///< parts that the peer has read, as far as this rank has looked
    std::uint64_t next_id = 0;
    std::deque<Notice> notices{};
    std::deque<OutgoingPtr> queue{};                   ///< not announced yet, or cleared and not all sent
    std::map<std::uint64_t, OutgoingPtr> announced{};  ///< waiting for clear
    std::map<std::uint64_t, IncomingPtr> arriving{};   ///< cleared by this rank
    std::deque<Reading> reading{};
    std::deque<Unexpected> unexpected{};
  };

  class AsyncTransfer;
  class Sending;
  class Receiving;

  /// A fast path for short messages when nothing else is queued; it allocates nothing. Returns false if it cannot be
  /// taken.
  bool send_now(const Operation& op);
  bool recv_now(const Operation& op);
  /// Waits for a moment until the next part from a peer is there.
  void spin_for_part(int peer);

  OutgoingPtr post_send(const Operation& op, const Call& call);
  IncomingPtr post_recv(const Operation& op, const Call& call);
  void withdraw(const OutgoingPtr& message);
  void abandon(const IncomingPtr& message);

  /// Returns whether anything moved. These are all called with the mutex held.
  bool progress(int peer_or_any);
  bool progress_peer(int peer);
  bool flush(int peer);
  bool drain(int peer);
  bool has_room(int peer);
  Offer offer_of(int peer, const Outgoing& message) const;
  /// Copies the next piece of a message that this rank reads by itself.
  bool read_next(int peer);
  bool copy_piece(int peer, const Reading& reading, std::size_t bytes);
  Part* next_part(int peer);
  void publish(int peer, Part& part);
  bool write_next(int peer, Outgoing& message);
  void take(int peer, const Part& part, const std::byte* payload);
  void deliver(int peer, const IncomingPtr& message, const Part& part, const std::byte* payload);
  IncomingPtr match(int peer, int tag);
  bool match_unexpected(const IncomingPtr& message);
  void accept_announced(int peer, const IncomingPtr& message, std::uint32_t type, std::uint64_t id, std::uint64_t total,
                        const Offer& offer);
  /// Whether to read an announced message in ordinary memory rather than to ask for its parts.
  bool will_read(const Peer& from, Incoming& message);
  void has_arrived(Incoming& message);
  void ask_for_parts(int peer, const IncomingPtr& message, std::uint64_t id);
  void ring(int peer);
  /// Null if a message of this size and type is what the receive expects.
  std::exception_ptr disagreement(int from, std::uint64_t sent, std::uint32_t type, const Incoming& message) const;

  /// Waits, advancing all transfers, until `done()` returns true.
  template <class Done>
  void wait(int peer_or_any, Call& call, Done&& done);

  Engine& engine_;
  const Board& board_;
  const int rank_;
  const std::uint32_t depth_ = message_depth(board_.ranks());
  std::mutex mutex_;
  AutoTuner tuner_;
  std::vector<Peer> peers_;
  std::list<IncomingPtr> posted_;
};

}  // namespace cohort::shm
