// SPDX-License-Identifier: BSD-3-Clause
//
// Which memory ranks can reach of each other: that is what makes collectives on memory of the group copy nothing.
#pragma once

#include <cohort/memory.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace cohort::shm {

class PeerMemory {
 public:
  virtual ~PeerMemory() = default;

  /// What to tell the others so that they find this memory; nothing if it is ordinary memory. Nothing to find (no
  /// bytes) is found anywhere.
  virtual std::optional<std::uint64_t> locate(const void* data, std::size_t bytes) const = 0;
  /// Where memory that `rank` told us of is here; null if that is not its to tell.
  virtual std::byte* find(int rank, std::uint64_t location, std::size_t bytes) const = 0;

  /// Whether ordinary memory of the others can be read as well, by its address there: a system call and one copy.
  virtual bool reads_ordinary() const = 0;
  virtual void read(int rank, std::uint64_t address, void* to, std::size_t bytes) const = 0;

  /// Whether allocate() can be called at all.
  virtual bool is_available() const = 0;
  virtual GroupMemory allocate(std::size_t bytes) = 0;
  /// This memory was in an operation that failed: a peer that was late may still write to it, so nobody gets it again.
  virtual void abandon(const void* data) = 0;
};

}  // namespace cohort::shm
