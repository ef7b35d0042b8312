// SPDX-License-Identifier: BSD-3-Clause
//
// Sends and receives over a mesh: matched by peer and tag, in order; a message of another size than expected is an
// error that affects nothing else.
//
// A message is sent as a frame, which holds its size and number and, if the message is short, its data; the sender of a
// short message does not wait until it is received. The data of a long message follows by itself, straight from the
// sender's memory to the receiver's, once the receiver has seen the frame (one more round trip).
//
// Gloo matches receives from one peer and receives from any peer separately, and cannot cancel a receive. Frames are
// therefore received from any rank, into buffers of this class, and matched here: the first receive of a tag that
// accepts the sender gets the frame, and a receive that is abandoned leaves its frame to the next one. Only a long
// message whose memory Gloo is using already cannot be abandoned without failing the mesh.
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
  /// Longer messages are sent apart from their frame. Copying this much costs less than a round trip.
  static constexpr std::size_t longest_inline = std::size_t{32} << 10U;

  PointToPoint(std::shared_ptr<Mesh> mesh, int rank, int size);

  /// A transfer that can also be waited for.
  class Pending : public Transfer {
   public:
    /// Waits until `deadline`; returns whether the transfer is complete.
    virtual bool finish(Deadline deadline) = 0;
    bool advance() override { return finish(Deadline::at(Deadline::Clock::time_point{})); }
  };
  std::unique_ptr<Pending> start_send(const Operation& op);
  /// `wrong_message` makes the error for a message of another size or type (message_type()) from `peer`.
  using WrongMessage = std::function<std::exception_ptr(int peer, std::uint64_t sent, std::uint32_t type)>;
  std::unique_ptr<Pending> start_recv(const Operation& op, WrongMessage wrong_message);

  /// Waits until everything that was sent has left.
  void flush(Deadline deadline);

 private:
  class Sending;
  class Receiving;

  /// The number of short messages of a tag that may be in flight to a peer before their sender waits.
  static constexpr std::size_t most_leaving = 16;

  /// What every frame begins with.
  struct Header {
    std::uint64_t bytes;
    std::uint64_t number;
    std::uint32_t type;  ///< message_type()
    std::uint32_t unused;
  };

  /// A frame in flight, or one that has arrived.
  struct Frame {
    explicit Frame(std::size_t bytes) : memory(bytes) {}
    std::vector<std::byte> memory;
    std::unique_ptr<Message> message;  ///< declared after the memory, so that it is destroyed first
    int peer = -1;
  };
  using FramePtr = std::shared_ptr<Frame>;
  /// All receives of a tag. Frames arrive in the order in which they were posted.
  struct Channel {
    std::deque<FramePtr> posted;   ///< at least as many as there are waiting receives
    std::deque<FramePtr> arrived;  ///< frames that no receive waits for
    std::deque<Receiving*> waiting;
  };
  using Key = std::pair<int, int>;  ///< peer and tag

  static constexpr std::size_t header_bytes = sizeof(Header);
  static std::uint64_t frame_slot(int tag);
  static std::uint64_t payload_slot(int from, int to, std::uint64_t number);
  FramePtr post_frame(int tag);
  /// Hands arrived frames to the receives that accept them.
  void match(Channel& channel, int tag);
  /// Waits until something may have arrived.
  void wait_for_frame(int tag, Deadline deadline);
  /// Waits until at most `at_most` frames are leaving, or until the deadline; returns whether that is so.
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
