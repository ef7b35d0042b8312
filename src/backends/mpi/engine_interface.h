// SPDX-License-Identifier: BSD-3-Clause
//
// What Cohort needs of an MPI, free of mpi.h: every MPI has its own binary interface, so each gets a module of its own
// (module.cpp, compiled once for each), and the backend is written against this.
//
// All communication is non-blocking: a call starts it and test() looks whether it is done, so that whoever waits can
// stop waiting. Handles are MPI's own, as bits. What cannot be started throws std::runtime_error in MPI's words.
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
/// A message that was found and is nobody else's any more.
enum class Message : std::uint64_t {};

enum class ThreadLevel : std::uint8_t { single, funneled, serialized, multiple };

enum class Element : std::uint8_t { f32, f64, i8, u8, i16, i32, i64 };

/// MPI's own operations; create_op() gives further numbers.
enum class Op : int { sum, product, min, max, band, bor, bxor, first_own };

/// inout[i] = in[i] op inout[i]; `in` is of lower ranks. Nothing needs to be aligned.
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
  int error = 0;  ///< 0: none; done all the same
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

  /// "Open MPI v4.1.4, ..." on one line. May be asked before initialize().
  virtual std::string version() = 0;
  virtual bool is_initialized() = 0;
  virtual bool is_finalized() = 0;
  /// Blocks until all processes of the job have come. Says what it got.
  virtual ThreadLevel initialize() = 0;
  virtual ThreadLevel thread_level() = 0;
  /// May block until all processes of the job have come.
  virtual void finalize() = 0;

  virtual int world_rank() = 0;
  virtual int world_size() = 0;
  virtual int largest_tag() = 0;

  /// Called by exactly these ranks of the world, with the same tag; blocks until all have come.
  virtual Communicator create_communicator(std::span<const int> world_ranks, int tag) = 0;
  virtual void free_communicator(Communicator communicator) = 0;
  /// A commutative operation. There is room for some thirty.
  virtual Op create_op(Combine combine) = 0;

  // A null `in`: what is to go in lies where the result goes. Counts are of elements, elsewhere of bytes.
  virtual Request all_reduce(const void* in, void* out, int count, Element element, Op op, Communicator on) = 0;
  virtual Request reduce(const void* in, void* out, int count, Element element, Op op, int root, Communicator on) = 0;
  virtual Request broadcast(void* data, int bytes, int root, Communicator on) = 0;
  virtual Request all_gather(const void* in, void* out, int bytes_each, Communicator on) = 0;
  virtual Started all_gather_uneven(const void* in, void* out, std::span<const int> bytes, Communicator on) = 0;
  virtual Started reduce_scatter(const void* in, void* out, std::span<const int> counts, Element element, Op op,
                                 Communicator on) = 0;
  /// Pieces may lie anywhere and be of any size.
  virtual Started all_to_all(std::span<const Piece> ins, std::span<const Piece> outs, Communicator on) = 0;
  virtual Request barrier(Communicator on) = 0;

  /// Messages of any size. Whoever receives finds the message first: its size is known before memory is touched.
  virtual Request send(const void* data, std::size_t bytes, int peer, int tag, Communicator on) = 0;
  /// Any source: a negative peer.
  virtual std::optional<Found> find(int peer, int tag, Communicator on) = 0;
  virtual Request receive(void* data, std::size_t bytes, Message message) = 0;

  /// Makes what progress it can, everywhere. Once done the request is no more.
  virtual Outcome test(Request& request) = 0;
  virtual std::string describe(int error) = 0;
};

/// What a module exports, as "cohort_mpi_library".
using GetLibrary = Library* (*)();
inline constexpr const char* get_library_symbol = "cohort_mpi_library";

}  // namespace cohort::mpi
