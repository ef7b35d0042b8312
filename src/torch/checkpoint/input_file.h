// SPDX-License-Identifier: BSD-3-Clause
//
// A file of a checkpoint that is read. Errors are CheckpointErrors without the name of the file, which the caller puts
// in front.
#pragma once

#include <cohort/torch/checkpoint_error.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <system_error>
#include <vector>

#include "core/file_descriptor.h"

namespace cohort {

/// A regular file, opened without following a link and without waiting for the other end of a pipe.
class InputFile {
 public:
  explicit InputFile(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) {
    if (!fd_ && errno == ELOOP) throw CheckpointError("is a symbolic link; name the file itself");
    struct stat status {};
    if (!fd_ || ::fstat(fd_.get(), &status) != 0)
      throw CheckpointError("cannot be opened: " + std::generic_category().message(errno));
    if (!S_ISREG(status.st_mode)) throw CheckpointError("is not a regular file");
    bytes_ = static_cast<std::uint64_t>(status.st_size);
  }

  std::uint64_t bytes() const { return bytes_; }

  void read(std::uint64_t from, char* to, std::size_t count) const {
    while (count > 0) {
      const auto got = ::pread(fd_.get(), to, count, static_cast<off_t>(from));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw CheckpointError("cannot be read: " + std::generic_category().message(errno));
      if (got == 0) throw CheckpointError("has become shorter while it was read");
      from += static_cast<std::uint64_t>(got);
      to += got;
      count -= static_cast<std::size_t>(got);
    }
  }
  std::string read(std::uint64_t from, std::uint64_t count) const {
    std::string text(count, '\0');
    read(from, text.data(), text.size());
    return text;
  }
  /// Calls `use` with all bytes of a range, piece by piece.
  template <class F>
  void pass(std::uint64_t from, std::uint64_t to, F&& use) const {
    std::vector<char> piece(std::min<std::uint64_t>(piece_bytes, to - from));
    while (from < to) {
      const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), to - from));
      read(from, piece.data(), count);
      use(piece.data(), count);
      from += count;
    }
  }

 private:
  static constexpr std::uint64_t piece_bytes = std::uint64_t{1} << 20U;

  FileDescriptor fd_;
  std::uint64_t bytes_ = 0;
};

}  // namespace cohort
