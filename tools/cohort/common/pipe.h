// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <array>

#include "common/throw_errno.h"
#include "core/file_descriptor.h"

namespace cohort::tool {

struct Pipe {
  FileDescriptor reading;
  FileDescriptor writing;
};

/// Both ends are close-on-exec.
inline Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw_errno("cannot make a pipe");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

}  // namespace cohort::tool
