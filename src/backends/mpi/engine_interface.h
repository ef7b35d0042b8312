// SPDX-License-Identifier: BSD-3-Clause
//
// What Cohort needs of an MPI, without mpi.h: every MPI has a binary interface of its own, so each has a module of its
// own (module.cpp, compiled once for each), and the backend is written against this interface.
//
// All communication is non-blocking: a call starts it and test() tells whether it is done, so that a caller can stop
// waiting. Handles are MPI's own, as bits. A call that cannot be started throws a std::runtime_error with MPI's
// message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace cohort::mpi {

enum class Communicator : std::uint64_t {};
enum class Request : std::uint64_t {};
/// A message that was matched: no other receive can get it.
enum class Message : std::uint64_t {};

enum class ThreadLevel : std::uint8_t { single, funneled, serialized, multiple };

enum class Element : std::uint8_t { f32, f64, i8, u8, i16, i32, i64 };

/// MPI's own operations; create_op() returns further numbers.
enum class Op : int { sum, product, min, max, band, bor, bxor, first_own };

/// inout[i] = in[i] op inout[i]; `in` comes from lower ranks. Nothing needs to be aligned.
using Combine = void (*)(const void* in, void* inout, std::size_t elements);

/// One rank's part of an all_to_all.
struct Piece {
  const void* data = nullptr;
  std::size_t bytes = 0;
};

struct Started {
  Request request{};
  /// What MPI reads until the request is done (counts, types).
  std::shared_ptr<const void> kept{};
};

struct Outcome {
  bool is_done = false;
  int error = 0;  ///< 0: none. A request that failed is done as well.
};

struct Found {
  Message message{};
  int source = 0;
  std::size_t bytes = 0;
};

class Library {
 public:
  Library() = default;
  virtual ~Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  /// "Open MPI v4.1.4, ..." on one line. May be called before initialize().
  virtual std::string version() = 0;
  virtual bool is_initialized() = 0;
  virtual bool is_finalized() = 0;
  /// Blocks until all processes of the job have called it. Returns the level that MPI provides.
  virtual ThreadLevel initialize() = 0;
  virtual ThreadLevel thread_level() = 0;
  /// May block until all processes of the job have called it.
  virtual void finalize() = 0;

  virtual int world_rank() = 0;
  virtual int world_size() = 0;
  virtual int largest_tag() = 0;

  /// Called by exactly these ranks of the world, with the same tag; blocks until all have called it.
  virtual Communicator create_communicator(std::span<const int> world_ranks, int tag) = 0;
  virtual void free_communicator(Communicator communicator) = 0;
  /// Creates a commutative operation. There is room for about forty.
  virtual Op create_op(Combine combine) = 0;

  // A null `in` means in place: the input lies where the result goes. `count` and `counts` are in elements, the rest in
  // bytes.
  virtual Request all_reduce(const void* in, void* out, int count, Element element, Op op, Communicator on) = 0;
  virtual Request reduce(const void* in, void* out, int count, Element element, Op op, int root, Communicator on) = 0;
  virtual Request broadcast(void* data, int bytes, int root, Communicator on) = 0;
  /// In place on all ranks: this rank's piece is in its place already.
  virtual Request all_gather(void* data, int bytes_each, Communicator on) = 0;
  virtual Started all_gather_uneven(void* data, std::span<const int> bytes, Communicator on) = 0;
  virtual Started reduce_scatter(const void* in, void* out, std::span<const int> counts, Element element, Op op,
                                 Communicator on) = 0;
  /// Pieces may lie anywhere and be of any size.
  virtual Started all_to_all(std::span<const Piece> ins, std::span<const Piece> outs, Communicator on) = 0;
  virtual Request barrier(Communicator on) = 0;

  /// Messages may have any size. A receiver matches the message first, so its size is known before memory is touched.
  virtual Request send(const void* data, std::size_t bytes, int peer, int tag, Communicator on) = 0;
  /// A negative peer means any source.
  virtual std::optional<Found> find(int peer, int tag, Communicator on) = 0;
  virtual Request receive(void* data, std::size_t bytes, Message message) = 0;

  /// Makes progress on everything that is in progress. A request that is done must not be used again.
  virtual Outcome test(Request& request) = 0;
  virtual std::string describe(int error) = 0;
};

/// The function that a module exports, as "cohort_mpi_library".
using GetLibrary = Library* (*)();
inline constexpr const char* get_library_symbol = "cohort_mpi_library";

}  // namespace cohort::mpi
