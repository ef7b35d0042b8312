// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/error.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "core/file_descriptor.h"

namespace cohort::tool {

struct Pipe {
  FileDescriptor reading;
  FileDescriptor writing;
};

/// Close-on-exec.
inline Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Error(fmt::format("cannot make a pipe: {}", std::generic_category().message(errno)));
  }
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

}  // namespace cohort::tool
