// SPDX-License-Identifier: BSD-3-Clause
//
// The collectives in which every piece has one sender and one receiver: each piece goes straight from memory to memory,
// all at once, without being packed or forwarded. (Gloo's own collectives need the pieces in one buffer, and it has no
// reduce-scatter: PyTorch composes it of all-reduces, which move W times the bytes.)
#pragma once

#include <cohort/backend.h>

#include <memory>
#include <vector>

#include "backends/gloo/engine_interface.h"

namespace cohort::gloo {

/// Messages in flight together. If an Exchange is destroyed before they are complete, it fails the mesh, because Gloo
/// still uses their memory.
class Exchange {
 public:
  /// `operation` is a digest of what the ranks must agree on.
  Exchange(Mesh& mesh, std::uint64_t operation) : mesh_(mesh), operation_(operation) {}
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// A piece without bytes is sent as well: it shows that its sender has entered the operation.
  void send(ConstBytes data, int to);
  void recv(Bytes data, int from);
  /// Returns false if not all messages are complete by the deadline.
  bool finish(Deadline deadline);

 private:
  std::unique_ptr<Message>& message(const void* data, std::size_t bytes);

  Mesh& mesh_;
  const std::uint64_t operation_;
  std::vector<std::unique_ptr<Message>> messages_;
};

}  // namespace cohort::gloo
