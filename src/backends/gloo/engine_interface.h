// SPDX-License-Identifier: BSD-3-Clause
//
// What Cohort needs of Gloo, without any of Gloo's types: the module libcohort_gloo.so implements this interface, the
// backend in the core library is written against it, and a test double can take its place.
//
// Everything here reports errors as std::exception, which the backend translates.
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

/// One piece of memory, sent or received once. Gloo cannot cancel an operation: a Message whose operation is not
/// complete must be kept until it is, or until its mesh has failed.
class Message {
 public:
  virtual ~Message() = default;

  /// Matched with the peer's message by slot, in order. A message longer than its receiver expects ends the receiver's
  /// process (Gloo throws on its own thread), so messages that differ in size must have different slots.
  virtual void send(int to, std::uint64_t slot, std::size_t bytes) = 0;
  virtual void recv(int from, std::uint64_t slot, std::size_t bytes) = 0;
  virtual void recv_any(std::span<const int> from, std::uint64_t slot, std::size_t bytes) = 0;

  /// Whether it is complete; waits for that until `until` (not at all if that time has passed). Throws if its
  /// connection broke. A wait that ends without success does no harm. Thread-safe; a call without waiting uses a thread
  /// until the message is complete.
  virtual bool is_done(Time until) = 0;
  /// The other side; valid once it is complete.
  virtual int peer() const = 0;
};

/// out[i] = a[i] op b[i]; `out` may be one of the inputs.
using Combine = std::function<void(void* out, const void* a, const void* b, std::size_t count)>;

/// Connections from every rank to every other, and Gloo's collectives over them. `tag` distinguishes operations: those
/// of ranks whose tags differ do not match. `timeout` applies to each wait inside Gloo, of which an operation has many.
class Mesh {
 public:
  virtual ~Mesh() = default;

  using Put = std::function<void(const std::string& key, const std::string& value)>;
  using Get = std::function<std::string(const std::string& key)>;
  /// Called once, before anything else, by all ranks. `get` waits for the key. fail() ends the call.
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
  /// Gathers `bytes` from every rank, one after another, into `out`. If `in` is null, this rank's piece is in its place
  /// already.
  virtual void all_gather(const void* in, void* out, std::size_t bytes, std::uint32_t tag,
                          std::chrono::milliseconds timeout) = 0;
  virtual void barrier(std::uint32_t tag, std::chrono::milliseconds timeout) = 0;

  virtual std::unique_ptr<Message> message(void* data, std::size_t bytes) = 0;

  /// Ends all waits, here at once and at the peers because their connections close. Thread-safe and final.
  virtual void fail(const std::string& why) = 0;
  /// Whether the connection to this rank has ended. To be called after something has failed.
  virtual bool is_broken(int rank) = 0;
};

struct MeshOptions {
  int rank = 0;
  int size = 1;
  /// The local address to listen on and connect from, as a number ("10.0.0.1").
  std::string address{};
  /// The timeout of each connection.
  std::chrono::milliseconds timeout{};
};

/// The module exports this function under the name below.
using MakeMesh = std::unique_ptr<Mesh> (*)(const MeshOptions& options);
inline constexpr auto make_mesh_symbol = "cohort_gloo_make_mesh_1";

}  // namespace cohort::gloo
