// SPDX-License-Identifier: BSD-3-Clause
//
// What Cohort needs of Gloo, in terms that name none of its types: the module libcohort_gloo.so implements it, the
// backend in the core library is written against it, and a test double can take its place.
//
// Everything here throws std::exception for what went wrong below; the backend translates.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace cohort::gloo {

using Time = std::chrono::steady_clock::time_point;

/// One piece of memory, sent or received once. Gloo cannot take an operation back: a Message whose operation is not
/// done must stay until it is, or until its mesh has failed.
class Message {
 public:
  virtual ~Message() = default;

  /// Matched with the peer's by slot, in order. A message longer than its receiver expects ends the receiver's process
  /// (Gloo throws on its own thread), so slots must tell apart what differs in size.
  virtual void send(int to, std::uint64_t slot, std::size_t bytes) = 0;
  virtual void recv(int from, std::uint64_t slot, std::size_t bytes) = 0;
  virtual void recv_any(std::span<const int> from, std::uint64_t slot, std::size_t bytes) = 0;

  /// Whether it is done, waiting for that until `until` (a time that has passed: not at all). Throws if its connection
  /// broke. Waiting in vain harms nobody. Any thread; asking without waiting costs a thread while it is not done.
  virtual bool is_done(Time until) = 0;
  /// The other side, once it is done.
  virtual int peer() const = 0;
};

/// out[i] = a[i] op b[i]; `out` may be one of the others.
using Combine = std::function<void(void* out, const void* a, const void* b, std::size_t count)>;

/// Connections from every rank to every other, and Gloo's collectives over them. `tag` tells operations apart: ranks
/// whose tags differ do not meet. `timeout` is for each wait inside Gloo, of which an operation has many.
class Mesh {
 public:
  virtual ~Mesh() = default;

  using Put = std::function<void(const std::string& key, const std::string& value)>;
  using Get = std::function<std::string(const std::string& key)>;
  /// Once, first of all; all ranks. `get` waits for the key. fail() ends it.
  virtual void connect(const Put& put, const Get& get) = 0;

  struct Operands {
    const void* in = nullptr;
    void* out = nullptr;
    std::size_t count = 0;
    std::size_t element_bytes = 1;
  };
  virtual void all_reduce(const Operands& data, const Combine& combine, std::uint32_t tag,
                          std::chrono::milliseconds timeout) = 0;
  virtual void reduce(const Operands& data, const Combine& combine, int root, std::uint32_t tag,
                      std::chrono::milliseconds timeout) = 0;
  virtual void broadcast(void* data, std::size_t bytes, int root, std::uint32_t tag,
                         std::chrono::milliseconds timeout) = 0;
  /// `bytes` from everybody, one after another into `out`. A null `in`: they are in their place there already.
  virtual void all_gather(const void* in, void* out, std::size_t bytes, std::uint32_t tag,
                          std::chrono::milliseconds timeout) = 0;
  virtual void barrier(std::uint32_t tag, std::chrono::milliseconds timeout) = 0;

  virtual std::unique_ptr<Message> message(void* data, std::size_t bytes) = 0;

  /// Ends whatever waits, here at once and at the peers because their connections close. Any thread; for good.
  virtual void fail(const std::string& why) = 0;
  /// Whether the connection to this rank has ended. To be asked when something has failed.
  virtual bool is_broken(int rank) = 0;
};

struct MeshOptions {
  int rank = 0;
  int size = 1;
  /// The local address to listen on and connect from, as a number ("10.0.0.1").
  std::string address{};
  /// For each connection.
  std::chrono::milliseconds timeout{};
};

/// Exported by the module under this name.
using MakeMesh = std::unique_ptr<Mesh> (*)(const MeshOptions& options);
inline constexpr auto make_mesh_symbol = "cohort_gloo_make_mesh_1";

}  // namespace cohort::gloo
