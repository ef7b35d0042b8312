// SPDX-License-Identifier: BSD-3-Clause
#include "common/pseudo_terminal.h"

#include <asm/ioctls.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>

#include <cstdlib>

namespace cohort::tool {

PseudoTerminal make_pseudo_terminal(int like) {
  FileDescriptor reading(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!reading || ::unlockpt(reading.get()) != 0) return {};
  // By ioctl, because the path of the other end may not be visible in a container.
  FileDescriptor writing(::ioctl(reading.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  termios mode{};
  if (!writing || ::tcgetattr(writing.get(), &mode) != 0) return {};
  ::cfmakeraw(&mode);  // a line break stays one, and what is read is not written back
  if (::tcsetattr(writing.get(), TCSANOW, &mode) != 0) return {};
  if (winsize size{}; ::ioctl(like, TIOCGWINSZ, &size) == 0) ::ioctl(writing.get(), TIOCSWINSZ, &size);
  return {std::move(reading), std::move(writing)};
}

}  // namespace cohort::tool
