// SPDX-License-Identifier: BSD-3-Clause
//
// The collectives in which every piece has one sender and one receiver: each goes straight from memory to memory, all
// at once, without being packed or passed on. (Gloo's own want the pieces in one buffer, and reduce-scatter it has
// none: PyTorch makes it of all-reduces, W times the bytes.)
#pragma once

#include <cohort/backend.h>

#include <memory>
#include <vector>

#include "backends/gloo/engine_interface.h"

namespace cohort::gloo {

/// Messages under way together. If one goes out of scope before they are done, the mesh is failed: Gloo knows their
/// memory.
class Exchange {
 public:
  /// `operation` is a digest of what the ranks must agree on.
  Exchange(Mesh& mesh, std::uint64_t operation) : mesh_(mesh), operation_(operation) {}
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// A piece without bytes is sent as well: it says that its sender has come.
  void send(ConstBytes data, int to);
  void recv(Bytes data, int from);
  /// False: not all by the deadline.
  bool finish(Deadline deadline);

 private:
  std::unique_ptr<Message>& message(const void* data, std::size_t bytes);

  Mesh& mesh_;
  const std::uint64_t operation_;
  std::vector<std::unique_ptr<Message>> messages_;
};

}  // namespace cohort::gloo
