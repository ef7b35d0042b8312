// SPDX-License-Identifier: BSD-3-Clause
//
// Sends and receives over a mesh: matched by peer and tag, in order; a message of another size than expected is an
// error and takes nothing with it.
//
// A message goes as a frame: its size and number, and, if it is short, itself; the sender of a short one does not wait
// until it is received. A long one follows in a message of its own, straight from the sender's memory to the
// receiver's, once the receiver has seen the frame (one round trip more).
//
// Gloo matches receives from one peer and receives from any apart from each other, and cannot take one back. So frames
// are received from anybody, into memory of ours, and matched here: the first receive of a tag that accepts the sender
// gets it, and one that is given up leaves its frame to the next. Only a long message whose memory Gloo has been told
// cannot be given up: that fails the mesh.
#pragma once

#include <cohort/backend.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "backends/gloo/engine_interface.h"

namespace cohort::gloo {

class PointToPoint {
 public:
  /// Longer ones go by themselves. Copying this much costs less than a round trip.
  static constexpr std::size_t longest_inline = std::size_t{32} << 10U;

  PointToPoint(std::shared_ptr<Mesh> mesh, int rank, int size);

  /// A transfer that can also be waited for.
  class Pending : public Transfer {
   public:
    /// Whether it is done by then.
    virtual bool finish(Deadline deadline) = 0;
    bool advance() override { return finish(Deadline::at(Deadline::Clock::time_point{})); }
  };
  std::unique_ptr<Pending> start_send(ConstBytes data, int peer, int tag);
  /// `wrong_size` makes the error for a message of `sent` bytes from `peer`.
  using WrongSize = std::function<std::exception_ptr(int peer, std::uint64_t sent)>;
  std::unique_ptr<Pending> start_recv(Bytes data, int peer_or_any, int tag, WrongSize wrong_size);

  /// Waits until what was sent has left.
  void flush(Deadline deadline);

 private:
  class Sending;
  class Receiving;

  /// So many short messages of a tag may be on their way to a peer before their sender waits.
  static constexpr std::size_t most_leaving = 16;

  /// What travels, or has arrived.
  struct Frame {
    explicit Frame(std::size_t bytes) : memory(bytes) {}
    std::vector<std::byte> memory;
    std::unique_ptr<Message> message;  ///< before the memory goes
    int peer = -1;
  };
  using FramePtr = std::shared_ptr<Frame>;
  /// All receives of a tag. Frames arrive in the order they were posted.
  struct Channel {
    std::deque<FramePtr> posted;   ///< at least as many as wait
    std::deque<FramePtr> arrived;  ///< that nobody waits for
    std::deque<Receiving*> waiting;
  };
  using Key = std::pair<int, int>;  ///< peer and tag

  static constexpr std::size_t header_bytes = 2 * sizeof(std::uint64_t);
  static std::uint64_t frame_slot(int tag);
  static std::uint64_t payload_slot(int from, int to, std::uint64_t number);
  FramePtr post_frame(int tag);
  /// Hands out what has arrived.
  void match(Channel& channel, int tag);
  /// Waits until something may have arrived.
  void wait_for_frame(int tag, Deadline deadline);
  /// Whether at most so many are leaving, waiting for that until the deadline.
  bool wait_until_left(const Key& key, std::size_t at_most, Deadline deadline);

  const std::shared_ptr<Mesh> mesh_;
  const int rank_;
  std::vector<int> others_;

  std::mutex mutex_;
  std::map<int, Channel> channels_;  ///< by tag
  std::map<Key, std::deque<FramePtr>> leaving_;
  std::uint64_t next_number_ = 0;
};

}  // namespace cohort::gloo
