// SPDX-License-Identifier: BSD-3-Clause
//
// Which memory of each other ranks can access. This is what lets collectives on memory of the group work without
// copies.
#pragma once

#include <cohort/memory.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace cohort::shm {

class PeerMemory {
 public:
  virtual ~PeerMemory() = default;

  /// The location to publish so that the other ranks find this memory; nullopt if it is ordinary memory. An empty range
  /// has a valid location anywhere.
  virtual std::optional<std::uint64_t> locate(const void* data, std::size_t bytes) const = 0;
  /// Where memory that `rank` published is mapped here; null if that location is not in its memory.
  virtual std::byte* find(int rank, std::uint64_t location, std::size_t bytes) const = 0;

  /// Whether ordinary memory of the others can be read as well, by its address in their process: a system call and one
  /// copy.
  virtual bool reads_ordinary() const = 0;
  virtual void read(int rank, std::uint64_t address, void* to, std::size_t bytes) const = 0;

  /// Whether allocate() can be called at all.
  virtual bool is_available() const = 0;
  virtual GroupMemory allocate(std::size_t bytes) = 0;
  /// Called for memory of an operation that failed: a late peer may still write to it, so it is never handed out again.
  virtual void abandon(const void* data) = 0;
};

}  // namespace cohort::shm
