// SPDX-License-Identifier: BSD-3-Clause
//
// A pseudo-terminal as a way to read what a program writes: to a terminal, standard output is flushed with every line,
// whereas to a pipe it is flushed when 4 KiB have come together.
#pragma once

#include "core/file_descriptor.h"

namespace cohort::tool {

struct PseudoTerminal {
  FileDescriptor reading;  ///< ends with EIO when the last writer has closed the other end
  FileDescriptor writing;
};

/// Passes bytes on unchanged in both directions, and has the size of the terminal `like` if that is one. Both ends are
/// close-on-exec, and neither becomes the controlling terminal of a process. The descriptors are invalid where the
/// system has no pseudo-terminals, or none left.
PseudoTerminal make_pseudo_terminal(int like);

}  // namespace cohort::tool
