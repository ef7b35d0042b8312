// SPDX-License-Identifier: BSD-3-Clause
//
// One rank of what is measured: Cohort on one of its backends, or a peer. Everything else about measuring (how often,
// when the clock is read, on which data) is the same code for all of them (measure.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "measure/command.h"

namespace cohort::measure {

enum class MemoryKind : std::uint8_t {
  ordinary,
  group,  ///< that every rank of the host sees
};

constexpr std::string_view to_string(MemoryKind kind) {
  return kind == MemoryKind::group ? "group" : "ordinary";
}

/// An operation with its memory. In place means what NCCL means by it: input and output are the same, except that the
/// input of an all_gather is the rank's own block of the output, and the output of a reduce_scatter its own block of
/// the input.
struct Job {
  Command command{};
  std::size_t count = 0;  ///< elements of a block where there are blocks, of the array otherwise
  void* input = nullptr;
  void* output = nullptr;
};

/// Ordinary memory, as a program gets it from its allocator.
class OrdinaryMemory {
 public:
  void* get(std::size_t bytes) {
    if (bytes > capacity_) {
      memory_.reset();
      memory_.reset(std::aligned_alloc(page, (bytes + page - 1) / page * page));
      if (!memory_) throw std::bad_alloc();
      std::memset(memory_.get(), 0, bytes);
      capacity_ = bytes;
    }
    return memory_.get();
  }
  void release() {
    memory_.reset();
    capacity_ = 0;
  }

 private:
  static constexpr std::size_t page = 4096;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  std::size_t capacity_ = 0;
};

class System {
 public:
  System() = default;
  virtual ~System() = default;
  System(const System&) = delete;
  System& operator=(const System&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Why the system cannot do this; nullopt if it can. The same on all ranks, and known before any of them begins.
  virtual std::optional<std::string> refusal(const Command& command) const = 0;

  /// Memory number 0 or 1 with room for `bytes`, already touched; kept for the next command where it is large enough.
  virtual void* memory(std::size_t number, std::size_t bytes) { return ordinary_.at(number).get(bytes); }
  virtual void release() {
    for (auto& memory : ordinary_) memory.release();
  }

  /// Whether operations work on memory of a device. Then the memory above is on the host and has a counterpart there,
  /// to and from which these functions copy.
  virtual bool is_on_device() const { return false; }
  virtual void upload() {}
  virtual void download() {}

  /// Not timed; for plans and registrations.
  virtual void prepare(const Job&) {}
  /// Runs the operation once; without command.blocking it may return while the operation is under way.
  virtual void run(const Job& job) = 0;
  /// Returns when everything that run() started is complete.
  virtual void finish() {}

  virtual void barrier() = 0;
  /// Element by element; all ranks get the result.
  virtual void max_over_ranks(std::span<double> values) = 0;

 protected:
  /// A round trip between ranks 0 and 1, whose halves are the given functions of the other rank.
  template <class Send, class Receive>
  void ping_pong(Send&& send, Receive&& receive) const {
    if (rank() > 1) return;
    const int other = 1 - rank();
    if (rank() == 0) send(other);
    receive(other);
    if (rank() == 1) send(other);
  }

 private:
  std::array<OrdinaryMemory, 2> ordinary_;
};

}  // namespace cohort::measure
