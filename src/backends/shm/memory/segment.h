// SPDX-License-Identifier: BSD-3-Clause
//
// The memory that the ranks of a group share.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "core/file_descriptor.h"

namespace cohort::shm {

/// Zeroed memory of a fixed size. Its pages exist once they are reserved; touching one that is not may end the process.
class Segment {
 public:
  virtual ~Segment() = default;
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* base() const { return base_; }
  std::size_t size() const { return size_; }
  /// Throws Error if there is not enough memory.
  virtual void reserve(std::size_t offset, std::size_t bytes) = 0;
  /// Maps reserved pages all at once, for the process that writes them: a page fault for each would take longer than
  /// what is written there. Does nothing where the kernel cannot (before 5.14).
  void prefault(std::size_t offset, std::size_t bytes) const noexcept;

 protected:
  Segment() = default;
  std::byte* base_ = nullptr;
  std::size_t size_ = 0;
};

/// A memfd whose size is sealed (so that no peer can make a mapping fault); close-on-exec.
FileDescriptor make_memfd(const std::string& name, std::size_t size);
FileDescriptor duplicate(const FileDescriptor& fd);
/// Maps a memfd made by make_memfd in this or another process, after checking its seals and size. Processes that only
/// follow the maker need not call `reserve`.
std::shared_ptr<Segment> map_memfd(FileDescriptor fd);
/// Memory of this process, for ranks that are threads of it.
std::shared_ptr<Segment> heap_segment(std::size_t size);

}  // namespace cohort::shm
